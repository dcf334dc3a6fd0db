"""The three ladders against exact rational arithmetic, on small integers where everything ties all the time."""

from fractions import Fraction
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from caw.ladder import Ladder, likeliest_first, race_ladder_scale, race_ladder_top_k, reweight_ladder


def strengths_around(points: list[float], greatest: float) -> list[float]:
    """float32 strengths in [0, greatest]: an even grid, and each point with its two float32 neighbours on each side."""
    found = {np.float32(x) for x in np.linspace(0, greatest, 41)}
    for point in points:
        for step in (-np.inf, np.inf):
            x = np.float32(point)
            for _ in range(3):
                found.add(x)
                x = np.nextafter(x, np.float32(step))
    return sorted(float(x) for x in found if 0 <= x <= np.float32(greatest))


def repeated(ladder: Ladder, size: int) -> Ladder:
    """Row 0 of a ladder, `size` times: one for each strength."""
    parts = (ladder.candidates[0].expand(size, -1), ladder.needs[0].expand(size, -1), ladder.counts[0].expand(size))
    return Ladder(*parts, ladder.rule, ladder.full)


def chosen(ladder: Ladder, strengths: list[float]) -> list[int]:
    index = repeated(ladder, len(strengths)).select(torch.tensor(strengths))
    return ladder.candidates[0, index].tolist()


def check_shape(ladder: Ladder, original: int, strengths: list[float], greatest: float) -> None:
    """What holds for every ladder: distinct candidates, the original first and at strength 0, monotone, exact count."""
    count = int(ladder.counts[0])
    row = ladder.candidates[0].tolist()
    assert row[0] == original and chosen(ladder, [0.0]) == [original]
    assert len(set(row[:count])) == count >= 1
    assert set(row[count:]) <= {original}
    indices = repeated(ladder, len(strengths)).select(torch.tensor(strengths))
    assert bool((indices.diff() >= 0).all()) and int(indices[-1]) < count
    # the greatest strength reaches the last candidate, so the count is not too great; the tests say not too small
    assert int(ladder.select(torch.tensor([greatest]))) == count - 1


@st.composite
def rows(draw: Any, values: Any, most: int = 8) -> tuple[list[int], list[Any], list[Any]]:
    """ids, values sorted descending with ties to the smaller id (as records are), and a second value for each."""
    size = draw(st.integers(1, most))
    ids = draw(st.lists(st.integers(0, 30), min_size=size, max_size=size, unique=True))
    first = draw(st.lists(values, min_size=size, max_size=size))
    second = draw(st.lists(values, min_size=size, max_size=size))
    order = sorted(range(size), key=lambda i: (-first[i], ids[i]))
    return [ids[i] for i in order], [first[i] for i in order], [second[i] for i in order]


small = st.integers(-4, 4)
greatest_strengths = st.sampled_from([0.0, 0.3, 0.5, 1.0, 1.7, 10.0])


@given(row=rows(small), top_k=st.integers(1, 10), greatest=greatest_strengths)
def test_top_k_ladder_is_the_winner_of_the_cut_off_race(row: Any, top_k: int, greatest: float) -> None:
    ids, _, race = row
    ladder = race_ladder_top_k(torch.tensor([ids]), torch.tensor([race]).double(), top_k, greatest)
    strengths = strengths_around([(2 * r - 1) / (2 * top_k) for r in range(1, 12)], greatest)
    check_shape(ladder, ids[0], strengths, greatest)
    for strength, got in zip(strengths, chosen(ladder, strengths), strict=True):
        # as many race as there are ranks r with 2 * strength * top_k > 2 r - 1 in float32, at least one
        length = sum(
            np.float32(2) * np.float32(strength) * np.float32(top_k) > 2 * r - 1 for r in range(1, len(ids) + 1)
        )
        racing = range(max(1, length))
        winner = min(racing, key=lambda i: (-race[i], ids[i]))
        assert got == ids[winner], (strength, length)


