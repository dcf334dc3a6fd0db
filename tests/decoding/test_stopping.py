"""Stop strings over token borders, bytes and special tokens."""

from typing import Any

import pytest
from decoding.architectures import tokenizer

from caw.decoding.stopping import StopStrings


class Pieces:
    """A tokenizer of given pieces; ids from 100 on are special tokens, <100> and so on."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def decode(self, ids: list[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert clean_up_tokenization_spaces is False, "spaces before punctuation must stay"
        special = [b"" if skip_special_tokens else b"<%d>" % i for i in ids]
        parts = [self.pieces[i] if i < 100 else s for i, s in zip(ids, special, strict=True)]
        return b"".join(parts).decode(errors="replace")


def reached_at(stops: StopStrings, ids: list[int]) -> int | None:
    return next((n for n in range(1, len(ids) + 1) if stops.reached(ids[:n])), None)


@pytest.mark.parametrize(
    ("pieces", "ids", "stop", "at", "text"),
    [
        ((b"ab", b"\n", b"cd"), [0, 1, 1, 2], "\n\n", 3, "ab"),
        ((b"ab", b"\n\nc", b"d"), [0, 1, 2], "\n\n", 2, "ab"),  # inside one token, which goes on
        ((b"a", b"b"), [0, 1, 0, 1], "ab", 2, ""),
        ((b"x",), [0] * 50, "x" * 40, 40, ""),
        ((b"Q", b" .", b"."), [0, 1, 2], " .", 2, "Q"),
        ((b"\xe4", b"\xb8", b"\xad", b"!"), [3, 0, 1, 2, 3], "中!", 5, "!"),  # one character over three tokens
        ((b"a", b"b"), [0, 100, 1], "ab", 3, ""),  # a special token between is no text
        ((b"a", b"b"), [0, 100, 1], "<100>", 2, "a"),  # unless it is what was asked for
        ((b"a", b"b"), [0, 0, 1], "c", None, "aab"),
    ],
)  # fmt: skip
def test_stop_strings(pieces: tuple[bytes, ...], ids: list[int], stop: str, at: int | None, text: str) -> None:
    pieces_tokenizer = Pieces(*pieces)
    stops = StopStrings(pieces_tokenizer, stop)
    assert reached_at(stops, ids) == at
    assert stops.cut(stops.text(ids[:at])) == text


def test_the_earliest_of_several_cuts() -> None:
    stops = StopStrings(tokenizer(), ["cd", "b"])
    assert stops.cut("abcd") == "a"
    assert stops.cut("xcdb") == "x"
    assert stops.cut("xyz") == "xyz"


@pytest.mark.parametrize("none", [None, [], ()])
def test_none_is_no_stop(none: Any) -> None:
    stops = StopStrings(None, none)
    assert not stops.reached([1, 2, 3])
    assert stops.cut("text") == "text"


@pytest.mark.parametrize("bad", [[""], ["a", 3], 5, {"a"}])
def test_bad_stops(bad: Any) -> None:
    with pytest.raises(ValueError, match="stop must be a non-empty string or a list of them"):
        StopStrings(tokenizer(), bad)
