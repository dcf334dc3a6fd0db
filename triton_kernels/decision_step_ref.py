"""Reference of `decision_step`: evaluate, select, emit, end texts, and note it all down.

capacity, strength, choice      evaluator_step_ref; without an evaluator beta * factor, where a threshold is passed
a choice beyond what was forwarded waits for the next step, which carries it alone
the token joins its text; an end token or the budget ends it
the result goes to the output ring
"""

from collections.abc import Callable

import torch

from caw.capacity import evaluate_capacity_ref, window_masses
from caw.ladder import select_candidate_ref
from caw.op_indices import BROKEN, NOT_EMITTED
from caw.triton_kernels.evaluator_step_ref import evaluator_step_ref


def decision_step_ref(
    probs: list[torch.Tensor],
    ids: list[torch.Tensor],
    weights: list[torch.Tensor],
    table: torch.Tensor | None,
    candidates: torch.Tensor,
    needs: torch.Tensor,
    counts: torch.Tensor | None,
    pending: list[torch.Tensor],
    factor: torch.Tensor,
    given: torch.Tensor | None,
    logsumexp: torch.Tensor,
    padded: torch.Tensor,
    tally: torch.Tensor,
    budgets: torch.Tensor,
    ends: torch.Tensor,
    active: torch.Tensor,
    ring: torch.Tensor,
    floats: torch.Tensor | None,
    cursor: torch.Tensor,
    slots: int,
    window: int,
    k: int,
    transform: int,
    classes: int,
    theta: float,
    beta: float,
    rule: int,
    full: float,
    carried: torch.Tensor | None = None,
    *,
    evaluate: Callable[..., torch.Tensor] = evaluate_capacity_ref,
    select: Callable[..., torch.Tensor] = select_candidate_ref,
) -> tuple[torch.Tensor, ...]:
    """(tokens, choice, chosen, shown int64, strength, capacity float32, emitted, moved, broken bool), all [B].

    tokens: emitted where `emitted`. choice: rung chosen. chosen: the forwarded sibling to commit where `moved`, which
    is where the text goes on; without an evaluator the token alone is forwarded afterwards, so 0. shown: rungs of the
    ladder. broken: logits of an active text that are not finite.

    Args:
        probs, ids: records float32 and int64 [B, >= k] of each window position, oldest first; empty without evaluator.
        weights: as in `evaluate_capacity_ref`; empty: the strength is beta * factor.
        table: uint8 [V], class of each token id, whose masses follow the probabilities as inputs; None = none.
        candidates, needs, counts, rule, full: the ladder [B, M]; counts None = one candidate each.
        pending: what waits, mutated: token int64 (-1: none), strength and capacity float32 [B]. factor: float32 [B].
        given: float32 [B]: without an evaluator the strength is 0 where this is not above theta; None = nowhere.
        logsumexp: float32 [B], of the logits chosen from.
        padded int64 [B, W + N], tally int64 [B], active bool [B]: the texts, mutated. budgets int64 [B], ends int64
            [B, E]: what ends them.
        ring: int64 [R, B, 1 or 3 + M], floats: float32 [R, B, 2] or None, cursor: int64 [1]: the output ring, mutated:
            token (-1 none, -2 broken), choice, rungs, candidates; strength and capacity.
        slots: candidates that were forwarded, of each sequence the same number where carried (int64 [B]) is None.
        window: W. k, transform, theta, beta: as in `evaluator_step_ref`.
        classes: number of token classes. evaluate, select: implementations of those ops.
    """
    waiting, was_active = pending[0] >= 0, active.clone()
    shown = torch.ones_like(tally) if counts is None else counts.clone()
    if weights:
        extra = None if table is None else window_masses(probs, ids, table, k, classes)
        capacity, strength, choice = evaluator_step_ref(
            probs, weights, candidates, needs, shown, *pending, factor, k,
            transform, theta, beta, rule, full, extra, evaluate=evaluate, select=select,
        )  # fmt: skip
    else:
        strength = beta * factor
        if given is not None:
            strength = torch.where(given > theta, strength, 0.0)
        capacity = torch.full_like(strength, torch.nan)
        choice = select(candidates.contiguous(), needs.contiguous(), shown, strength, rule, full)
    tokens = candidates.gather(1, choice[:, None])[:, 0]
    overflow = (choice >= (slots if carried is None else carried)) & was_active & ~waiting
    emitted = was_active & ~overflow
    chosen = torch.where(emitted & ~waiting, choice, 0) if weights else torch.zeros_like(choice)
    for tensor, value in zip(pending, (torch.where(overflow, tokens, -1), strength, capacity), strict=True):
        tensor.copy_(value)
    place = (tally + window).clamp(max=padded.shape[1] - 1)[:, None]
    kept = padded.gather(1, place)
    padded.scatter_(1, place, torch.where(emitted[:, None], tokens[:, None], kept))
    tally += emitted
    ended = (tokens[:, None] == ends).any(dim=1) | (tally >= budgets)
    active &= ~(emitted & ended)
    broken = was_active & ~logsumexp.isfinite()
    columns = [torch.where(broken, BROKEN, torch.where(emitted, tokens, NOT_EMITTED))[:, None]]
    if floats is not None:
        columns += [choice[:, None], shown[:, None], candidates]
        floats.index_copy_(0, cursor, torch.stack([strength, capacity], dim=1)[None])
    ring.index_copy_(0, cursor, torch.cat(columns, dim=1)[None])
    cursor.add_(1).remainder_(ring.shape[0])
    return tokens, choice, chosen, shown, strength, capacity, emitted, emitted & active, broken