@given(row=rows(small), greatest=greatest_strengths)
def test_scale_ladder_is_the_upper_envelope(row: Any, greatest: float) -> None:
    ids, start, slope = row
    ladder = race_ladder_scale(
        torch.tensor([ids]), torch.tensor([start]).double(), torch.tensor([slope]).double(), greatest
    )
    lines = list(zip(ids, start, slope, strict=True))
    meetings = [
        Fraction(b - y, z - c) for _, b, c in lines for _, y, z in lines if z != c and Fraction(b - y, z - c) >= 0
    ]
    strengths = strengths_around([float(m) for m in meetings], greatest)
    check_shape(ladder, ids[0], strengths, greatest)
    for strength, got in zip(strengths, chosen(ladder, strengths), strict=True):
        heights = [(b + Fraction(strength) * c, -token, c) for token, b, c in lines]
        best = max(h for h, *_ in heights)
        # at a point where three different lines meet only the first and the steepest stay in the ladder; any other
        # point has a strength of its own. Strength 0 is exact always.
        slopes = {c for h, _, c in heights if h == best}
        if len(slopes) <= 2 or strength == 0:
            assert got == -max(t for h, t, _ in heights if h == best), strength
        else:
            assert got in {-t for h, t, _ in heights if h == best}


@given(
    original=st.tuples(st.integers(0, 9), small),
    green=st.tuples(st.integers(-1, 9), small),
    delta=st.sampled_from([0.0, 0.5, 1.0, 3.0, 0.1]),
    greatest=greatest_strengths,
)
def test_reweight_ladder_compares_the_biased_logit(original: Any, green: Any, delta: float, greatest: float) -> None:
    (token, logit), (other, other_logit) = original, green
    better = other_logit > logit or (other_logit == logit and other < token)
    if other >= 0 and better and other != token:
        (token, logit), (other, other_logit) = (other, other_logit), (token, logit)
    ladder = reweight_ladder(
        torch.tensor([token]), torch.tensor([float(logit)]), torch.tensor([other]), torch.tensor([float(other_logit)]),
        delta, greatest,
    )  # fmt: skip
    strengths = strengths_around([(logit - other_logit) / delta] if delta else [], greatest)
    check_shape(ladder, token, strengths, greatest)
    for strength, got in zip(strengths, chosen(ladder, strengths), strict=True):
        boosted = np.float32(other_logit) + np.float32(strength) * np.float32(delta)
        takes = other >= 0 and (boosted > logit or (boosted == logit and other < token))
        assert got == (other if takes else token)


def test_only_original_rows_keep_candidate_zero_alone() -> None:
    ladder = race_ladder_top_k(torch.tensor([[4, 7], [4, 7]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]]).double(), 2, 1.0)
    assert ladder.counts.tolist() == [2, 2]
    kept = ladder.only_original(torch.tensor([True, False]))
    assert kept.counts.tolist() == [1, 2]
    assert kept.candidates.tolist() == [[4, 4], [4, 7]]
    assert kept.select(torch.tensor([9.0, 9.0])).tolist() == [0, 1]
    assert ladder.counts.tolist() == [2, 2]  # the given one is left as it was


def test_each_token_is_carried_once_the_likeliest_first() -> None:
    """Ten layers: 7 wins up to strength .25 and again from .85 on, 5 from .25 to .35, 8 from .35 to .85."""
    ids = torch.tensor([[7, 5, 8, 7, 7], [4, 6, 9, 6, 2], [3, 3, 3, 3, 3]])
    needs = torch.tensor([[0, 3, 4, 9, torch.inf], [0, 2, 3, 4, 10], [0, *[torch.inf] * 4]])
    ladder = Ladder(ids, needs, torch.tensor([4, 5, 1]), "top_k", 10.0)
    found = likeliest_first(ladder, ladder.counts, 1.0)
    assert found.tokens.tolist() == [[7, 8, 5, 7], [4, 6, 9, 2], [3, 3, 3, 3]]
    assert found.counts.tolist() == [3, 4, 1]
    assert found.places is not None
    for choice in range(5):
        columns = found.places[:, choice]
        reached = choice < ladder.counts
        carried = found.tokens.gather(1, columns[:, None])[:, 0]
        assert torch.equal(carried[reached], ids[:, choice][reached])
    stronger = likeliest_first(ladder, ladder.counts, 2.0)  # 2 wins from strength .95 on
    assert stronger.tokens[1].tolist() == [4, 2, 6, 9]
    waiting = likeliest_first(ladder, torch.tensor([1, 5, 1]), 1.0)
    assert waiting.counts.tolist() == [1, 4, 1] and waiting.tokens[0].tolist() == [7, 7, 7, 7]
    assert (
        likeliest_first(
            Ladder(ids[:0], needs[:0], ladder.counts[:0], "top_k", 10.0), ladder.counts[:0], 1.0
        ).counts.numel()
        == 0
    )
