"""Look-up of the last tokens in prompt, text and earlier texts."""

from hypothesis import given
from hypothesis import strategies as st

from caw.decoding.drafts.ngrams import (
    EARLIER,
    EXPECTED,
    KEPT,
    LONGEST,
    PLACES,
    REPLACED,
    SIZES,
    TRUST,
    TRUST_EARLIER,
    TRUST_REPLACED,
    EarlierTexts,
    NgramDrafter,
)
from caw.decoding.drafts.proposer import Guess


def matching(text: list[int], end: int) -> int:
    return next((n for n in range(min(end, LONGEST)) if text[end - 1 - n] != text[-1 - n]), min(end, LONGEST))


@given(text=st.lists(st.integers(0, 3), max_size=40), token=st.integers(0, 4), cut=st.integers(0, 40))
def test_what_followed_the_longest_match_last(text: list[int], token: int, cut: int) -> None:
    follower = NgramDrafter().follow(text[:cut])
    follower.extend(text[cut:])
    whole = [*text, token]
    expected = Guess()
    for size in SIZES:
        ends = [end for end in range(size, len(text)) if whole[end - size : end] == whole[-size:]]
        if len(whole) > size and ends:
            lengths = {end: matching(whole, end) for end in (ends[-PLACES:] if size == SIZES[0] else ends[-1:])}
            place = max(lengths, key=lambda end: (lengths[end], end))
            expected = Guess(whole[place:][:4], TRUST[max(n for n in TRUST if n <= lengths[place])])
            break
    if not expected.tokens and len(whole) > SIZES[0]:
        for replaced in range(1, REPLACED + 1):
            before = whole[: len(whole) - replaced]
            same = [end for end in range(SIZES[0], len(before)) if before[end - SIZES[0] : end] == before[-SIZES[0] :]]
            if len(before) >= SIZES[0] and same:
                expected = Guess(whole[same[-1] + replaced :][:4], TRUST_REPLACED)
                break
    found = follower.after(token, 4)
    assert found.trust == expected.trust
    assert list(found.tokens[: len(expected.tokens)]) == list(expected.tokens)
    assert len(found.tokens) == (4 if expected.tokens else 0), "repetitions go on beyond the end"


def test_the_match_that_goes_back_farthest() -> None:
    """Both places follow five tokens that match; before the earlier one twenty do."""
    long = list(range(20))
    follower = NgramDrafter().follow([*long, 50, 99, *long[15:], 60, 98, *long[:-1]])
    assert follower.after(19, 2) == Guess([50, 99], TRUST[LONGEST])
    assert set(TRUST.values()) | {TRUST_EARLIER, TRUST_REPLACED} == set(EXPECTED) == set(range(len(EXPECTED)))


def test_trust_rises_with_what_it_is_worth() -> None:
    assert [EXPECTED[trust] for trust in range(len(EXPECTED))] == sorted(EXPECTED.values())


def test_alone_it_remembers_nothing() -> None:
    drafter = NgramDrafter(alone=True)
    drafter.learn([1, 2, 3, 4, 5, 6])
    assert drafter.follow([9, 1, 2]).after(3, 2) == Guess() and not len(drafter.earlier)


def test_earlier_texts_help_where_the_own_match_is_shorter() -> None:
    drafter = NgramDrafter()
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
