"""The texts that an evaluator without labels is trained on."""

from __future__ import annotations

import json

import pytest
from tiny import tiny_model, tiny_tokenizer

import caw
from caw.io.jsonl import Row, read_rows
from caw_lab.training.own_texts import EVERYDAY, digest, own_texts
from caw_lab.training.settings import OwnTexts


@pytest.fixture(scope="module")
def tiny():
    tokenizer = tiny_tokenizer()
    return tiny_model(len(tokenizer)), tokenizer


def listed(model, tokenizer, settings, **options):
    """The texts in their order; none twice."""
    found = dict(pairs := list(own_texts(model, tokenizer, settings, **options)))
    assert len(found) == len(pairs)
    return [found[number] for number in sorted(found)]


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_models_own_continuations(tiny, tmp_path):
    prompts = lines(tmp_path / "p.jsonl", {"prompt": "the sky"}, {"prompt": "a small text"}, {"prompt": "unused"})
    settings = OwnTexts(prompts, count=2, chat=False, max_new_tokens=7, temperature=0.5, seed=3)
    found = listed(*tiny, settings)
    given = ["the sky", "a small text"]
    greedy = caw.generate(*tiny, given, max_new_tokens=7)
    sampled = caw.generate(*tiny, given, max_new_tokens=7, do_sample=True, temperature=0.5, seed=3)
    for text, out, temperature in zip(
        found, [*greedy.sequences, *sampled.sequences], [None] * 2 + [0.5] * 2, strict=True
    ):
        assert list(text.coded.ids[text.coded.first :]) == out and text.temperature == temperature
    first, second, third, fourth = (text.coded.text.name for text in found)
    assert (first, second) == (third, fourth) and first != second, "texts of a prompt are in one part of the split"
    assert [t.coded.ids for t in listed(*tiny, OwnTexts(prompts, 2, False, None, 7, None))] == [
        t.coded.ids for t in found[:2]
    ]


@pytest.mark.parametrize("done", [{0}, {1, 2}, {0, 1, 2, 3}, {4}])
def test_only_missing_texts_are_written(tiny, tmp_path, done):
    """Under their own numbers, and as they would be with the others."""
    prompts = lines(tmp_path / "p.jsonl", {"prompt": "the sky"}, {"prompt": "a small text"})
    written = lines(tmp_path / "w.jsonl", {"prompt": "the sky", "tokens": [6]})
    settings = OwnTexts(prompts, None, False, written, 7, 0.5)
    every = dict(own_texts(*tiny, settings))
    found = dict(own_texts(*tiny, settings, done=done))
    assert set(every) == set(range(5)) and found == {n: text for n, text in every.items() if n not in done}


def test_prompts_are_wrapped_if_the_model_has_a_template(tiny, tmp_path):
    model, tokenizer = tiny
    prompts = lines(tmp_path / "p.jsonl", {"prompt": "the sky"})
    settings = OwnTexts(prompts, max_new_tokens=2, temperature=None)
    (text,) = listed(model, tokenizer, settings)
    assert tokenizer.decode(text.coded.ids[: text.coded.first]) == "<user>the sky<assistant>"
    (text,) = listed(model, tiny_tokenizer(chat=False), settings)
    assert tokenizer.decode(text.coded.ids[: text.coded.first]) == "the sky"


def test_texts_that_caw_generate_wrote(tiny, tmp_path):
    prompts = lines(tmp_path / "p.jsonl", {"prompt": "the sky"})
    sampling = {"temperature": 0.5, "top_k": 0, "top_p": 1.0, "seed": 0}
    written = lines(
        tmp_path / "w.jsonl",
        {
            "id": 1,
            "prompt": "the sky",
            "text": "ignored",
            "tokens": [4, 5],
            "settings": {"chat": True, "sampling": None},
        },
        {"id": 2, "prompt": "the sky", "tokens": [6], "settings": {"chat": False, "sampling": sampling}},
        {"id": 3, "prompt": "a text", "text": " is blue"},
        {"id": 4, "prompt": "nothing was written", "tokens": []},
    )
    own, *found = listed(*tiny, OwnTexts(prompts, None, False, written, 2, None))
    assert [list(t.coded.ids[t.coded.first :]) for t in found[:2]] == [[4, 5], [6]] and len(found) == 4
    assert [t.temperature for t in found] == [None, 0.5, None, None]
    assert found[0].coded.first > found[1].coded.first == own.coded.first, "the first has the chat template"
    assert own.coded.text.name == found[0].coded.text.name == found[1].coded.text.name != found[2].coded.text.name
    assert len(found[3].coded.ids) == found[3].coded.first
    text = found[2].coded
    assert tiny[1].decode(text.ids[text.first :]) == " is blue"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"text": "a"}, "line 1: expected a field 'prompt'"),
        ({"prompt": "a"}, "line 1: expected a field 'text'"),
        ({"prompt": "a", "tokens": [10**6]}, "line 1: .*vocabulary"),
        ({"prompt": "a", "tokens": [1], "settings": {"sampling": {"top_k": 5}}}, "line 1: texts must be greedy"),
    ],
)
def test_bad_lines_are_named(line, expected, tiny, tmp_path):
    prompts, written = lines(tmp_path / "p.jsonl", {"prompt": "the sky"}), lines(tmp_path / "w.jsonl", line)
    with pytest.raises(ValueError, match=expected):
        listed(*tiny, OwnTexts(prompts, None, False, written, 1, None))


def test_no_prompts(tiny, tmp_path):
    with pytest.raises(ValueError, match="must have at least one line"):
        listed(*tiny, OwnTexts(lines(tmp_path / "p.jsonl")))
    with pytest.raises(FileNotFoundError):
        listed(*tiny, OwnTexts(tmp_path / "none.jsonl"))


def test_the_digest_knows_what_texts_are_made_from(tmp_path):
    prompts = lines(tmp_path / "p.jsonl", {"prompt": "the sky"})
    settings = OwnTexts(prompts)
    before = digest(settings)
    (tmp_path / "copy.jsonl").write_bytes(prompts.read_bytes())
    assert digest(OwnTexts(tmp_path / "copy.jsonl")) == before
    others = [OwnTexts(prompts, seed=1), OwnTexts(prompts, written=prompts), OwnTexts()]
    assert len({before, *(digest(other) for other in others)}) == 4
    lines(prompts, {"prompt": "the sea"})
    assert digest(settings) != before


def test_the_prompts_that_come_with_the_library():
    """Short everyday ones, none twice, and none of the 100 prompts that texts are measured on."""
    with open(EVERYDAY, "rb") as file:
        rows = list(read_rows(file))
    prompts = [row.value["prompt"] for row in rows if isinstance(row, Row)]
    assert len(prompts) == len(rows) == len(set(prompts)) == 240
    assert all(prompt.isascii() and 3 <= len(prompt.split()) <= 16 for prompt in prompts)
