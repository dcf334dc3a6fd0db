"""The settings of a guard, and what it does not go with."""

from typing import Any

import pytest
from decoding.architectures import build, prompt, tokenizer
from generating import Recorder

import caw
from caw.guard import read_guard
from caw.settings import Settings


def test_defaults_and_short_forms() -> None:
    assert caw.Guard() == caw.Guard("content", 3, 12, (1, 1.5, 2.25), 256, 64, 3, True)
    assert caw.Guard("json", rejoin=5).horizon == 20
    assert read_guard("results") == read_guard({"keeps": "results"}) == caw.Guard(keeps="results")
    assert Settings(detectable_at=0.1, guard="number").guard == caw.Guard("number")  # type: ignore[arg-type]
    assert caw.Guard().reader == caw.keeps.content() and caw.Guard("json").reader == caw.keeps.json()
    assert caw.Guard("json:name, unit").reader == caw.keeps.json(["name", "unit"])
    assert caw.Guard("python").reader == caw.keeps.parses()


def test_it_is_described_for_json() -> None:
    said = {"keeps": "json", "rejoin": 3, "horizon": 12, "rollouts": 256, "window": 64, "loss": 3.0, "layout": True}
    said["strengths"] = [1.0, 2.0]
    assert caw.Guard("json", strengths=(1, 2)).described() == said
    assert Settings(detectable_at=0.1, guard=caw.Guard("json", strengths=(1, 2))).tested()["guard"] == said
    assert "guard" not in Settings(detectable_at=0.1).tested()


def test_wrong_fields() -> None:
    for fields, error, message in (
        (
            {"keeps": "healed"},
            ValueError,
            "keeps must be one of number, results, json, python, content or a function of two texts, got 'healed'; "
            "use 'content'",
        ),
        ({"keeps": "number:3"}, ValueError, "keeps must be one of"),
        ({"keeps": None}, ValueError, "keeps must be one of"),
        ({"keeps": "json:"}, ValueError, "keeps must name the fields of JSON, got 'json:'; use e.g. 'json:name,unit'"),
        ({"keeps": "json: ,"}, ValueError, "keeps must name the fields of JSON"),
        ({"keeps": caw.keeps.results}, TypeError, r"the function that makes one; call it: caw.keeps.results\(\)"),
        ({"keeps": type(caw.keeps.results())}, TypeError, "got the class Results; make an object of it"),
        ({"horizon": False}, TypeError, "horizon must be an integer"),
        ({"rejoin": 1}, ValueError, r"rejoin must be an integer in \[2, 64\], got 1"),
        ({"window": 7}, ValueError, r"window must be an integer in \[8, 65536\], got 7"),
        ({"rollouts": 0}, ValueError, r"rollouts must be an integer in \[1, 65536\], got 0"),
        ({"horizon": 2}, ValueError, r"horizon must be an integer in \[3, 65536\], got 2"),
        ({"loss": -1}, ValueError, r"loss must be a number in \[0, 100\], got -1"),
        ({"layout": 1}, TypeError, "layout must be True or False, got 1; leave it out"),
        ({"strengths": ()}, TypeError, "strengths must be a list of 1 to 10 numbers"),
        ({"strengths": (1, 1)}, ValueError, "strengths must be ascending and above 0"),
        ({"strengths": (0, 1)}, ValueError, "strengths must be ascending and above 0"),
        ({"strengths": (1, "2")}, TypeError, "strengths must be a number in"),
    ):
        with pytest.raises(error, match=message):
            caw.Guard(**fields)


@pytest.mark.parametrize("keeps, name", [
    ("results", "results"), (caw.keeps.results(), "results"), (caw.keeps.number(), "number"),
    (caw.keeps.parses(), "python"), ("json", "json"), (caw.keeps.json(), "json"), ("json: name,unit", "json:name,unit"),
    (caw.keeps.json(["name", "unit"]), "json:name,unit"), (caw.keeps.content(), "content"), (str.__eq__, "__eq__"),
])  # fmt: skip
def test_a_name_and_its_reader_are_named_alike(keeps: Any, name: str) -> None:
    assert caw.Guard(keeps).name == caw.Guard(keeps).described()["keeps"] == name


def test_an_unknown_option_of_a_mapping_is_named() -> None:
    with pytest.raises(
        TypeError, match=r"a guard must have options among keeps, rejoin, .*, got 'tries'; leave it out"
    ):
        read_guard({"keeps": "results", "tries": 3})


def test_what_a_guard_does_not_go_with() -> None:
    for options, message in (
        ({"policy": caw.FixedStrength(0.0)}, "detectable_at requires a policy that marks, got FixedStrength"),
        ({"watermark": caw.KGW(key=1, delta=0.0)}, "detectable_at requires a watermark that marks"),
        ({"detectable_at": None}, "guard requires detectable_at; give e.g. detectable_at=1e-3"),
        ({"do_sample": True}, r"a guard needs greedy text, .* the race of caw.EXP\(strength='scale'\) costs nothing"),
        ({"best_of": 2}, "a guard changes one text and has nothing to select from, got best_of=2; leave best_of"),
        ({"select": "likeliest"}, "a guard changes one text and has nothing to select from, got select='likeliest'"),
        ({"streamer": Recorder(), "on_undetected": "unmarked"}, "a streamer shows the text before it is tested, so"),
        ({"watermark": caw.KGW(key=1, payload=5, payload_bits=8)}, "detectable_at does not support payloads"),
    ):
        given = {"watermark": caw.KGW(key=1), "detectable_at": 0.1, "guard": caw.Guard(), **options}
        with pytest.raises(ValueError, match=message):
            caw.generate(build("llama"), tokenizer(), [prompt(4)], **given)
