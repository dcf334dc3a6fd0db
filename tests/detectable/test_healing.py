"""Whether the copied tokens behind patches are still what the model would write."""

from __future__ import annotations

import pytest

from caw.decoding.along import TextReading
from caw.decoding.stopping import StopStrings
from caw.detectable.healing import Healing, Matters, read_healing
from caw.detectable.splicing import Patch

A, B, C = (Patch(at, at + 1, (9,)) for at in (0, 3, 6))


class Words:
    """A tokenizer of words."""

    words = (
        "The",
        " cat",
        " met",
        " Ann",
        " 3",
        ".",
        "\n",
        " It",
        "```",
        " McG",
        "reg",
        "or",
        " answer",
        " is",
        " yes",
        " x",
    )

    def decode(self, ids: list[int], **options: object) -> str:
        return "".join(self.words[i] for i in ids)


@pytest.mark.parametrize(
    "ids, place, expected",
    [
        ([0, 1, 2, 3], 3, True),  # a name
        ([0, 1, 2, 3], 1, False),
        ([0, 1, 2, 3], 0, False),  # the beginning of a sentence
        ([1, 5, 7], 2, False),
        ([1, 6, 7], 2, False),
        ([1, 7], 1, True),
        ([1, 4], 1, True),  # a number
        ([8, 1, 1, 8, 1], 1, True),  # code
        ([8, 1, 1, 8, 1], 4, False),
        ([0, 1, 9, 10, 11, 1], 3, True),  # the name goes on
        ([0, 1, 9, 10, 11, 1], 4, True),
        ([0, 1, 9, 10, 11, 1], 5, False),
        ([0, 12, 13, 14, 5, 15], 3, True),  # the stated answer
        ([0, 12, 13, 14, 5, 15], 5, False),
    ],
)
def test_what_matters(ids: list[int], place: int, expected: bool) -> None:
    assert Matters(ids, StopStrings(Words(), []))(place) is expected


def test_the_wounded_go_first_and_then_those_that_cost_most() -> None:
    assert Healing((A, B, C), (), (0.5, 0.2, 0.1), 10).unhealed(0.1) == []
    assert Healing((A, B, C), (), (0.6, 0.3, 0.2), 10).unhealed(0.1) == [A]
    assert Healing((A, B, C), (B,), (0.6, 0.3, 0.2), 10).unhealed(0.1) == [B, A]
    assert Healing((A, B, C), (A,), (0.6, 0.3, 0.2), 10).unhealed(0.1) == [A]


def test_copied_tokens_are_compared_behind_each_patch() -> None:
    """Two patches, the second one token longer than what it replaces; the copied token 5 is a number no more."""
    old = [10, 11, 12, 13, 14, 15]
    before = TextReading(0, [-1.0] * 6, list(old), [])
    patches = [Patch(1, 2, (20,)), Patch(3, 4, (21, 22))]
    after = TextReading(1, [-3.0, -1.5, -2.0, -2.0, -1.0, -1.25], [20, 12, 21, 22, 14, 15], [])
    found = read_healing(old, before, after, list(reversed(patches)), lambda place: True)
    assert found == Healing(tuple(patches), (), (0.5, 0.25), 3)


def test_a_patch_is_wounded_before_a_token_that_matters_and_is_the_likeliest_no_more() -> None:
    old, patch = [10, 11, 12, 13], Patch(0, 1, (20,))
    before, after = TextReading(0, [-1.0] * 4, [10, 11, 12, 99], []), TextReading(0, [-1.0] * 4, [20, 98, 12, 97], [])
    asked: list[int] = []
    found = read_healing(old, before, after, [patch], lambda place: bool(asked.append(place)) or place == 1)
    assert found.wounded == (patch,) and asked == [1], "13 was not the likeliest before either"
    assert read_healing(old, before, after, [patch], lambda place: False).wounded == ()
