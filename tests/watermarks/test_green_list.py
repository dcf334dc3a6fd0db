"""KGW's and Unigram's ladder against the biased argmax itself, strength by strength, over whole vocabularies."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from pairwise import pairwise

from caw.ladder import Ladder
from caw.record import RECORD_SIZE, Record
from caw.testing import margin
from caw.watermarks import KGW, Position, TokenScores, Unigram, green_list
from caw.watermarks.green_list import GreenList


@dataclass(frozen=True)
class MaskList(GreenList):
    mask: tuple[bool, ...] = ()

    @property
    def window(self) -> int:
        return 0

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.mask)[tokens.clamp_min(0)]

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        return torch.tensor(self.mask).expand(context.shape[0], -1)

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        raise NotImplementedError


def position(scores: torch.Tensor, window: int) -> Position:
    record = Record.from_logits(scores)
    return Position(record, record.values, scores, torch.randint(-1, 1000, (len(scores), window)))


def strengths(record: Record, ladder: Ladder, greatest: float) -> np.ndarray:
    """float32 [S]: an even grid on [0, greatest] and every row's own turning point with three neighbours each side."""
    found = [np.linspace(0, greatest, 65, dtype=np.float32)]
    if ladder.full > 0:
        gap = record.values[:, 0] - torch.where(ladder.needs[:, 1] > -torch.inf, ladder.needs[:, 1], 0)
        x = (gap / ladder.full).numpy().astype(np.float32)
        for step in (-np.inf, np.inf):
            y = x
            for _ in range(4):
                found.append(y)
                y = np.nextafter(y, np.float32(step))
    grid = np.unique(np.concatenate(found))
    return grid[np.isfinite(grid) & (grid >= 0) & (grid <= np.float32(greatest))]


def compare(watermark: GreenList, scores: torch.Tensor, greatest: float) -> tuple[int, int]:
    """(choices compared, choices that differ because float32 rounds two biased logits to one); fails on any other."""
    at = position(scores, watermark.window)
    ladder = watermark.ladder(at, greatest)
    check_counts(ladder, greatest)
    green = watermark.green_vocabulary(at.context, scores.shape[1])
    merged = 0
    grid = strengths(at.record, ladder, greatest)
    for strength in grid:
        bias = float(np.float32(strength) * np.float32(watermark.delta))
        biased = scores.float() + green * torch.tensor(bias, dtype=torch.float32)
        best = biased.max(dim=1, keepdim=True).values
        expected = (biased == best).int().argmax(dim=1)  # the smaller id of equals
        index = ladder.select(torch.full((len(scores),), float(strength)))
        got = ladder.candidates.gather(1, index[:, None])[:, 0]
        for row in (got != expected).nonzero()[:, 0].tolist():
            a, b = int(got[row]), int(expected[row])
            gap = abs(float(scores[row, a]) - float(scores[row, b]))
            assert green[row, a] and green[row, b] and biased[row, a] == biased[row, b], (row, strength)
            assert 0 < gap <= margin("margin/logit", float(best[row]))
            merged += 1
    return len(grid) * len(scores), merged


def check_counts(ladder: Ladder, greatest: float) -> None:
    last = ladder.select(torch.full((len(ladder.counts),), greatest))
    assert torch.equal(last, ladder.counts - 1)
    assert torch.equal(ladder.select(torch.zeros(len(ladder.counts))), torch.zeros_like(ladder.counts))
    differ = ladder.candidates[:, 0] != ladder.candidates[:, 1]
    assert torch.equal(differ, ladder.counts == 2)


BUILDERS = {
    "lefthash": lambda **k: KGW(key=11, **k),
    "lefthash5": lambda **k: KGW(key=11, context_width=5, **k),
    "selfhash": lambda **k: KGW(key=11, seeding="selfhash", **k),
    "unigram": lambda **k: Unigram(key=12, **k),
}


@pytest.mark.parametrize("name, vocab_size, greatest", pairwise(BUILDERS, [1, 2, 37, 101, 1009], [0.0, 0.35, 2.5]))
def test_random_logits(name: str, vocab_size: int, greatest: float) -> None:
    watermark = BUILDERS[name](delta=3.3)
    compared, merged = compare(watermark, torch.randn(13, vocab_size) * 3, greatest)
    assert merged <= compared // 1000  # about one in a million is to be expected


@pytest.mark.parametrize("name, delta", zip(BUILDERS, [3.3, 0.5, 2.0, 0.0], strict=True))
def test_bfloat16_logits_with_many_exact_ties(name: str, delta: float) -> None:
    scores = (torch.randn(29, 307) * 2).bfloat16().float()
    assert any(len(row.unique()) < len(row) for row in scores)
    _, merged = compare(BUILDERS[name](delta=delta, gamma=0.4), scores, 2.0)
    assert merged == 0  # sums of bfloat16 values and one float32 bias stay apart


