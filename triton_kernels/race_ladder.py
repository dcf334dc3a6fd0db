"""The ladder of a race whose values are known, one program a row (race_ladder_ref).

    top_k: rungs r where w_r beats w_1 .. w_{r-1};   scale: upper envelope of l_t + strength * (w_t - l_t)

For formats whose numbers no kernel makes: they come from PyTorch, or from torch's CPU generator.
Fused multiply-add is off, as for the other ladders.
"""

import torch
import triton
import triton.language as tl

from caw.ladder import race_width
from caw.triton_kernels.enumerate_candidates import check_record, rungs_of_race
from caw.triton_kernels.launching import launch


@triton.jit
def _rungs_kernel(
    values_ptr, ids_ptr, race_ptr, candidates_ptr, needs_ptr, counts_ptr, stride_vb, stride_ib, stride_rb,
    max_strength, K, M, SCALE: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BLOCK_K)
    m_k = o_k < K
    b_id = tl.load(ids_ptr + i_b * stride_ib + o_k, mask=m_k, other=0)  # [BLOCK_K]
    b_value = tl.load(values_ptr + i_b * stride_vb + o_k, mask=m_k, other=float("-inf"))  # [BLOCK_K]
    b_race = tl.load(race_ptr + i_b * stride_rb + o_k, mask=m_k, other=float("-inf"))  # [BLOCK_K]
    count = rungs_of_race(
        b_id, b_value, b_race, tl.load(ids_ptr + i_b * stride_ib), candidates_ptr + i_b * M, needs_ptr + i_b * M,
        max_strength, K, M, SCALE, BLOCK_K,
    )  # fmt: skip
    tl.store(counts_ptr + i_b, count.to(tl.int64))


def race_ladder(
    values: torch.Tensor, ids: torch.Tensor, race: torch.Tensor, full: float, max_strength: float, scale: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Candidates [B, M], needs [B, M], counts [B]; arguments as in `race_ladder_ref`, K <= 128, rows contiguous.

    Equal to the reference bit for bit, but for needs that no rung has. Deterministic. Raises TypeError or ValueError
    naming the argument, before any launch.
    """
    batch, k = check_record(values, ids, race, torch.float64)
    width = race_width(k, full, max_strength, scale=scale)
    candidates, needs = ids.new_empty((batch, width)), values.new_empty((batch, width))
    counts = ids.new_empty((batch,))
    arguments = {
        "values_ptr": values, "ids_ptr": ids, "race_ptr": race, "candidates_ptr": candidates, "needs_ptr": needs,
        "counts_ptr": counts, "stride_vb": values.stride(0), "stride_ib": ids.stride(0), "stride_rb": race.stride(0),
        "max_strength": max_strength, "K": k, "M": width, "SCALE": scale, "BLOCK_K": triton.next_power_of_2(k),
    }  # fmt: skip
    launch(_rungs_kernel, (batch,), arguments, num_warps=4, enable_fp_fusion=False)
    return candidates, needs, counts
