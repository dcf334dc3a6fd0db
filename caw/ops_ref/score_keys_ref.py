"""Reference of `score_keys`: what the evidence of one text scores in all under each of many keys."""

import torch

from caw import prf
from caw.op_indices import RACE_TOP_K, SELFHASH

AT_ONCE = 1 << 18  # words worked out together; bounds memory to some tens of MB


def score_keys_ref(
    contexts: torch.Tensor, tokens: torch.Tensor, keys: torch.Tensor, scheme: int, threshold: int
) -> torch.Tensor:
    """Sums float64 [m]: how many tokens are green, or of -log(1 - F), under each key.

    Args:
        contexts: int64 [n, W], the tokens before each piece of evidence, -1 where there are none. tokens: int64 [n].
        keys: int64 [m], 64 bits each. scheme, threshold: see `caw.watermarks.base.Native`.

    Everything given counts: a caller leaves repeated evidence out. Raises ValueError for selfhash, whose evidence is
    another under each key.
    """
    if scheme == SELFHASH:
        raise ValueError("scheme must be 0, 2 or 3, got 1; selfhash has other evidence under each key")
    sums = []
    for some in keys.split(max(1, AT_ONCE // max(1, len(tokens)))):
        state = prf.absorb_context(some[:, None], [c[None] for c in contexts.unbind(1)])
        words = prf.token_word(some[:, None], state, tokens[None])
        if scheme >= RACE_TOP_K:
            sums.append(-torch.log1p(-prf.uniform(words)).sum(1))
        else:
            sums.append(prf.below(words, threshold).sum(1).double())
    return torch.cat(sums) if sums else keys.new_empty(0, dtype=torch.float64)
