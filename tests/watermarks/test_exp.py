"""EXP's ladders against the race itself: cut off at every length, or run at every noise scale."""

import math
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pairwise import pairwise

from caw.ladder import Ladder
from caw.record import RECORD_SIZE, Record
from caw.testing import margin
from caw.watermarks import EXP, Position

plain = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("make_golden.py"))))


def noise_of(watermark: EXP, context: list[int], vocab_size: int) -> np.ndarray:
    assert isinstance(watermark.key, int)
    numerators = [(plain.word(watermark.key, context, t) >> 8) + 1 for t in range(vocab_size)]
    return np.array([-math.log(-math.log(float(np.float32(n / (2**24 + 1))))) for n in numerators])


def greedy(scores: torch.Tensor, window: int, sampling_noise: torch.Tensor | None = None) -> Position:
    choice = scores if sampling_noise is None else scores + sampling_noise
    record = Record.from_logits(choice)
    race = scores.gather(1, record.ids.clamp_min(0))
    return Position(record, race, choice, torch.randint(-1, 1000, (len(scores), window)))


def race_values(scores: torch.Tensor, noise: np.ndarray) -> np.ndarray:
    return torch.log_softmax(scores.double(), dim=-1).numpy() + noise


def by_likelihood(values: torch.Tensor) -> list[int]:
    """Ids by descending value, ties to the smaller id, without masked ones."""
    row = values.tolist()
    return sorted((i for i in range(len(row)) if row[i] > -math.inf), key=lambda i: (-row[i], i))


def strengths(ladder: Ladder, points: list[float], greatest: float) -> list[float]:
    """float32 in [0, greatest]: an even grid, and each turning point with two neighbours on each side."""
    found = set(np.linspace(0, greatest, 49, dtype=np.float32).tolist())
    for point in points:
        for step in (-np.inf, np.inf):
            x = np.float32(point)
            for _ in range(3):
                found.add(float(x))
                x = np.nextafter(x, np.float32(step))
    # a strength below 1e-30 is lost in the reference's own sum; test_ladder_ref has them in exact arithmetic
    return sorted(s for s in found if s == 0 or 1e-30 < s <= float(np.float32(greatest)))


def choices(ladder: Ladder, row: int, grid: list[float]) -> list[int]:
    """The token that one row of the ladder gives at each strength; the row is repeated once a strength."""
    size = len(grid)
    repeated = Ladder(
        ladder.candidates[row].expand(size, -1), ladder.needs[row].expand(size, -1), ladder.counts[row].expand(size),
        ladder.rule, ladder.full,
    )  # fmt: skip
    index = repeated.select(torch.tensor(grid))
    assert bool((index.diff() >= 0).all()) and int(index[0]) == 0
    return ladder.candidates[row, index].tolist()


def check_row(ladder: Ladder, row: int, greatest: float) -> None:
    count = int(ladder.counts[row])
    candidates = ladder.candidates[row, :count].tolist()
    assert len(set(candidates)) == count
    assert int(ladder.select(torch.full((len(ladder.counts),), greatest))[row]) == count - 1


def same_unless_near(got: int, expected: int, values: dict[int, float]) -> bool:
    """Whether two winners are one, or so near that rounding elsewhere decides. True = exactly one; near ones count."""
    if got == expected:
        return True
    assert abs(values[got] - values[expected]) <= margin("margin/race", max(1.0, abs(values[expected]))), (
        got,
        expected,
    )
    return False


SHAPES = [(1, 1), (1, 10), (2, 2), (7, 10), (37, 100), (100, 7), (101, 10), (307, 33), (307, 100)]
KINDS = ["random", "bfloat16", "ties", "equal", "masked"]


def logits_of(kind: str, rows: int, vocab_size: int) -> torch.Tensor:
    scores = torch.randn(rows, vocab_size) * 2
    if kind == "bfloat16":
        return scores.bfloat16().float()
    if kind == "ties":
        return torch.randint(-1, 2, (rows, vocab_size)).float()
    if kind == "equal":
        return torch.zeros(rows, vocab_size)
    if kind == "masked":
        scores[:, 1 :: 2 if vocab_size < 20 else 3] = -torch.inf
        scores[0, min(5, vocab_size) :] = -torch.inf
    return scores


@pytest.mark.parametrize("shape, kind, sampling", pairwise(SHAPES, KINDS, [False, True]))
def test_top_k_ladder_is_the_cut_off_race(shape: tuple[int, int], kind: str, sampling: bool) -> None:
    """Ordered by the (perturbed) choice logits, raced with the unperturbed probabilities."""
    vocab_size, top_k = shape
    watermark = EXP(key=2**63 + 11, top_k=top_k, context_width=3)
    greatest = 1.0 if top_k > 50 else 1.5
    scores = logits_of(kind, 4, vocab_size)
    at = greedy(scores, 3, -torch.log(-torch.log(torch.rand_like(scores))) if sampling else None)
    ladder = watermark.ladder(at, greatest)
    grid = strengths(ladder, [(2 * r - 1) / (2 * top_k) for r in range(1, min(top_k, 8))], greatest)
    differing = 0
    for row in range(4):
        check_row(ladder, row, greatest)
        values = race_values(scores[row], noise_of(watermark, at.context[row].tolist(), vocab_size))
        order = by_likelihood(at.scores[row])
        for strength, got in zip(grid, choices(ladder, row, grid), strict=True):
            length = sum(np.float32(2) * np.float32(strength) * np.float32(top_k) > 2 * r - 1 for r in range(1, 200))
            racing = order[: min(max(1, length), RECORD_SIZE)]
            winner = min(racing, key=lambda t: (-values[t], t))
            differing += not same_unless_near(got, winner, {t: values[t] for t in racing})
    assert differing == 0


@pytest.mark.parametrize("kind, vocab_size, greatest, sampling",
                         pairwise(KINDS, [1, 7, 100, 307], [0.0, 0.4, 3.0], [False, True]))  # fmt: skip
def test_scale_ladder_is_the_scaled_race(kind: str, vocab_size: int, greatest: float, sampling: bool) -> None:
    """argmax of start + strength * (race - start) over the record; greedy: log p + strength * Gumbel."""
    watermark = EXP(key=42, strength="scale", context_width=2)
    scores = logits_of(kind, 3, vocab_size)
    at = greedy(scores, 2, -torch.log(-torch.log(torch.rand_like(scores))) if sampling else None)
    ladder = watermark.ladder(at, greatest)
    for row in range(3):
        check_row(ladder, row, greatest)
        count = int(ladder.counts[row])
        grid = strengths(ladder, ladder.needs[row, 1:count].tolist(), greatest)
        racing = by_likelihood(at.scores[row])[:RECORD_SIZE]
        start = at.scores[row, racing].double().numpy()
        noise = noise_of(watermark, at.context[row].tolist(), vocab_size)[racing]
        slope = scores[row, racing].double().numpy() - start + noise
        for strength, got in zip(grid, choices(ladder, row, grid), strict=True):
            values = dict(zip(racing, (start + strength * slope).tolist(), strict=True))
            winner = min(racing, key=lambda t: (-values[t], t))
            # at a turning point's own float32 neighbours the gap is of the order of one rounding: `near` is allowed
            # there and nowhere else
            if not same_unless_near(got, winner, values):
                assert np.float32(strength) in ladder.needs[row, 1:count].numpy()
