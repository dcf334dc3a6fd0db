"""Reference of `tournament`: who wins after each layer of SynthID's tournament sampling."""

from functools import partial

import torch

from caw.tournament import MULTIPLIER, ngram_hashes, winners_of


def tournament_ref(
    warped: torch.Tensor,
    scores: torch.Tensor,
    first: torch.Tensor,
    context: torch.Tensor,
    table: torch.Tensor,
    layers: int,
) -> torch.Tensor:
    """Return the winners int64 [B, m] after 1, ..., m = `layers` layers (`winners_of`).

    Args:
        warped: float32 [B, V], what the sampler keeps, -inf = excluded. scores: float32 [B, V], the same plus sampling
            noise. first: int64 [B], the winners before the first layer. context: int64 [B, W], -1 = no token.
        table: int32 or int64 [size], a power of two: the bits of 32 or 64 layers (`layered_table`).
    """
    hashes = ngram_hashes(context, torch.arange(warped.shape[1], device=warped.device)[None])
    patterns = table[(hashes * MULTIPLIER) & (table.shape[0] - 1)]
    return winners_of(warped, scores, first, [partial(_bits, patterns, layer) for layer in range(layers)])


def _bits(patterns: torch.Tensor, layer: int) -> torch.Tensor:
    return (patterns >> layer) & 1
