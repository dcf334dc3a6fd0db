"""Race values of EXP for the tokens of a record, in float64 from the integer PRF word.

w_t = l_t - log(-log F_t),   F_t = uniform(PRF(key, context, t))        (race_values_ref; Aaronson 2022)
"""

import torch
import triton
import triton.language as tl

from caw.triton_kernels.launching import check, check_tensor, launch
from caw.triton_kernels.prf import absorb_context, check_prf, gumbel, key_words, token_word

MAX_K = 128


@triton.jit
def _race_kernel(
    values_ptr, ids_ptr, race_ptr, context_ptr, key_ptr, out_ptr,
    stride_vb, stride_ib, stride_rb, stride_cb, K, W: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program a row."""
    i_b = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BLOCK_K)
    m_k = o_k < K
    lo, hi = key_words(key_ptr + i_b)
    s0, s1, s2, s3 = absorb_context(context_ptr + i_b * stride_cb, lo, hi, W)
    b_id = tl.load(ids_ptr + i_b * stride_ib + o_k, mask=m_k, other=0).to(tl.uint32)  # [BLOCK_K]
    b_value = tl.load(values_ptr + i_b * stride_vb + o_k, mask=m_k, other=float("-inf"))  # [BLOCK_K]
    b_race = tl.load(race_ptr + i_b * stride_rb + o_k, mask=m_k, other=0.0)  # [BLOCK_K]
    race = b_race.to(tl.float64) + gumbel(token_word(b_id, s0, s1, s2, s3, lo, hi))
    race = tl.where(b_value > float("-inf"), race, float("-inf"))
    tl.store(out_ptr + i_b * K + o_k, race, mask=m_k)


def race_values(
    values: torch.Tensor, ids: torch.Tensor, race_values: torch.Tensor, context: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """Race values float64 [B, K]; arguments and result as in `race_values_ref`, K <= 128, rows contiguous.

    The PRF words are exact; the two logarithms may differ from another backend's by the row `margin/race`.
    Raises TypeError or ValueError naming the argument, before any launch.
    """
    check_tensor("values", values, (torch.float32,), (None, None))
    batch, k = values.shape
    check(1 <= k <= MAX_K, f"values must have 1 to {MAX_K} columns", k, "shorten the record")
    check_tensor("ids", ids, (torch.int64,), (batch, k), values)
    check_tensor("race_values", race_values, (torch.float32,), (batch, k), values)
    check_prf(key, context, batch, values)
    for name, tensor in (("values", values), ("ids", ids), ("race_values", race_values)):
        rows = k == 1 or tensor.stride(1) == 1
        check(rows, f"{name} must have contiguous rows", f"stride {tensor.stride()}", "call .contiguous()")
    out = values.new_empty((batch, k), dtype=torch.float64)
    launch(
        _race_kernel,
        (batch,),
        {
            "values_ptr": values, "ids_ptr": ids, "race_ptr": race_values, "context_ptr": context, "key_ptr": key,
            "out_ptr": out, "stride_vb": values.stride(0), "stride_ib": ids.stride(0),
            "stride_rb": race_values.stride(0), "stride_cb": context.stride(0), "K": k,
            "W": context.shape[1], "BLOCK_K": triton.next_power_of_2(k),
        },
        num_warps=4,
    )  # fmt: skip
    return out
