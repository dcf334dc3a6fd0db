"""Token weights from the policy alone; needs no marked text and no key.

For every token of a labelled text, an evaluator gives the strength at which the policy would mark it, (theta -
capacity) / theta. The mean over a token id is the expected mark there and, for marks that shift each token a little,
the optimal weight up to a factor (locally most powerful test). Rare ids are shrunk towards their class mean.
"""

from typing import Any

import numpy as np
import torch

from caw.capacity import strength_of
from caw.checks import require_number
from caw.detection.weight_estimates import KINDS, token_kinds
from caw.detection.weights import MOST, TokenWeights, levels_of
from caw.io.vocabulary import Vocabulary

EVIDENCE = 20.0  # tokens of its kind that a token id's own ones are averaged with


def strengths_of(capacity: np.ndarray, theta: float) -> np.ndarray:
    """Return (theta - capacity) / theta, at least 0, float64; capacity clamped as in the policy."""
    require_number("theta", theta, 0, 1, closed=True)
    if theta == 0:
        raise ValueError("theta must be above 0, got 0, which protects every token; use a theta above 0")
    return strength_of(torch.from_numpy(capacity.astype(np.float64)), theta, beta=1.0).numpy()


def expected_weights(
    ids: np.ndarray,
    strengths: np.ndarray,
    tokenizer: Any,
    vocab_size: int,
    provenance: dict[str, Any] | None = None,
) -> TokenWeights:
    """Build a table from the strength at which each token of some texts would be marked.

    ids: int64 [N] below vocab_size. strengths: float [N], at least 0.
    Raises ValueError where no token would be marked, and for ids out of range.
    """
    if ids.shape != strengths.shape or ids.ndim != 1 or not ids.size:
        raise ValueError(f"expected one strength per token, got {strengths.shape} for {ids.shape}; give both")
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise ValueError(f"token ids must be in [0, {vocab_size}), got {ids.min()} to {ids.max()}; check the tokenizer")
    kinds = token_kinds(tokenizer, vocab_size)
    counts = np.bincount(ids, minlength=vocab_size)
    sums = np.bincount(ids, weights=strengths, minlength=vocab_size)
    per_kind = np.bincount(kinds, weights=counts, minlength=len(KINDS))
    overall = strengths.mean()
    of_kind = (np.bincount(kinds, weights=sums, minlength=len(KINDS)) + EVIDENCE * overall) / (per_kind + EVIDENCE)
    means = (sums + EVIDENCE * of_kind[kinds]) / (counts + EVIDENCE)
    levels = levels_of(means)
    about: dict[str, Any] = {
        "key_ids": [],
        "tokens": len(ids),
        "mean_strength_by_kind": {n: round(float(of_kind[k]), 4) for k, n in enumerate(KINDS) if per_kind[k]},
    }
    default = max(1, int(np.rint(np.average(levels, weights=counts))))
    about.update(provenance or {})
    return TokenWeights(levels, min(default, MOST), about, vocabulary=Vocabulary.of(tokenizer))
