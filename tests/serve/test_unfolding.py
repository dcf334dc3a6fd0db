"""Pieces of a growing text: they join to the whole, and none has to be taken back."""

import random
from types import SimpleNamespace

import pytest
from serve.serving import parts

from caw.decoding.stopping import StopStrings
from caw.serve.unfolding import INCOMPLETE, Unfolding

TEXT = "the sky 🌤 is blue because naïve air… scatters 蓝 light, THE END of it"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("stop", [None, "END", ["blue bec", "scatt"], "🌤", "never", ["e", "END"]])
def test_pieces_join_to_the_text_that_is_shown(stop: str | list[str] | None, seed: int) -> None:
    _, tokenizer = parts()
    rng, stops = random.Random(seed), StopStrings(tokenizer, stop)
    ids, unfolding, pieces, sent = tokenizer(TEXT)["input_ids"], Unfolding(stops), [], 0
    while sent < len(ids) and not (stop and stops.reached(ids[:sent])):
        more = 1 if seed == 0 else rng.randint(1, 3)
        pieces.append(unfolding.add(ids[sent : sent + more]))
        sent += len(ids[sent : sent + more])
        assert INCOMPLETE not in pieces[-1]
        assert stops.shown(ids).startswith("".join(pieces)), "nothing is sent that does not stay"
    shown = stops.shown(ids[:sent])
    assert "".join([*pieces, unfolding.finish(ids[:sent])]) == shown == unfolding.sent
    assert seed or sum(bool(piece) for piece in pieces) > (3 if stop == ["e", "END"] else 5) or len(shown) < 9


def test_text_is_held_back_no_longer_than_it_may_be_a_stop_string() -> None:
    _, tokenizer = parts()
    unfolding, said = Unfolding(StopStrings(tokenizer, "xyz")), ""
    for letter, expected in (("a", "a"), ("x", ""), ("y", ""), ("x", "xy"), ("b", "xb")):
        said = unfolding.add(tokenizer(letter)["input_ids"])
        assert said == expected


def test_letters_that_are_never_whole_come_at_the_end() -> None:
    _, tokenizer = parts()
    ids = tokenizer("a🌤")["input_ids"][:-1]
    stops = StopStrings(tokenizer, None)
    unfolding = Unfolding(stops)
    pieces = [unfolding.add([one]) for one in ids]
    assert "".join(pieces) == "a" and "a" + unfolding.finish(ids) == stops.shown(ids) and INCOMPLETE in unfolding.sent


@pytest.mark.parametrize(("stop", "rest"), [(None, "<call>{}"), ("}", "<call>{"), ("call", "<")])
def test_what_is_held_is_sent_though_earlier_letters_change(stop: str | None, rest: str) -> None:
    changing = SimpleNamespace(decode=lambda ids, **_: "X"[: len(ids) > 8] + "".join(map(chr, ids))[len(ids) > 8 :])
    unfolding = Unfolding(StopStrings(changing, stop), "<call>")
    ids = [ord(letter) for letter in "So it is. <call>{}"]
    assert "".join([*(unfolding.add([one]) for one in ids), unfolding.finish(ids)]) == f"So it is. {rest}"
