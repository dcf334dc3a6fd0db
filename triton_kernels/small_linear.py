"""Products of few rows, which take as long as reading the weights: each weight is read once.

    out = x W^T + b                        (small_linear_ref)
    out = [x W0^T + b0, x W1^T + b1, ...]  queries, keys and values, side by side
    out = silu(x W0^T + b0) * (x W1^T + b1)                       or gelu
    out = residual + x W^T + b

One kernel for 1 to 64 rows and for every format of weights: a program takes BLOCK_O outputs for all of them, 16 rows a
product, and walks along K, tile by tile, in pipelined 16-byte copies. Weights of 4 and 8 bits (`packed_weights`) become
numbers of x's dtype in registers, once for all rows. The tiles depend on the weights' shape and format alone and nobody
splits K, so a row has the same bits whatever rows are beside it and however many: what candidates are given is what a
plain decode is given. Tiles that were timed on the device (`tuned`) replace those of arithmetic, again for all numbers
of rows; where torch's product was faster there, and as blind to other rows, it makes those that it can make in one.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from caw.triton_kernels import tuned
from caw.triton_kernels.block_sizes import ProductBlocks, product_blocks, product_outputs, product_rows, product_stages
from caw.triton_kernels.launching import FLOATS, INTERPRETED, cdiv, check, check_tensor, launch
from caw.triton_kernels.packed_weights import (
    DENSE,
    FP8,
    FP8_BITS,
    INT4,
    INT8,
    check_packed,
    format_number,
    fp8_numbers,
    int4_inputs,
    int4_part,
    int4_words,
    int8_tile,
    rounded,
    row_scales,
)
from caw.triton_kernels.packed_weights_ref import BY_DTYPE
from caw.triton_kernels.packed_weights_ref import INT4 as INT4_FORMAT
from caw.triton_kernels.small_linear_ref import GELU_TANH, SILU

MAX_ROWS = 64  # above, the rows cost more than the weights and a general product is the better one
MAX_PARTS = 3


@triton.jit
def _inputs(x_ptr, o_m, rows, o_k, K, EVEN_K: tl.constexpr):
    """Inputs o_k of rows o_m, K each, zeros beyond them: [BLOCK_M, o_k]."""
    m_x = (o_m < rows)[:, None]
    if not EVEN_K:
        m_x = m_x & (o_k < K)[None, :]
    return tl.load(x_ptr + o_m[:, None] * K + o_k[None, :], mask=m_x, other=0.0)


@triton.jit
def _add_products(accs, b_w, x_ptr, o_m, rows, o_k, K, EVEN_K: tl.constexpr, UPCAST: tl.constexpr):
    """accs, [BLOCK_M, BLOCK_N] of each block of rows, plus products of inputs o_k and weights b_w [BLOCK_N, o_k]."""
    sums = ()
    for i in tl.static_range(len(accs)):
        b_x = _inputs(x_ptr, o_m + i * accs[0].shape[0], rows, o_k, K, EVEN_K)
        if UPCAST:  # the interpreter computes wrongly in bfloat16
            b_x = b_x.to(tl.float32)
        sums += (tl.dot(b_x, tl.trans(b_w), accs[i], input_precision="ieee"),)
    return sums


@triton.jit
def _add_tile(accs, p_row, m_n, table, x_ptr, o_m, rows, start, K, FORMAT: tl.constexpr,
              EVEN_K: tl.constexpr, UPCAST: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """accs plus the products of inputs start to start + BLOCK_K and the weights' rows at p_row, of any format; the
    scales of fp8 are left out."""
    kind: tl.constexpr = x_ptr.dtype.element_ty
    inside: tl.constexpr = tl.float32 if UPCAST else kind
    o_k = start + tl.arange(0, BLOCK_K)
    m_w = m_n[:, None]
    if not EVEN_K:
        m_w = m_w & (o_k < K)[None, :]
    if FORMAT == INT4:  # four parts of each block, and of the inputs with them
        b_q, scale, least = int4_words(p_row, m_n, table, K, start, kind, EVEN_K, BLOCK_N, BLOCK_K)
        for part in tl.static_range(4):
            b_w = int4_part(b_q, scale, least, part, kind, UPCAST)
            o_part = int4_inputs(start, part, BLOCK_K)
            accs = _add_products(accs, b_w, x_ptr, o_m, rows, o_part, K, EVEN_K, UPCAST)
    else:
        if FORMAT == INT8:
            b_w = rounded(int8_tile(p_row, m_n, table, K, start, EVEN_K, BLOCK_N, BLOCK_K), kind, UPCAST)
        elif FORMAT == DENSE:
            b_w = tl.load(p_row[:, None] + o_k[None, :], mask=m_w, other=0.0).to(inside)  # [BLOCK_N, BLOCK_K]
        else:
            b_w = fp8_numbers(tl.load(p_row[:, None] + o_k[None, :], mask=m_w, other=0), inside, FORMAT)
        accs = _add_products(accs, b_w, x_ptr, o_m, rows, o_k, K, EVEN_K, UPCAST)
    return accs


@triton.jit(do_not_specialize=["rows"])
def _product_kernel(
    x_ptr, w0_ptr, w1_ptr, w2_ptr, b0_ptr, b1_ptr, b2_ptr, residual_ptr, out_ptr,
    stride_w, table, rows, K, outputs0, outputs1, outputs2, width, FORMAT: tl.constexpr,
    PARTS: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr, BIASES: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """BLOCK_O outputs of one of PARTS weights, or of both where GATED, for BLOCKS * BLOCK_M rows. BIASES: its bits.

    Rows of gate and up are one tile: two products in a loop would make Triton lay all warps along one side of theirs,
    where they repeat each other's work.
    """
    o_m = tl.program_id(0) * BLOCKS * BLOCK_M + tl.arange(0, BLOCK_M)  # fastest: they share their weights in L2
    i_o = tl.program_id(1)
    o_m = o_m.to(tl.int64)
    w_ptr, b_ptr, outputs, before, biased = w0_ptr, b0_ptr, outputs0, outputs0 * 0, BIASES & 1
    if PARTS > 1 and not GATED:
        first, second = tl.cdiv(outputs0, BLOCK_O), tl.cdiv(outputs1, BLOCK_O)
        one = (i_o >= first) & (i_o < first + second)
        two = i_o >= first + second
        w_ptr = tl.where(two, w2_ptr, tl.where(one, w1_ptr, w0_ptr))
        b_ptr = tl.where(two, b2_ptr, tl.where(one, b1_ptr, b0_ptr))
        outputs = tl.where(two, outputs2, tl.where(one, outputs1, outputs0))
        before = tl.where(two, outputs0 + outputs1, tl.where(one, outputs0, 0))
        biased = tl.where(two, BIASES >> 2, tl.where(one, (BIASES >> 1) & 1, BIASES & 1))
        i_o = tl.where(two, i_o - first - second, tl.where(one, i_o - first, i_o))
    o_o = i_o * BLOCK_O + tl.arange(0, BLOCK_O)
    m_o = o_o < outputs
    BLOCK_N: tl.constexpr = BLOCK_O * (1 + GATED)
    o_n = tl.arange(0, BLOCK_N)
    o_w = i_o * BLOCK_O + o_n % BLOCK_O
    m_n = o_w < outputs
    o_w = tl.where(m_n, o_w, 0).to(tl.int64) * stride_w  # O * K passes 2**31 at 262144 x 8192
    p_row = w_ptr + o_w
    if GATED:
        p_row = tl.where(o_n < BLOCK_O, w0_ptr + o_w, w1_ptr + o_w)

    accs = ()
    for _i in tl.static_range(BLOCKS):
        accs += (tl.zeros([BLOCK_M, BLOCK_N], tl.float32),)
    for k in range(0, K, BLOCK_K):
        accs = _add_tile(accs, p_row, m_n, table, x_ptr, o_m, rows, k, K, FORMAT, EVEN_K, UPCAST, BLOCK_N, BLOCK_K)
    for i in tl.static_range(BLOCKS):
        acc = accs[i]
        if (FORMAT == FP8) | (FORMAT == FP8_BITS):
            acc *= row_scales(p_row, m_n, table, FORMAT)[None, :]
        if GATED:
            gate, acc = tl.split(tl.permute(tl.reshape(acc, [BLOCK_M, 2, BLOCK_O]), [0, 2, 1]))
            if BIASES & 1:
                gate += tl.load(b0_ptr + o_o, mask=m_o, other=0.0).to(tl.float32)[None, :]
            if BIASES & 2:
                acc += tl.load(b1_ptr + o_o, mask=m_o, other=0.0).to(tl.float32)[None, :]
            if GELU:  # (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)), which never overflows to NaN
                acc = acc * (gate / (1.0 + tl.exp(gate * (-1.5957691216057308 - 0.07135481627159513 * gate * gate))))
            else:
                acc = acc * (gate / (1.0 + tl.exp(-gate)))
        elif BIASES > 0:
            b_bias = tl.load(b_ptr + o_o, mask=m_o & (biased > 0), other=0.0)  # [BLOCK_O]
            acc += b_bias.to(tl.float32)[None, :]
        o_row = o_m + i * BLOCK_M
        p_out = o_row[:, None] * width + before + o_o[None, :]
        m_out = (o_row < rows)[:, None] & m_o[None, :]
        if HAS_RESIDUAL:
            acc += tl.load(residual_ptr + p_out, mask=m_out, other=0.0).to(tl.float32)
        tl.store(out_ptr + p_out, acc.to(out_ptr.dtype.element_ty), mask=m_out)


def _check(x, weights, biases, residual, gated: bool) -> None:
    """Raise TypeError or ValueError naming the argument; nothing was launched yet."""
    check_tensor("x", x, FLOATS, (None, None))
    rows, size = x.shape
    check(rows <= MAX_ROWS, f"x must have at most {MAX_ROWS} rows", rows, "use torch.nn.functional.linear")
    check(size >= 1, "x must have at least 1 column", size, "leave the product out")
    check(1 <= len(weights) <= MAX_PARTS, f"weights must be 1 to {MAX_PARTS} tensors", len(weights), "call it twice")
    check(len(biases) == len(weights), f"biases must be {len(weights)}, as the weights", len(biases), "pass None")
    check(all(w.shape[0] for w in weights), "weights must have at least 1 row", "none", "leave the product out")
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        _check_weight(f"weights[{i}]", weight, weights[0], gated, size, x)
        if bias is not None:
            check_tensor(f"biases[{i}]", bias, (x.dtype,), (weight.shape[0],), x)
    if residual is not None:
        width = weights[0].shape[0] if gated else sum(w.shape[0] for w in weights)
        check_tensor("residual", residual, (x.dtype,), (rows, width), x)
    given = {"x": x, "residual": residual, **{f"weights[{i}]": w for i, w in enumerate(weights)},
             **{f"biases[{i}]": b for i, b in enumerate(biases)}}  # fmt: skip
    for name, tensor in given.items():
        whole = tensor is None or tensor.is_contiguous()
        check(whole, f"{name} must be contiguous", "other strides", "call .contiguous()")


def _check_weight(name: str, weight, first, gated: bool, size: int, x) -> None:
    """A weight must be dense in x's dtype, or packed as the first one is."""
    if isinstance(first, torch.Tensor) and first.dtype in BY_DTYPE:
        check_tensor(name, weight, (first.dtype,), (first.shape[0] if gated else None, None), x)
        check_packed(name, weight, size, x)
    else:
        check_tensor(name, weight, (x.dtype,), (first.shape[0] if gated else None, size), x)


