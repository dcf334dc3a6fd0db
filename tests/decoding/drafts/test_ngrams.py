"""Look-up of the last tokens in prompt, text and earlier texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from caw.decoding.drafts.drafter import Drafter, Guess
from caw.decoding.drafts.ngrams import EARLIER, KEPT, SIZES, TRUST, TRUST_EARLIER, EarlierTexts, NgramDrafter


@given(text=st.lists(st.integers(0, 3), max_size=40), token=st.integers(0, 3), cut=st.integers(0, 40))
def test_what_followed_the_longest_match_last(text: list[int], token: int, cut: int) -> None:
    follower = NgramDrafter().follow(text[:cut])
    follower.extend(text[cut:])
    whole = [*text, token]
    expected = Guess()
    for size in SIZES:
        starts = [
            i for i in range(len(text) - size + 1) if whole[i : i + size] == whole[-size:] and i + size < len(text)
        ]
        if len(whole) > size and starts:
            expected = Guess(whole[starts[-1] + size :][:4], TRUST[size])
            break
    found = follower.after(token, 4)
    assert found.trust == expected.trust
    assert list(found.tokens[: len(expected.tokens)]) == list(expected.tokens)
    assert len(found.tokens) == (4 if expected.tokens else 0), "repetitions go on beyond the end"


def test_a_repetition_goes_on() -> None:
    assert NgramDrafter().follow([7, 1, 2, 1, 2]).after(1, 5) == Guess([2, 1, 2, 1, 2], TRUST[3])


def test_earlier_texts_help_where_the_own_match_is_shorter() -> None:
    drafter = NgramDrafter()
    assert isinstance(drafter, Drafter)
    drafter.learn([1, 2, 3, 4, 5, 6])
    assert drafter.follow([9, 1, 2]).after(3, 2) == Guess((4, 5), TRUST_EARLIER)
    assert drafter.follow([1, 2, 3, 8, 1, 2]).after(3, 2) == Guess([8, 1], TRUST[3]), "the own text first"
    assert drafter.follow([3, 8, 9, 1, 2]).after(3, 1) == Guess((4,), TRUST_EARLIER)
    assert drafter.follow([5, 8]).after(5, 1) == Guess([8], TRUST[1])
    assert drafter.follow([5]).after(4, 1) == Guess()


def test_earlier_texts_are_forgotten_in_order() -> None:
    earlier = EarlierTexts(room=3)
    earlier.add(range(10))
    assert len(earlier) == 3
    assert earlier.after([5, 6, 7]) == (8, 9) and not earlier.after([0, 1, 2])
    earlier.add([5, 6, 7, 1])
    assert earlier.after([0, 5, 6, 7]) == (1,), "the newest counts"
    earlier.add(range(100, 100 + EARLIER + 2 * KEPT))
    assert len(earlier) == 3 and not earlier.after([5, 6, 7])
