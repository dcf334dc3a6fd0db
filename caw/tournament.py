"""SynthID's tournament (Dathathri et al. 2024, as transformers writes it): tokens' bits by layer, and winners."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from caw.arrays import clamped, columns, space_of, torch

MULTIPLIER, INCREMENT = 6364136223846793005, 1


def ngram_hashes(context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the hash of each n-gram, wrapping int64 [B, N]: context int64 [B, W] (missing = 0), tokens [B, N]."""
    state = space_of(context).ones_like((context if context.shape[1] else tokens)[:, 0])
    for column in columns(clamped(context)):
        state = (state + column) * MULTIPLIER + INCREMENT
    return (state[:, None] + tokens) * MULTIPLIER + INCREMENT


def places(hashes: torch.Tensor, key: int, size: int) -> torch.Tensor:
    """Return where a layer's key reads the table of `size` bits, int64 like `hashes`."""
    index = hashes + key  # a copy, which the rest changes in place
    index *= MULTIPLIER
    index += INCREMENT
    # the remainder of a power of two in two's complement
    return index & (size - 1) if size & (size - 1) == 0 else index % size


def layered_table(bits: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
    """Return the bits of all layers in one table: bit l of entry j is that of layer l for hashes of hash * a = j.

    bits: int64 [size], a power of two. The result is int32 [size] for at most 32 layers, else int64.
    """
    (size,) = bits.shape
    index = torch.arange(size, device=bits.device)
    table = torch.zeros_like(bits)
    for layer, key in enumerate(keys):
        shift = (key * MULTIPLIER + INCREMENT) % size
        table |= bits[(index + shift) & (size - 1)] << layer
    return table.to(torch.int32) if len(keys) <= 32 else table


def winners_of(
    warped: torch.Tensor, scores: torch.Tensor, first: torch.Tensor, bits: Sequence[Callable[[], torch.Tensor]]
) -> torch.Tensor:
    """Return the winners int64 [B, m] of layers whose bits, int [B, V], the functions give one after another.

    A layer turns probabilities p into p (1 + g - sum p g) (Dathathri et al. 2024, as transformers writes it), in
    float32 with the sum in float64. Its winner has the greatest p exp(noise), ties to the smaller id. Where no product
    is above 0, or a logit is NaN or +inf, the winner before stays.
    """
    kept = warped > -torch.inf
    sound = (warped.isfinite() | ~kept).all(dim=1, keepdim=True) & kept.any(dim=1, keepdim=True)
    noise = torch.where(kept, scores - warped, -torch.inf)
    weights = torch.exp(noise - noise.amax(dim=1, keepdim=True)).nan_to_num_(nan=0.0)
    probs = torch.softmax(torch.where(sound, warped, 0.0), dim=1)
    winner, winners = first, []
    for layer in bits:
        g = layer()
        mass = (g * probs.double()).sum(dim=1, keepdim=True).float()
        probs = (probs * (1 + g - mass)).clamp_(min=0)
        best = (probs * weights).max(dim=1)
        winner = torch.where((best.values > 0) & sound[:, 0], best.indices, winner)
        winners.append(winner)
    return torch.stack(winners, dim=1) if winners else first.new_empty((first.shape[0], 0))
