"""Shapes, dtypes and strides of op results that take more than a line to compute."""

from typing import Any

import torch

from caw.ladder import race_width, rungs


def topk_softmax_fake(logits: torch.Tensor, k: int, rows: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    count = logits.shape[0] if rows is None else rows.shape[0]
    values = logits.new_empty((count, k), dtype=torch.float32)
    ids = logits.new_empty((count, k), dtype=torch.int64)
    return values, ids, torch.empty_like(values), logits.new_empty((count,), dtype=torch.float32)


def attention_fake(q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Triton's output has the heads of a row side by side in memory, as the next product wants them."""
    batch, heads, candidates, dim = q.shape
    return q.new_empty(q.shape) if q.is_cpu else q.new_empty((batch, candidates, heads, dim)).transpose(1, 2)


def enumerate_candidates_fake(
    values: torch.Tensor, ids: torch.Tensor, race: torch.Tensor, scores: torch.Tensor, context: torch.Tensor,
    key: torch.Tensor, scheme: int, threshold: int, full: float, max_strength: float,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    width = rungs(values.shape[1], scheme, full, max_strength)
    needs = values.new_empty((values.shape[0], width))
    return torch.empty_like(needs, dtype=torch.int64), needs, ids.new_empty((values.shape[0],))


def race_ladder_fake(
    values: torch.Tensor, ids: torch.Tensor, race: torch.Tensor, full: float, max_strength: float, scale: bool
) -> tuple[torch.Tensor, ...]:
    needs = values.new_empty((values.shape[0], race_width(values.shape[1], full, max_strength, scale=scale)))
    return torch.empty_like(needs, dtype=torch.int64), needs, ids.new_empty((values.shape[0],))


def ladder_step_fake(
    values: torch.Tensor, ids: torch.Tensor, race: torch.Tensor, scores: torch.Tensor, padded: torch.Tensor,
    tally: torch.Tensor, key: torch.Tensor, pending: torch.Tensor, ends: torch.Tensor | None, window: int,
    scheme: int, threshold: int, full: float, max_strength: float, deduplicate: bool, slots: int,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    needs = values.new_empty((values.shape[0], rungs(values.shape[1], scheme, full, max_strength)))
    carried = ids.new_empty((ids.shape[0], slots))
    return torch.empty_like(needs, dtype=torch.int64), needs, torch.empty_like(tally), carried


def decision_step_fake(*args: Any, **carried: Any) -> tuple[torch.Tensor, ...]:
    (tokens, strength, _), active = args[7], args[15]
    kinds = [tokens] * 4 + [strength] * 2 + [active] * 3
    return tuple(torch.empty_like(kind) for kind in kinds)


def show_evidence_fake(
    padded: torch.Tensor, counts: torch.Tensor, tokens: torch.Tensor, seen: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, ...]:
    values = tokens.new_empty(tokens.shape, dtype=torch.float64)
    return values, tokens.new_empty((*tokens.shape, seen.shape[2])), torch.empty_like(values, dtype=torch.bool)


def evaluator_step_fake(
    probs: Any, weights: Any, candidates: Any, needs: Any, counts: torch.Tensor, pending: torch.Tensor,
    pending_strength: torch.Tensor, pending_capacity: torch.Tensor, *rest: Any, **extra: Any,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    return torch.empty_like(pending_capacity), torch.empty_like(pending_strength), torch.empty_like(counts)


def draw_scores_fake(
    warped: torch.Tensor, drawn: torch.Tensor, context: torch.Tensor, key: torch.Tensor, k: int, reach: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch = warped.shape[0]
    return warped.new_empty(warped.shape), warped.new_empty((batch, k)), key.new_empty((batch, k))
