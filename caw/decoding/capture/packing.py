"""Candidates of all sequences packed into a fixed number of rows, on the device.

With many sequences most of the B * Q candidates that a step could carry do not exist: ladders of races have two or
three rungs of eight. The step then carries R rows. Every sequence gets its original token; second candidates of all
come before third ones, sequences in their order. What is left over repeats originals. A token that is chosen and was
not carried waits for the next step, which carries it alone (`decision_step`): packing may cost steps, and changes
tokens only where the rounding of other rows does.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from caw.decoding.forward.fused_layers import GPU_ROWS

LEAST = 1.5  # rows for each sequence with which packing pays: below, too many tokens would wait for a step of their own


class Packed(NamedTuple):
    """tokens: int64 [R], of sequence rows[n] (int64 [R], ascending) candidate slots[n] (int64 [R]).

    first: int64 [B], row of each sequence's first one. carried: int64 [B], how many it has, at least 1.
    """

    tokens: torch.Tensor
    rows: torch.Tensor
    slots: torch.Tensor
    first: torch.Tensor
    carried: torch.Tensor


def row_budget(batch: int, width: int) -> int | None:
    """R for B = batch sequences of up to `width` candidates; None = all of them are carried.

    As many as the kernels of few rows take.
    """
    return GPU_ROWS if batch * width > GPU_ROWS >= LEAST * batch else None


def pack(candidates: torch.Tensor, wanted: torch.Tensor, budget: int) -> Packed:
    """The first candidates of int64 [B, Q] in R = budget rows, B <= R <= B * Q.

    wanted: int64 [B], 1..Q, how many of each count.

    Reads nothing back: shapes depend on shapes alone.
    """
    batch, width = candidates.shape
    places = torch.arange(width, device=candidates.device)[:, None]
    counts = places < wanted[None]  # [Q, B]: all originals, all second candidates, ...
    there = torch.cat([counts, ~counts])  # in this order, so those that count first
    taken = there & (there.flatten().cumsum(0).view_as(there) <= budget)
    carried = taken.view(2, width, batch).sum(dim=(0, 1))
    ends = carried.cumsum(0)
    first, row = ends - carried, torch.arange(budget, device=candidates.device)
    rows = torch.searchsorted(ends, row, right=True)
    slots = row - first[rows]
    return Packed(candidates[rows, slots], rows, slots, first, carried)