def product(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    residual: torch.Tensor | None = None,
    gated: bool = False,
    blocks: ProductBlocks | None = None,
    activation: str = SILU,
) -> torch.Tensor:
    """[M, O] in x's dtype; arguments as in `product_ref`, all contiguous, M in [1, 64], up to three weights.

    Weights may be packed [O, bytes], all in one format: the product is that of what `unpack_weight_ref` makes of them.

    blocks: tiles to use, whatever was tuned. Deterministic; a row's bits depend on no other row. Reads every weight
    once, but tiles of 16 columns and float32 once for up to 32 rows.

    Raises:
        TypeError, ValueError: naming the argument, before any launch.
    """
    _check(x, weights, biases, residual, gated)
    rows, size = x.shape
    form = BY_DTYPE.get(weights[0].dtype)
    outputs = [w.shape[0] for w in weights]
    width = outputs[0] if gated else sum(outputs)
    if blocks is None:
        kind = tuned.Kind(gated, any(bias is not None for bias in biases), residual is not None)
        choice = tuned.chosen(x.device, outputs, size, x.dtype, kind, form)
        by_other = choice is not None and choice.by != tuned.OWN and form is None
        if choice is not None and by_other and torch_can(weights, biases, residual, gated):
            return by_torch(x, weights[0], biases[0], residual, padded=choice.by == tuned.TORCH_PADDED)
        blocks = (choice and choice.blocks) or product_blocks(width, size, x.dtype, gated, form)
    block_o = product_outputs(blocks, rows, width, x.dtype, form)
    columns = block_o * (1 + gated)
    block_m, row_blocks = product_rows(rows, columns, blocks.block_k, x.dtype)
    stored = [weight if form is None else weight.view(torch.uint8) for weight in weights]
    # the interpreter truncates to bfloat16 where a GPU rounds: there, let torch round
    out = x.new_empty((rows, width), dtype=torch.float32 if INTERPRETED else x.dtype)
    padded = [*range(len(weights)), *[0] * (MAX_PARTS - len(weights))]
    launch(
        _product_kernel,
        (cdiv(rows, row_blocks * block_m), sum(cdiv(o, block_o) for o in (outputs[:1] if gated else outputs))),
        {
            "x_ptr": x, "residual_ptr": x if residual is None else residual, "out_ptr": out,
            **{f"w{i}_ptr": stored[j] for i, j in enumerate(padded)},
            **{f"b{i}_ptr": x if biases[j] is None else biases[j] for i, j in enumerate(padded)},
            **{f"outputs{i}": outputs[i] if i < len(outputs) else 0 for i in range(MAX_PARTS)},
            "stride_w": form.row(size) if form else size, "table": form.quants(size) if form else 0,
            "rows": rows, "K": size, "width": width, "FORMAT": format_number(weights[0]),
            "PARTS": len(weights), "GATED": gated, "GELU": gated and activation == GELU_TANH,
            "HAS_RESIDUAL": residual is not None,
            "BIASES": sum(1 << i for i, bias in enumerate(biases) if bias is not None),
            "EVEN_K": size % blocks.block_k == 0, "UPCAST": INTERPRETED,
            "BLOCK_M": block_m, "BLOCKS": row_blocks, "BLOCK_O": block_o, "BLOCK_K": blocks.block_k,
        },
        num_warps=blocks.num_warps,
        num_stages=product_stages(blocks, row_blocks * block_m, columns, x.dtype, form),
        # the assembler would rather spill than have fewer programs, of which shared memory lets few run anyway
        maxnreg=(255 if row_blocks > 1 else 128) if form in (None, INT4_FORMAT) and x.dtype != torch.float32 else None,
    )  # fmt: skip
    return out.to(x.dtype)


def torch_can(weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None], residual: torch.Tensor | None,
              gated: bool) -> bool:  # fmt: skip
    """Whether torch makes this product by one kernel that rounds once."""
    return len(weights) == 1 and not gated and (residual is None or biases[0] is None)


def by_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None,
             *, padded: bool) -> torch.Tensor:  # fmt: skip
    """The product by torch, where `torch_can`; padded: zeros are added below, so that it always has MAX_ROWS rows."""
    rows = x.shape[0]
    if padded and rows < MAX_ROWS:
        x, residual = (
            None if t is None else torch.nn.functional.pad(t, (0, 0, 0, MAX_ROWS - rows)) for t in (x, residual)
        )
    if residual is None:
        return torch.nn.functional.linear(x, weight, bias)[:rows]
    return torch.addmm(residual, x, weight.t())[:rows]


def small_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [M, K] times weight [O, K] transposed, plus bias [O]; all contiguous, M in [0, 64]. As `small_linear_ref`.

    Deterministic; a row's bits depend on no other row.
    """
    return product(x, [weight], [bias])


def packed_linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """As `small_linear`, of a packed weight [O, bytes]; its reference is `packed_linear_ref`."""
    return product(x, [packed], [bias])
