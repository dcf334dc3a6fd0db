"""References of `show_evidence` and `count_evidence`: what a detector would count of texts in the making."""

import torch

from caw.op_indices import RACE_TOP_K, SELFHASH
from caw.text_scores import score_tokens_ref


def show_evidence_ref(
    padded: torch.Tensor,
    counts: torch.Tensor,
    tokens: torch.Tensor,
    seen: torch.Tensor,
    distinct: torch.Tensor,
    window: int,
    key: torch.Tensor,
    scheme: int,
    threshold: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the evidence that tokens would add if they came next, in a native format.

    Args:
        padded: int64 [B, W + N], W missing tokens (-1) and the text so far, of `counts` (int64 [B]) tokens.
        tokens: int64 [B, n], of which each would be the next. seen, distinct: see `known_ref`.
        window: W. key: int64 [B]. scheme, threshold: see `caw.watermarks.base.Native`.

    Returns:
        (score float64 [B, n], evidence int64 [B, n, E], whether the text has shown it already, bool [B, n]). Evidence
        is context and token, for selfhash seed and token, for races the context.
    """
    batch, count = tokens.shape
    places = counts[:, None] + torch.arange(window, device=tokens.device)
    contexts = padded.gather(1, places)[:, None].expand(-1, count, -1)
    texts = torch.cat([contexts, tokens[:, :, None]], dim=2)
    keys = key[:, None].expand(-1, count * (window + 1)).flatten()
    values, seeds = score_tokens_ref(texts.flatten(), window, keys, scheme, threshold)
    values, seeds = values[window :: window + 1], seeds[window :: window + 1]
    if scheme == SELFHASH:
        evidence = torch.stack([seeds.view(batch, count), tokens], dim=2)
    else:
        evidence = contexts.contiguous() if scheme >= RACE_TOP_K else texts
    return values.view(batch, count), evidence, known_ref(seen, distinct, evidence)


def known_ref(seen: torch.Tensor, distinct: torch.Tensor, evidence: torch.Tensor) -> torch.Tensor:
    """Return bool [B, n]: which of evidence int64 [B, n, E] the first distinct[b] rows of seen int64 [B, N, E] have."""
    there = torch.arange(seen.shape[1], device=seen.device)[None] < distinct[:, None]
    equal = (seen[:, None] == evidence[:, :, None]).all(dim=3)
    return (equal & there[:, None]).any(dim=2)


def count_evidence_ref(
    seen: torch.Tensor,
    distinct: torch.Tensor,
    trials: torch.Tensor,
    score: torch.Tensor,
    standing: torch.Tensor,
    evidence: torch.Tensor,
    first: torch.Tensor,
    level: torch.Tensor | None,
    values: torch.Tensor,
    mean: float,
    variance: float,
    third: float,
) -> None:
    """Add one token to each text, in place.

    Args:
        seen: int64 [B, N, E], of which `distinct` (int64 [B], below N) are in use. score: float64 [B].
        trials: int64 [B, 16], counted tokens of each level.
        standing: float64 [B, 2], z and the null's skewness; 0 before any counts.
        evidence: int64 [B, E]. first: bool [B], whether it counts and is the first of its kind; else nothing changes.
        level: int64 [B], weights 0 to 15; 0 = left out, though seen. None = 1.
        values: float64 [B], scores. mean, variance, third: moments of an unmarked token's score.
    """
    # a row that nothing is added to writes where nobody reads, and its last one keeps what it holds
    place = distinct.clamp_max(seen.shape[1] - 1)[:, None, None].expand(-1, 1, evidence.shape[1])
    seen.scatter_(1, place, torch.where(first[:, None, None], evidence[:, None], seen.gather(1, place)))
    distinct += first
    counted = first
    if level is None:
        trials[:, 1] += first
    else:
        counted = first & (level > 0)
        trials.scatter_add_(1, level[:, None], counted[:, None].long())
        values = values * level
    score += torch.where(counted, values, 0.0)
    steps = torch.arange(trials.shape[1], device=trials.device)
    linear, squares, cubes = ((trials * steps**power).sum(dim=1).double() for power in (1, 2, 3))
    spread = (variance * squares).sqrt()
    now = torch.stack([(score - mean * linear) / spread, third * cubes / (spread * spread * spread)], dim=1)
    standing.copy_(torch.where(counted[:, None], now, standing))
