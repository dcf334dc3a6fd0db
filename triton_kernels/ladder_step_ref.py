"""Reference of `ladder_step`: all that a captured step does before it looks ahead.

The context comes from the text so far, the ladder from `enumerate_candidates`; then the rows that keep their original
token alone, and the tokens that the next forward carries.
"""

from collections.abc import Callable

import torch

from caw.triton_kernels.enumerate_candidates_ref import enumerate_candidates_ref


def ladder_step_ref(
    values: torch.Tensor,
    ids: torch.Tensor,
    race: torch.Tensor,
    scores: torch.Tensor,
    padded: torch.Tensor,
    tally: torch.Tensor,
    key: torch.Tensor,
    pending: torch.Tensor,
    ends: torch.Tensor | None,
    window: int,
    scheme: int,
    threshold: int,
    full: float,
    max_strength: float,
    deduplicate: bool,
    slots: int,
    *,
    enumerate_ladders: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = enumerate_candidates_ref,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Candidates int64 [B, M], needs float32 [B, M], counts int64 [B], carried int64 [B, slots].

    Args:
        values, ids, race, scores, key, scheme, threshold, full, max_strength: as in `enumerate_candidates_ref`.
        padded: int64 [B, W + N], W = window: what stands before each text, then the text. tally: int64 [B], its tokens.
        pending: int64 [B]; where >= 0, that token is the only one to carry.
        ends: int64 [B, E]; a row with one of its own among its candidates keeps its original alone. None = whatever.
        deduplicate: so does a row whose context already stood before an earlier token of its text.
        slots: candidates to carry, at most M. enumerate_ladders: implementation of `enumerate_candidates`.
    """
    offsets = torch.arange(window, device=tally.device)
    context = padded.gather(1, tally[:, None] + offsets[None])
    candidates, needs, counts = enumerate_ladders(
        values, ids, race, scores, context, key, scheme, threshold, full, max_strength
    )
    alone = torch.zeros_like(pending, dtype=torch.bool)
    if ends is not None:
        alone |= (candidates[:, :, None] == ends[:, None]).flatten(1).any(dim=1)
    if deduplicate:
        windows = padded.unfold(1, window, 1)[:, :-1]  # [B, N, W]
        earlier = torch.arange(windows.shape[1], device=tally.device)[None] < tally[:, None]
        alone |= ((windows == context[:, None]).all(dim=-1) & earlier).any(dim=1)
    counts = torch.where(alone, 1, counts)
    candidates = torch.where(alone[:, None], candidates[:, :1], candidates)
    waiting = pending[:, None]
    return candidates, needs, counts, torch.where(waiting >= 0, waiting, candidates[:, :slots])
