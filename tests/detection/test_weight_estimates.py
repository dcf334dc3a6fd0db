"""Weights estimated from marked texts: pulled towards their kind, by the prior that predicts other keys."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from tiny import tiny_tokenizer

from caw.detection.weight_estimates import (
    KINDS,
    PRIOR,
    PRIORS,
    choose_prior,
    estimate_weights,
    information,
    kind_of,
    means_of,
    weights_by_kind,
)
from caw.detection.weights import TokenWeights, levels_of
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, Watermark


def test_kinds_of_tokens() -> None:
    tokens = {" 12": "digits", "+": "operators", " $": "operators", ".": "punctuation", "\n": "space", " John": "name",
              " word": "word", "ing": "inside a word", "2nd": "other"}  # fmt: skip
    assert {t: KINDS[kind_of(t)] for t in tokens} == tokens


def test_estimates_are_pulled_towards_their_kind() -> None:
    kinds = np.array([0, 0, 1, 1])
    sums, counts = np.array([900.0, 0, 25, 0]), np.array([1000.0, 0, 100, 0])
    means = means_of(sums, counts, kinds, prior=20)
    overall = 925 / 1100
    first, second = (900 + 20 * overall) / 1020, (25 + 20 * overall) / 120
    assert_close(means, [(900 + 20 * first) / 1020, first, (25 + 20 * second) / 120, second], "float64")
    log_odds = special.logit(means) - special.logit(0.25)
    assert_close(information(means, KGW(key=1)), np.maximum(log_odds, 0), "float64")
    assert_close(information(np.array([1.5, 1.0, 0.5]), EXP(key=1)), [1 / 3, 0, 0], "float64")
    assert levels_of(np.array([0.1, 1.0, 2.0])).tolist() == [1, 8, 15]


def test_a_table_from_marked_texts() -> None:
    tokenizer = tiny_tokenizer()
    rng = np.random.default_rng(0)
    digits = [i for i in range(len(tokenizer)) if tokenizer.decode([i]).strip().isdigit()]
    texts: dict[Watermark, list[Any]] = {}
    for key in (3, 4):
        watermark = KGW(key=key)
        ids = [5]
        while len(ids) < 1500:
            if rng.random() < 0.3:
                ids.append(int(rng.choice(digits)))
                continue
            options = rng.integers(0, len(tokenizer), 4).tolist()
            scores = [float(watermark.score_tokens(torch.tensor([ids[-1], o])).values[1]) for o in options]
            ids.append(options[int(np.argmax(scores))])
        texts[watermark] = [ids]
    weights = estimate_weights(texts, tokenizer, len(tokenizer))
    assert weights.levels[digits].mean() < 0.4 * weights.levels.mean()
    assert weights.provenance["key_ids"] == sorted(w.key_id for w in texts)
    other = weights_by_kind(weights, tokenizer)
    assert len(np.unique(other.levels)) <= len(KINDS) and other.levels[digits].mean() < other.levels.mean()
    assert other.provenance["key_ids"] == weights.provenance["key_ids"]
    with pytest.raises(ValueError, match="without means by kind"):
        weights_by_kind(TokenWeights(np.array([1]), 3, {}), tokenizer)
    with pytest.raises(ValueError, match="all texts must have one watermark and gamma"):
        estimate_weights({KGW(key=1): [[1, 2]], KGW(key=1, gamma=0.5): [[1, 2]]}, tokenizer, 10)
    with pytest.raises(ValueError, match="got none; give longer texts"):
        estimate_weights({KGW(key=1): [[]]}, tokenizer, 10)


def test_the_prior_is_the_one_that_predicts_the_other_keys() -> None:
    """Ids that differ within a kind ask for a small prior, ids that do not for a great one."""
    rng = np.random.default_rng(0)
    kinds, counts = np.zeros(200, dtype=np.int64), np.full((3, 200), 40.0)
    for spread, expected in ((0.25, PRIORS[:2]), (0.0, PRIORS[-1:])):
        shares = np.clip(0.5 + spread * rng.standard_normal(200), 0.05, 0.95)
        sums = rng.binomial(40, shares, (3, 200)).astype(float)
        assert choose_prior(sums, counts, kinds, KGW(key=1)) in expected
    assert choose_prior(sums[:1], counts[:1], kinds, KGW(key=1)) == PRIOR