@pytest.mark.parametrize("name", BUILDERS)
def test_integer_logits_meet_the_original_exactly(name: str) -> None:
    """delta 2, strength 1 and logits that are integers: the biased token often equals the original's logit."""
    _, merged = compare(BUILDERS[name](delta=2.0, gamma=0.3), torch.randint(-3, 4, (61, 23)).float(), 1.0)
    assert merged == 0


@pytest.mark.parametrize("name", BUILDERS)
def test_masked_vocabularies(name: str) -> None:
    """-inf entries, as warpers make them: some, all but one, all but fewer than the record holds."""
    scores = torch.randn(12, 150) * 2
    scores[:4, ::3] = -torch.inf
    scores[4:8, 1:] = -torch.inf
    scores[8:, 20:] = -torch.inf
    watermark = BUILDERS[name](delta=5.0)
    compare(watermark, scores, 1.5)
    ladder = watermark.ladder(position(scores, watermark.window), 1.5)
    assert ladder.counts[4:8].tolist() == [1] * 4
    rows = torch.arange(12)[:, None].expand_as(ladder.candidates)
    assert bool((scores[rows, ladder.candidates] > -torch.inf).all())


VOCABULARY = 400
MASKS = {
    "all green": lambda i: True,
    "none green": lambda i: False,
    "only the least likely": lambda i: i == VOCABULARY - 1,
    "just below the record": lambda i: i == RECORD_SIZE,
    "last of the record": lambda i: i == RECORD_SIZE - 1,
    "the likeliest": lambda i: i == 0,
    "beyond the record": lambda i: i >= RECORD_SIZE,
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("slope", [0.0, 0.01, 0.02])
def test_forced_green_lists(name: str, slope: float) -> None:
    """Logits fall by `slope` a rank (0: all tie), so a green token beyond the record can still win, or cannot."""
    scores = -slope * torch.arange(VOCABULARY).float()[None]
    mask = tuple(bool(MASKS[name](i)) for i in range(VOCABULARY))
    _, merged = compare(MaskList(key=1, mask=mask, delta=2.0), scores, 1.5)
    assert merged == 0


@pytest.mark.parametrize("green, delta, count", [(100, 1.0, 2), (100, 0.99, 1), (399, 3.99, 2), (399, 3.98, 1)])
def test_the_whole_vocabulary_is_scanned_exactly_when_a_token_beyond_the_record_can_win(
    green: int, delta: float, count: int
) -> None:
    """Ranks fall by 0.01 and ids run backwards, so that the green token wins its exact tie."""
    order = torch.arange(VOCABULARY).flip(0)
    scores = torch.empty(1, VOCABULARY)
    scores[0, order] = -torch.arange(VOCABULARY).double().div(100).float()
    mask = [False] * VOCABULARY
    mask[int(order[green])] = True
    watermark = MaskList(key=1, mask=tuple(mask), delta=delta)
    ladder = watermark.ladder(position(scores, 0), 1.0)
    assert int(ladder.counts[0]) == count
    if count == 2:
        assert int(ladder.candidates[0, 1]) == int(order[green])


def test_the_scan_takes_the_smaller_id_among_equals_and_skips_masked_tokens() -> None:
    scores = torch.zeros(1, 300)
    scores[0, 200:] = -1.0
    scores[0, 250] = -torch.inf
    mask = tuple(i in (250, 260, 299) for i in range(300))
    ladder = MaskList(key=1, mask=mask, delta=2.0).ladder(position(scores, 0), 1.0)
    assert ladder.candidates.tolist() == [[0, 260]]


def test_the_scan_changes_only_the_rows_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.stack([-0.01 * torch.arange(300.0), -torch.arange(300.0)])  # row 1: beyond reach
    watermark = MaskList(key=1, mask=tuple(i == 150 for i in range(300)), delta=2.0)
    scanned: list[Any] = []
    original = green_list.greatest_green
    noted = lambda found, green: scanned.append(found) or original(found, green)  # noqa: E731
    monkeypatch.setattr(green_list, "greatest_green", noted)
    ladder = watermark.ladder(position(scores, 0), 1.0)
    assert len(scanned) == 1 and torch.equal(scanned[0], scores[:1])
    assert ladder.counts.tolist() == [2, 1]
    watermark.ladder(position(scores[1:], 0), 1.0)
    assert len(scanned) == 1
