"""Under sampling: chi-square tests against closed forms, false-alarm rate 1e-6, vocabularies below the record."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from caw.record import Record
from caw.watermarks import EXP, KGW, Position, Unigram, Watermark

FALSE_ALARM = 1e-6
DRAWS = 30_000
LOGITS = torch.tensor([2.0, 1.5, 1.5, 0.0, -torch.inf, -0.5, 1.0, -2.0, 0.3])
PROBS = LOGITS.double().softmax(0).numpy()


def sampled(watermark: Watermark, *, fresh_contexts: bool) -> Position:
    scores = LOGITS.expand(DRAWS, -1)
    choice = scores - torch.log(-torch.log(torch.rand(scores.shape, dtype=torch.float64))).float()
    record = Record.from_logits(choice, k=len(LOGITS) + 1)  # one column of padding
    context = torch.full((DRAWS, watermark.window), 7)
    if fresh_contexts and watermark.window:
        context[:, -1] = torch.arange(DRAWS)
    return Position(record, scores.gather(1, record.ids.clamp_min(0)), choice, context)


def tokens(watermark: Watermark, at: Position, strength: float) -> np.ndarray:
    ladder = watermark.ladder(at, max(strength, 1.0))
    index = ladder.select(torch.full((DRAWS,), strength))
    return ladder.candidates.gather(1, index[:, None])[:, 0].numpy()


def fits(observed: np.ndarray, probs: np.ndarray) -> bool:
    counts = np.bincount(observed, minlength=len(probs))
    possible = probs > 0
    assert counts[~possible].sum() == 0, "a token of probability 0 was chosen"
    return stats.chisquare(counts[possible], DRAWS * probs[possible]).pvalue > FALSE_ALARM


ALL = {
    "lefthash": KGW(key=5),
    "selfhash": KGW(key=5, seeding="selfhash"),
    "unigram": Unigram(key=6),
    "top_k": EXP(key=5, top_k=4),
    "scale": EXP(key=5, strength="scale"),
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("fresh_contexts", [False, True], ids=["one context", "fresh contexts"])
def test_strength_zero_is_the_model_itself(name: str, fresh_contexts: bool) -> None:
    at = sampled(ALL[name], fresh_contexts=fresh_contexts)
    observed = tokens(ALL[name], at, 0.0)
    assert np.array_equal(observed, at.record.ids[:, 0].numpy())
    assert fits(observed, PROBS)


@pytest.mark.parametrize("strength", [0.25, 1.0, 1.5])
@pytest.mark.parametrize("build", [KGW, Unigram, lambda **k: KGW(seeding="selfhash", **k)], ids=["left", "uni", "self"])
def test_every_strength_of_a_green_list_is_the_biased_softmax(build: Any, strength: float) -> None:
    watermark = build(key=8, gamma=0.4, delta=1.5)
    at = sampled(watermark, fresh_contexts=False)
    green = watermark.green_vocabulary(at.context[:1], len(LOGITS))[0]
    assert 0 < int(green.sum()) < len(LOGITS)
    biased = (LOGITS.double() + strength * 1.5 * green).softmax(0).numpy()
    observed = tokens(watermark, at, strength)
    assert fits(observed, biased)
    assert not fits(observed, PROBS)  # the test can tell


@pytest.mark.parametrize("watermark", [EXP(key=5, strength="scale"), EXP(key=5, top_k=9), EXP(key=5, top_k=20)])
def test_full_race_has_the_models_marginal_over_contexts(watermark: EXP) -> None:
    """The Gumbel watermark does not distort: over contexts its winner is a draw from the model."""
    assert fits(tokens(watermark, sampled(watermark, fresh_contexts=True), 1.0), PROBS)


@pytest.mark.parametrize("watermark", [EXP(key=5, strength="scale"), EXP(key=5, top_k=9)])
def test_full_race_of_one_context_ignores_the_sampling_noise(watermark: EXP) -> None:
    at = sampled(watermark, fresh_contexts=False)
    winners = np.unique(tokens(watermark, at, 1.0))
    assert len(winners) == 1
    assert len(np.unique(tokens(watermark, at, 0.0))) == int((PROBS > 0).sum())


def cut_off_marginal(length: int) -> np.ndarray:
    """Exact: the first `length` of a Plackett-Luce ranking race with their own, unperturbed probabilities."""
    out = np.zeros(len(PROBS))
    for ranking in permutations(np.flatnonzero(PROBS), length):
        chance, left = 1.0, 1.0
        for token in ranking:
            chance *= PROBS[token] / left
            left -= PROBS[token]
        members = list(ranking)
        out[members] += chance * PROBS[members] / PROBS[members].sum()
    return out


@pytest.mark.parametrize("length", [1, 2, 3])
def test_cut_off_race_over_contexts(length: int) -> None:
    watermark = EXP(key=9, top_k=length)
    expected = cut_off_marginal(length)
    assert abs(expected.sum() - 1) < 1e-12
    assert fits(tokens(watermark, sampled(watermark, fresh_contexts=True), 1.0), expected)
