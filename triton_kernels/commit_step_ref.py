"""Reference of `commit_step`: commit the chosen sibling's keys and values and move the sequence's state along."""

from __future__ import annotations

import torch
from caw.triton_kernels.commit_kv_ref import commit_kv_ref


def commit_step_ref(
    store: torch.Tensor,
    scratch: torch.Tensor,
    choice: torch.Tensor,
    lengths: torch.Tensor,
    active: torch.Tensor,
    logits: torch.Tensor,
    step_logits: torch.Tensor,
    records: list[torch.Tensor],
    following: list[torch.Tensor],
) -> None:
    """`commit_kv`, and where active: logits[b] = step_logits[b, choice[b]] and the records move one position on.

    Args:
        store, scratch, choice, lengths, active: as in `commit_kv_ref`.
        logits: float32 [B, V], mutated. step_logits: float32 [B, C, V], of the candidates forwarded.
        records: mutated; four tensors a position (values [B, K], ids [B, K], probs [B, K], logsumexp [B]) of p_i, then
            of p_{i-1}, p_{i-2}, ... Each takes what the one before it held.
        following: the four tensors of the chosen candidate's record, which becomes p_i.
    """
    commit_kv_ref(store, scratch, choice, lengths, active)
    rows = torch.arange(choice.shape[0], device=choice.device)
    torch.where(active[:, None], step_logits[rows, choice], logits, out=logits)
    for old, new in zip(reversed(records), reversed([*following, *records][: len(records)]), strict=True):
        torch.where(active if old.dim() == 1 else active[:, None], new, old, out=old)
