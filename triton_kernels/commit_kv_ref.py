"""Reference of `commit_kv`: make the chosen sibling's keys and values, of all layers, part of the cache."""

from __future__ import annotations

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
