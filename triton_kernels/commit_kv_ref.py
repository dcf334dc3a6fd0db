"""References of `commit_kv` and `commit_step`.

`commit_kv` makes the chosen sibling's keys and values, of all layers, part of the cache; `commit_step` also moves the
sequence's logits and records one position on.
"""

import torch


def commit_kv_ref(
    store: torch.Tensor, scratch: torch.Tensor, choice: torch.Tensor, lengths: torch.Tensor, active: torch.Tensor
) -> None:
    """Copy scratch[:, :, b, choice[b]] to store[:, :, b, :, lengths[b]] and advance lengths, where active.

    Args:
        store: [L, 2, B, HK, S, D], mutated. scratch: [L, 2, B, C, HK, D].
        choice: int64 [B] in [0, C). lengths: int64 [B], mutated. active: bool [B]; other rows keep their length (what
            lies at and beyond it is undefined).
    """
    rows = torch.arange(store.shape[2], device=store.device)
    picked = scratch[:, :, rows, choice]  # [L, 2, B, HK, D]
    # a full, inactive row has no free place: its last one is overwritten, which nobody reads again
    place = lengths.clamp(max=store.shape[4] - 1)
    store[:, :, rows, :, place] = picked.permute(2, 0, 1, 3, 4)
    lengths += active


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
    alive: torch.Tensor | None = None,
) -> None:
    """`commit_kv`, and where active: logits[b] = step_logits[b, choice[b]] and the records move one position on.

    Args:
        store, scratch, choice, lengths, active: as in `commit_kv_ref`.
        logits: float32 [B, V], mutated. step_logits: float [B, C, V], of the candidates forwarded.
        records: mutated; four tensors a position (values [B, K], ids [B, K], probs [B, K], logsumexp [B]) of p_i, then
            of p_{i-1}, p_{i-2}, ... Each takes what the one before it held.
        following: the four tensors of the chosen candidate's record, which becomes p_i; or, B * C rows, of each's.
        alive: bool [B]; other rows get length 0, so that they read no prefix. None = all keep theirs.
    """
    commit_kv_ref(store, scratch, choice, lengths, active)
    if alive is not None:
        lengths.masked_fill_(~alive, 0)
    batch, candidates = step_logits.shape[:2]
    rows = torch.arange(batch, device=choice.device)
    torch.where(active[:, None], step_logits[rows, choice].float(), logits, out=logits)
    if following[0].shape[0] == batch * candidates != batch:
        following = [tensor[rows * candidates + choice] for tensor in following]
    for old, new in zip(reversed(records), reversed([*following, *records][: len(records)]), strict=True):
        torch.where(active if old.dim() == 1 else active[:, None], new, old, out=old)
