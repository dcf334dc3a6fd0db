"""Reference of `score_tokens`: what the tokens of texts in a native format score, each under a key of its own."""

import torch

from caw import prf
from caw.op_indices import RACE_TOP_K, SELFHASH

MISSING = -1


def score_tokens_ref(
    tokens: torch.Tensor, window: int, key: torch.Tensor, scheme: int, threshold: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values float64 [n] (1 for green tokens, else 0; -log(1 - F) for races), and the seeds of selfhash.

    Args:
        tokens: int64 [n], texts with `window` missing tokens (-1) between them. window: W, tokens of a context.
        key: int64 [n], the 64 bits of each token's key. scheme, threshold: see `caw.watermarks.base.Native`.

    Returns:
        (values, seeds int64 [n], or [0] for other schemes than selfhash).
    """
    padded = torch.cat([tokens.new_full((window,), MISSING), tokens])
    contexts = padded.unfold(0, window, 1)[: tokens.shape[0]] if window else tokens.new_empty(tokens.shape[0], 0)
    keys, ids, seeds = key[:, None], tokens[:, None], tokens.new_empty(0)
    if scheme == SELFHASH:
        anchors = prf.anchored_seeds(keys, contexts, ids)
        seeds, words = anchors[:, 0], prf.seeded_words(keys, anchors, ids)
    else:
        words = prf.context_words(keys, contexts, ids)
    words = words[:, 0]
    if scheme >= RACE_TOP_K:  # both races
        return -torch.log1p(-prf.uniform(words)), seeds
    return prf.below(words, threshold).double(), seeds
