"""Marked streams without a model have the mean that theory says; each test has false-alarm rate 1e-6."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import special

from caw.detection import detect
from caw.record import Record
from caw.watermarks import EXP, KGW, Position, Unigram, Watermark

STANDARD_ERRORS = 4.9
STREAMS, LENGTH, VOCABULARY = 60, 50, 80


def logits_at(step: int) -> torch.Tensor:
    """The distribution of one position, the same in every stream; from nearly certain to nearly uniform."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(VOCABULARY, generator=generator) * (0.5 + step % 5)


def draw(watermark: Watermark, strength: float, sampling: bool, rows: list[Any] | None = None) -> torch.Tensor:
    """Token streams int64 [STREAMS, LENGTH]; `rows` collects each step's contexts."""
    ids = torch.full((STREAMS, watermark.window), -1)
    for step in range(LENGTH):
        scores = logits_at(step).expand(STREAMS, -1)
        choice = scores
        if sampling or step == 0:  # different first tokens, or all greedy streams would be one
            choice = scores - torch.log(-torch.log(torch.rand(scores.shape, dtype=torch.float64))).float()
        record = Record.from_logits(choice, k=VOCABULARY)
        context = ids[:, ids.shape[1] - watermark.window :]
        if rows is not None:
            rows.append(context)
        ladder = watermark.ladder(Position(record, scores.gather(1, record.ids), choice, context), strength)
        index = ladder.select(torch.full((STREAMS,), 0.0 if step == 0 else strength))
        ids = torch.cat([ids, ladder.candidates.gather(1, index[:, None])], dim=1)
    return ids[:, watermark.window :]


def racing_share(watermark: EXP, step: int, strength: float) -> np.ndarray:
    """Probabilities of those that race at a position: all (scale 1), or the likeliest, renormalised (greedy top_k)."""
    probs = logits_at(step).double().softmax(0).sort(descending=True).values.numpy()
    if watermark.strength == "top_k":
        probs = probs[: int(strength * watermark.top_k)]
    return probs / probs.sum()


def expected_race_score(probs: np.ndarray) -> float:
    """E[-log(1 - u of the winner)]: u = M^p with M uniform; sum over winners of p * H(1/p), H the harmonic number."""
    return float((probs * (special.digamma(1 + 1 / probs) + np.euler_gamma)).sum())


@pytest.mark.parametrize(
    "watermark, strength, sampling",
    [
        (EXP(key=3, strength="scale"), 1.0, False),
        (EXP(key=3, strength="scale"), 1.0, True),
        (EXP(key=3, top_k=80), 1.0, False),
        (EXP(key=3, top_k=80), 1.0, True),
        # sampled, the racing set of a shorter list is random; test_marginals has its closed form
        (EXP(key=3, top_k=10), 1.0, False),
        (EXP(key=3, top_k=10), 0.3, False),
    ],
)
def test_race_score(watermark: EXP, strength: float, sampling: bool) -> None:
    texts = draw(watermark, strength, sampling)
    observed, expected = [], []
    for result in detect(texts.tolist(), None, watermark):
        for step, score in enumerate(result.token_scores):
            # step 0 is drawn unmarked; a context that occurred before does not count
            if step and score is not None:
                observed.append(score)
                expected.append(expected_race_score(racing_share(watermark, step, strength)))
    difference = np.array(observed) - np.array(expected)
    assert len(difference) > 2000
    assert abs(difference.mean()) < STANDARD_ERRORS * difference.std() / len(difference) ** 0.5
    assert np.mean(observed) > 1.1  # unmarked text has mean 1


@pytest.mark.parametrize("strength", [0.5, 1.0])
@pytest.mark.parametrize("watermark", [
    KGW(key=4, delta=2.0), KGW(key=4, seeding="selfhash", gamma=0.5), Unigram(key=4, gamma=0.4, delta=1.0),
], ids=["lefthash", "selfhash", "unigram"])  # fmt: skip
def test_green_count(watermark: Any, strength: float) -> None:
    """Each drawn token is green with the biased softmax's green mass, given the list at its position."""
    contexts: list[torch.Tensor] = []
    texts = draw(watermark, strength, sampling=True, rows=contexts)
    greens = [result.token_scores for result in detect(texts.tolist(), None, watermark, mode="compat")]
    expected = np.empty((STREAMS, LENGTH))
    for step, context in enumerate(contexts):
        green = watermark.green_vocabulary(context, VOCABULARY)
        bias = watermark.delta * (0.0 if step == 0 else strength)
        probs = (logits_at(step).double() + bias * green).softmax(-1)
        expected[:, step] = torch.where(green, probs, 0.0).sum(-1).numpy()
    deviation = np.sqrt((expected * (1 - expected)).sum())
    assert abs(np.sum(np.array(greens, dtype=float) - expected)) < STANDARD_ERRORS * deviation
    assert expected.mean() > watermark.gamma + 0.05
