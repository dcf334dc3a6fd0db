"""Norms of rows in one launch each, with the sum before them and the norm after them (rms_norm_ref).

    out = x / rms(x) (w + o)
    y = residual + x / rms(x) (w + o);  out = y / rms(y) (v + o)

A layer's counters are cleared in the same launch.
"""

import torch
import triton
import triton.language as tl

from caw.triton_kernels.launching import FLOATS, INTERPRETED, check, check_tensor, launch

MAX_WIDTH = 16384


@triton.jit
def _normalise(b_x, weight_ptr, o_e, m_e, width, eps, offset):
    b_weight = tl.load(weight_ptr + o_e, mask=m_e, other=0.0).to(tl.float32) + offset  # [BLOCK_E]
    return b_x * tl.rsqrt(tl.sum(b_x * b_x, 0) / width + eps) * b_weight


@triton.jit
def _norm_kernel(x_ptr, weight_ptr, residual_ptr, sum_ptr, next_ptr, out_ptr, clear_ptr, width, clear, eps, offset,
                 HAS_RESIDUAL: tl.constexpr, HAS_NEXT: tl.constexpr, BLOCK_E: tl.constexpr,
                 BLOCK_C: tl.constexpr):  # fmt: skip
    """One row; the first program also clears `clear` counters."""
    i_r = tl.program_id(0).to(tl.int64)
    o_e = tl.arange(0, BLOCK_E)
    m_e = o_e < width
    b_x = tl.load(x_ptr + i_r * width + o_e, mask=m_e, other=0.0).to(tl.float32)  # [BLOCK_E]
    b_out = _normalise(b_x, weight_ptr, o_e, m_e, width, eps, offset)
    if HAS_RESIDUAL:
        b_out += tl.load(residual_ptr + i_r * width + o_e, mask=m_e, other=0.0).to(tl.float32)  # [BLOCK_E]
    if HAS_NEXT:  # of the sum as whoever adds to it later reads it
        b_sum = b_out.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + i_r * width + o_e, b_sum, mask=m_e)
        b_out = _normalise(b_sum.to(tl.float32), next_ptr, o_e, m_e, width, eps, offset)
    tl.store(out_ptr + i_r * width + o_e, b_out.to(out_ptr.dtype.element_ty), mask=m_e)
    if i_r == 0:
        for c in range(0, clear, BLOCK_C):
            o_c = c + tl.arange(0, BLOCK_C)
            tl.store(clear_ptr + o_c, tl.zeros([BLOCK_C], tl.int32), mask=o_c < clear)


def _launch(x, weight, eps, offset, residual=None, following=None, clear=None):  # fmt: skip
    rows, width = x.shape
    dtype = torch.float32 if INTERPRETED else x.dtype  # the interpreter truncates to bfloat16: there, let torch round
    out, block = torch.empty_like(x, dtype=dtype), triton.next_power_of_2(width)
    total = out if following is None else torch.empty_like(out)
    launch(
        _norm_kernel,
        (rows,),
        {"x_ptr": x, "weight_ptr": weight, "residual_ptr": x if residual is None else residual, "sum_ptr": total,
         "next_ptr": weight if following is None else following, "out_ptr": out,
         "clear_ptr": out if clear is None else clear, "width": width, "clear": 0 if clear is None else clear.numel(),
         "eps": eps, "offset": offset, "HAS_RESIDUAL": residual is not None, "HAS_NEXT": following is not None,
         "BLOCK_E": block, "BLOCK_C": 256},
        num_warps=min(max(block // 512, 1), 16),
    )  # fmt: skip
    return total.to(x.dtype), out.to(x.dtype)


def normed(
    x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float, clear: torch.Tensor | None = None
) -> torch.Tensor:
    """x [N, E] normalised; `clear`: int32 counters that become zero, in the same launch."""
    return _launch(x, weight, eps, offset, clear=clear)[1]


def added(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    """residual plus x normalised, [N, E]."""
    return _launch(x, weight, eps, offset, residual)[1]


def added_and_normed(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, following: torch.Tensor, eps: float, offset: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`added`, and that normalised again with the weights `following`, in one launch."""
    return _launch(x, weight, eps, offset, residual, following)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """x [..., E] normalised, as in `rms_norm_ref`; both contiguous, of one dtype, up to 16384 wide. Deterministic.

    Raises:
        TypeError, ValueError: naming the argument, before any launch.
    """
    check_tensor("x", x, FLOATS, (None,) * x.dim())
    width = x.shape[-1] if x.dim() else 0
    check(1 <= width <= MAX_WIDTH, f"x must be 1 to {MAX_WIDTH} wide", width, "use the model's own norm")
    check_tensor("weight", weight, (x.dtype,), (width,), x)
    for name, tensor in (("x", x), ("weight", weight)):
        check(tensor.is_contiguous(), f"{name} must be contiguous", tensor.stride(), "call .contiguous()")
    return normed(x.reshape(-1, width), weight, eps, offset).view(x.shape)
