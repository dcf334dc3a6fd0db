"""Patches that are put together."""

from collections.abc import Sequence

import numpy as np
import pytest

import caw
from caw.detectable.combining import Evidence, SubkeyEvidence, combined
from caw.detectable.splicing import Patch, spliced
from caw.detection.subkeys import reads_subkeys

PATCHES = [Patch(0, 1, (1,)), Patch(0, 2, (2,)), Patch(3, 4, (3,)), Patch(5, 6, (4,)), Patch(8, 9, (5,))]
LOST, GAINS = [0.0, 2.0, 0.5, 0.0, 3.0], [1.0, 2.0, 1.0, -1.0, 1.5]
Found = tuple[list[int], str | None, bool]


def put_together(found_at: float, needed: float = 0.0, forbidden: Sequence[set[int]] = ()) -> tuple[Found, list[str]]:
    """What comes of the patches above, each of which shows what it gains, and the texts that were tested."""
    tested = list[str]()

    def shown(numbers: Sequence[int]) -> float:
        assert not any(PATCHES[one].meets(PATCHES[two]) for one in numbers for two in numbers if one != two)
        return sum(GAINS[number] for number in numbers)

    def version(numbers: Sequence[int]) -> tuple[str, bool] | None:
        tested.append("".join(map(str, sorted(numbers))))
        allowed = not any(each <= set(numbers) for each in forbidden)
        return (tested[-1], shown(numbers) >= found_at) if allowed else None

    return combined(PATCHES, LOST, GAINS, [1, 2, 4], needed, shown, version), tested


@pytest.mark.parametrize(("found_at", "expected"), [
    (1.0, ([0], "0", True)),  # the cheapest for what it gains: (1 + lost) / gain
    (2.0, ([1], "1", True)),  # takes the place of 0, which it meets
    (3.0, ([1, 2], "12", True)),
    (3.5, ([1, 4], "14", True)),  # without the dear 4 it would not do, without 2 it does
    (4.5, ([1, 2, 4], "124", True)), (4.6, ([1, 2, 4], "124", False)),
])  # fmt: skip
def test_what_costs_the_least_for_its_gain_comes_first_and_all_is_needed(found_at: float, expected: Found) -> None:
    (numbers, text, found), tested = put_together(found_at)
    assert (sorted(numbers), text, found) == (sorted(expected[0]), *expected[1:])
    assert not any("3" in text for text in tested), "one that gains nothing is not tried"


def test_texts_that_show_too_little_are_not_tested() -> None:
    assert put_together(3.0, needed=3.0)[1][0] == "12"
    assert put_together(4.5, needed=4.45)[1] == ["124", "12", "24", "14"], "then without each"
    many = [Patch(2 * n, 2 * n + 1, (n,)) for n in range(50)]
    tests = list[int]()
    some = combined(
        many, [0.0] * 50, [0.01] * 50, [], 0.0, lambda numbers: len(numbers) * 0.01,
        lambda numbers: (tests.append(len(numbers)), False),  # type: ignore[func-returns-value]
    )  # fmt: skip
    assert len(some[0]) == 50 and len(tests) < 20, "in three orders, not at each hundredth"


def test_what_may_not_stand_together_is_not_taken() -> None:
    assert put_together(2.5, forbidden=[{1, 2}])[0] == ([1, 4], "14", True), "found by the other order"
    assert put_together(9.0, forbidden=[{1, 2}])[0] == ([1, 4], "14", False)
    assert put_together(0.0, forbidden=[set()])[0] == ([], None, False)
    assert combined([], [], [], [], 0.0, lambda numbers: 0.0, lambda numbers: ("", True)) == ([], None, False)


@pytest.mark.parametrize("mark", [
    caw.KGW(key=5, gamma=0.5, subkeys=8), caw.KGW(key=5, gamma=0.25, subkeys=8, context_width=4),
    caw.Unigram(key=5, subkeys=8), caw.KGW(key=5),
], ids=["kgw", "four words", "unigram", "one key"])  # fmt: skip
def test_the_evidence_under_each_sub_key_is_what_its_detector_says(mark: caw.KGW | caw.Unigram) -> None:
    mark = mark.with_vocabulary(50)
    *old, a, b, c, d = np.random.default_rng(3).permutation(50)[:34].tolist()  # each once: repeats count in texts alone
    patches = [Patch(4, 6, (a,)), Patch(20, 21, (b, c, d)), Patch(29, 30, (b,)), Patch(20, 22, (c,))]
    evidence = SubkeyEvidence(mark)
    found = evidence.of(old, patches)
    for key in range(mark.family):
        alone = caw.Detector(None, mark.under_subkey(key), 0.01)
        texts = [old, *(spliced(old, [patch]) for patch in patches)]
        results = alone.detect_ids([np.array(text) for text in texts])
        assert found.start[key] == pytest.approx(results[0].z_score)
        for _ in range(2):
            assert evidence.shown(texts[2], patches[1:2], key) == pytest.approx(results[2].z_score)
        mean, variance = mark.under_subkey(0).null_moments
        above, unit = [each.score - mean * each.num_scored for each in results], results[0].num_scored * variance
        assert found.gains[key] == pytest.approx((np.array(above[1:]) - above[0]) / unit**0.5)
    best, tried = int(found.promise().argmax()), found.tried(-99.0, 3)
    assert (tried[0], len(tried), found.tried(99.0, 3)) == (best, min(3, mark.family), [])


def test_of_patches_at_one_place_one_counts() -> None:
    gains = np.array([[1.0, 2.0, -1.0, 3.0], [0.5, 0.25, 4.0, -2.0], [-1.0, -1.0, -1.0, -1.0]])
    places = [Patch(7, 8, (1,)), Patch(6, 9, (2,)), Patch(9, 10, (3,)), Patch(12, 14, (4,))]
    found = Evidence(np.array([0.5, 0.0, 2.0]), gains, places)
    assert found.promise().tolist() == [0.5 + 2 + 3, 0.5 + 4, 2.0]
    assert found.promise([1.0, 0.25, 1.0, 0.5]).tolist() == [0.5 + 1 + 1.5, 0.5 + 4, 2.0]
    assert (found.tried(3.0, 8), found.tried(3.0, 1), found.tried(9.0, 8)) == ([0, 1], [0], [])
    assert [found.best(key) for key in range(3)] == [[1, 3], [0, 2], []]
    nothing = Evidence(np.array([0.5, 1.0]), np.zeros((2, 0)), [])
    assert nothing.promise().tolist() == [0.5, 1.0] and nothing.tried(0.75, 8) == [1]


def test_which_marks_are_compared_by_their_tokens() -> None:
    """Where the key says what counts, and in a race, a text is read for each change."""
    marks = [caw.KGW(key=5), caw.KGW(key=5, subkeys=2), caw.Unigram(key=5), caw.Unigram(key=5, subkeys=2)]
    others = [caw.KGW(key=5, subkeys=2, seeding="selfhash"), caw.EXP(key=5), caw.SynthID(key=5), caw.Recommended(5)]
    assert all(map(reads_subkeys, marks)) and not any(map(reads_subkeys, others))
