"""Weights from the policy alone follow the strength that each token would get."""

import numpy as np
import pytest
from tiny import tiny_tokenizer

from caw.detection.weight_estimates import KINDS, token_kinds
from caw.detection.weights import MOST
from caw.watermarks import KGW
from caw_lab.training.expected_weights import expected_weights, strengths_of


def test_expected_weights_follow_the_strength_that_each_token_would_get() -> None:
    tokenizer = tiny_tokenizer()
    size = len(tokenizer)
    kinds = token_kinds(tokenizer, size)
    digits = np.flatnonzero(kinds == KINDS.index("digits"))
    words = np.flatnonzero(kinds != KINDS.index("digits"))
    ids = np.concatenate([np.repeat(digits, 50), np.repeat(words[:5], 400)])
    capacity = np.where(np.isin(ids, digits), 0.99, 0.1)
    capacity[ids == words[0]] = 0.45
    weights = expected_weights(ids, strengths_of(capacity, 0.9), tokenizer, size)
    assert weights.levels[words[1]] == MOST and weights.levels[digits].max() <= 1
    # strengths 0.5 and 8 / 9, each pulled a little towards the mean of its kind
    assert weights.levels[words[0]] == pytest.approx(MOST * 0.5 / (8 / 9), abs=1)
    assert weights.provenance["key_ids"] == []
    unseen = [i for i in words[5:] if kinds[i] == kinds[words[1]]]
    assert unseen and weights.levels[unseen].min() >= 10  # as the others of its kind
    weights.check_for(KGW(key=3))


@pytest.mark.parametrize(("ids", "theta", "message"), [
    ([0, 1], 0.0, "theta must be above 0"), ([0, 700], 0.5, "must be in"), ([], 0.5, "one strength per token"),
])  # fmt: skip
def test_expected_weights_refuse(ids: list[int], theta: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expected_weights(
            np.array(ids, dtype=np.int64), strengths_of(np.full(len(ids), 0.1), theta), tiny_tokenizer(), 9
        )
