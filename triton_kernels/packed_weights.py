"""Weights of 4 and 8 bits inside kernels, and a whole matrix of them made dense (packed_weights_ref).

A tile is read as bytes, in the pipelined 16-byte copies of any other, and becomes numbers in registers. float8 goes
through the instruction that GPUs have for it from compute capability 8.9 on; before, its bits are moved to where
float16 has them, which gives 2^-8 of the number.
"""

import torch
import triton
import triton.language as tl

from caw.triton_kernels.launching import FLOATS, INTERPRETED, cdiv, check, check_tensor, launch
from caw.triton_kernels.packed_weights_ref import BLOCK, BY_DTYPE, Format

DENSE, FP8, FP8_BITS, INT8, INT4 = (tl.constexpr(i) for i in range(5))
EIGHT = tl.constexpr(8)
ONE = tl.constexpr(0x3F800000)  # the bits of 1.0
UNITS = tl.constexpr(256.0)  # of a row's scale, by which FP8_BITS is too small
# numbers of part 0 to 3 of two words $1: the low four bits of each behind 1024's, less 1024 ($4), times $2 plus $3
HALF2 = tl.constexpr(tuple(
    f"{{ .reg .b32 t; shr.b32 t, $1, {4 * part}; lop3.b32 t, t, 0x000f000f, 0x64006400, 0xea; "
    "sub.rn.f16x2 t, t, $4; fma.rn.f16x2 $0, t, $2, $3; }"
    for part in range(4)
))  # fmt: skip
HARDWARE = (8, 9)  # compute capability from which fp8 is an operand of conversions


def format_number(packed: torch.Tensor) -> int:
    """What a kernel calls the format of a weight on its device; on the meta device as on one with float8."""
    form = BY_DTYPE.get(packed.dtype)
    if form is None:
        return int(DENSE)
    if form.table:
        return int(INT8 if form.table == 2 else INT4)
    return int(FP8 if _has_fp8(packed) else FP8_BITS)


def _has_fp8(tensor: torch.Tensor) -> bool:
    return not tensor.is_cuda or torch.cuda.get_device_capability(tensor.device) >= HARDWARE


@triton.jit
def rounded(b_w, kind: tl.constexpr, UPCAST: tl.constexpr):
    """float32 numbers in the dtype `kind`; where UPCAST, numbers of that dtype as float32."""
    if UPCAST and kind == tl.bfloat16:  # the interpreter truncates to bfloat16 where a GPU rounds
        bits = b_w.to(tl.int32, bitcast=True)
        b_w = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    elif UPCAST:
        b_w = b_w.to(kind).to(tl.float32)
    else:
        b_w = b_w.to(kind)
    return b_w


@triton.jit
def fp8_numbers(b_q, kind: tl.constexpr, FORMAT: tl.constexpr):
    """Bytes as numbers, each over UNITS where FP8_BITS."""
    if FORMAT == FP8:
        b_w = b_q.to(tl.float8e4nv, bitcast=True).to(tl.float16)
        if kind == tl.bfloat16:  # by way of float32, in pairs: the direct conversion takes four times as long
            b_w = b_w.to(tl.float32)
        b_w = b_w.to(kind)
    else:
        b_u = b_q.to(tl.uint16)
        b_w = (((b_u & 0x7F) << 7) | ((b_u & 0x80) << 8)).to(tl.float16, bitcast=True).to(kind)
    return b_w


@triton.jit
def row_scales(p_row, m_o, table, FORMAT: tl.constexpr):
    """float32 scales of rows of fp8, times UNITS where FP8_BITS. table: where a row's begins, in bytes."""
    b_scale = tl.load((p_row + table).to(tl.pointer_type(tl.float32)), mask=m_o, other=0.0)
    if FORMAT == FP8_BITS:
        b_scale *= UNITS
    return b_scale


@triton.jit
def _spread(b_x, BLOCK_O: tl.constexpr, GROUPS: tl.constexpr, EACH: tl.constexpr):
    """[BLOCK_O, GROUPS], each number EACH times: [BLOCK_O, GROUPS * EACH]."""
    return tl.reshape(tl.broadcast_to(b_x[:, :, None], [BLOCK_O, GROUPS, EACH]), [BLOCK_O, GROUPS * EACH])


@triton.jit
def _halves(b_pair):
    """The two float16 of each uint32, as float32."""
    low = (b_pair & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    return low, (b_pair >> 16).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _over_one(b_q, PLACE: tl.constexpr):
    """1 + b_q / 2^(23 - PLACE), put together from bits: a conversion takes twice as long."""
    return ((b_q.to(tl.int32) << PLACE) | ONE).to(tl.float32, bitcast=True)


@triton.jit
def int8_tile(p_row, m_o, table, K, start, EVEN_K: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr):
    """float32 weights [BLOCK_O, BLOCK_K] from input start, a multiple of 64: (1 + q / 256) 256 s - 384 s, exactly."""
    pairs: tl.constexpr = BLOCK_K // 64
    o_k, o_p = start + tl.arange(0, BLOCK_K), start // 64 + tl.arange(0, pairs)
    m_q, m_s = m_o[:, None], m_o[:, None]
    if not EVEN_K:
        m_q, m_s = m_q & (o_k < K)[None, :], m_s & (o_p * 64 < K)[None, :]
    b_q = tl.load(p_row[:, None] + o_k[None, :], mask=m_q, other=0)
    p_s = (p_row + table)[:, None].to(tl.pointer_type(tl.uint32)) + o_p[None, :]
    first, second = _halves(tl.load(p_s, mask=m_s, other=0))  # two blocks at once: nothing shorter is pipelined
    scale = tl.reshape(tl.join(first, second), [BLOCK_O, 2 * pairs]) * 256.0
    scale = _spread(scale, BLOCK_O, 2 * pairs, 32)
    return _over_one(b_q, 15) * scale + scale * -1.5


@triton.jit
def int4_words(p_row, m_o, table, K, start, kind: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_O: tl.constexpr,
               BLOCK_K: tl.constexpr):  # fmt: skip
    """Quants of inputs start to start + BLOCK_K, a multiple of 32, four in a word of 16 bits: [BLOCK_O, BLOCK_K / 4].

    With them, of the same shape, what `int4_part` makes numbers of `kind` of: scale and minimum in float16, else what
    it multiplies by and adds in float32, q s + m = (1 + q / 16) 16 s + (m - 16 s), which is rounded once unless m is
    some 2^20 times the least number of float16.
    """
    groups: tl.constexpr = BLOCK_K // 32
    o_h, o_g = start // 4 + tl.arange(0, BLOCK_K // 4), start // 32 + tl.arange(0, groups)
    m_q, m_s = m_o[:, None], m_o[:, None]
    if not EVEN_K:
        m_q, m_s = m_q & (o_h < K // 4)[None, :], m_s & (o_g < K // 32)[None, :]
    b_q = tl.load(p_row[:, None].to(tl.pointer_type(tl.uint16)) + o_h[None, :], mask=m_q, other=0)
    p_s = (p_row + table)[:, None].to(tl.pointer_type(tl.uint32)) + o_g[None, :]
    b_s = tl.load(p_s, mask=m_s, other=0)
    if kind == tl.float16:
        scale = (b_s & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True)
        least = (b_s >> 16).to(tl.uint16).to(tl.float16, bitcast=True)
    else:
        scale, least = _halves(b_s)
        scale *= 16.0
        least = least - scale
    return b_q, _spread(scale, BLOCK_O, groups, EIGHT), _spread(least, BLOCK_O, groups, EIGHT)


@triton.jit
def int4_inputs(start, PART: tl.constexpr, BLOCK_K: tl.constexpr):
    """Which inputs are part 0 to 3 of the words of a tile: eight of each block, one after another."""
    o_h = tl.arange(0, BLOCK_K // 4)
    return start + o_h // EIGHT * 32 + PART * EIGHT + o_h % EIGHT


@triton.jit
def int4_part(b_q, scale, least, PART: tl.constexpr, kind: tl.constexpr, UPCAST: tl.constexpr):
    """The weights of that part of the words, numbers of `kind`; where UPCAST, as float32.

    In float16 two at once: 1024 + q from bits, less 1024, and one multiply-add, which rounds once.
    """
    if kind != tl.float16:
        b_w = ((b_q.to(tl.int32) << (19 - 4 * PART)) & 0x780000) | ONE
        b_w = rounded(b_w.to(tl.float32, bitcast=True) * scale + least, kind, UPCAST)
    elif UPCAST:  # the interpreter knows no assembly; in float64 nothing is rounded
        b_w = ((b_q >> (4 * PART)) & 15).to(tl.float64) * scale.to(tl.float64) + least.to(tl.float64)
        b_w = b_w.to(tl.float16).to(tl.float32)
    else:
        asm: tl.constexpr = HALF2[PART]
        thousand = tl.full(b_q.shape, 1024.0, tl.float16)
        b_w = tl.inline_asm_elementwise(asm, "=r,r,r,r,r", [b_q, scale, least, thousand], dtype=tl.float16,
                                        is_pure=True, pack=2)  # fmt: skip
    return b_w


@triton.jit
def _unpack_kernel(w_ptr, out_ptr, stride_w, table, rows, K, FORMAT: tl.constexpr, EVEN_K: tl.constexpr,
                   HALF: tl.constexpr, UPCAST: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """BLOCK_O rows of BLOCK_K weights, dense. HALF: as numbers of float16."""
    o_o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    m_o = o_o < rows
    o_w = o_o.to(tl.int64)
    p_row = w_ptr + o_w * stride_w
    start = tl.program_id(0) * BLOCK_K
    p_out = out_ptr + (o_w * K)[:, None]
    kind = out_ptr.dtype.element_ty
    if FORMAT == INT4:
        NUMBERS: tl.constexpr = tl.float16 if HALF else tl.float32
        b_q, scale, least = int4_words(p_row, m_o, table, K, start, NUMBERS, EVEN_K, BLOCK_O, BLOCK_K)
        for part in tl.static_range(4):
            o_k = int4_inputs(start, part, BLOCK_K)
            b_w = int4_part(b_q, scale, least, part, NUMBERS, UPCAST)
            tl.store(p_out + o_k[None, :], b_w.to(kind), mask=m_o[:, None] & (o_k < K)[None, :])
    else:
        o_k = start + tl.arange(0, BLOCK_K)
        m_k = m_o[:, None] & (o_k < K)[None, :]
        if FORMAT == INT8:
            b_w = int8_tile(p_row, m_o, table, K, start, EVEN_K, BLOCK_O, BLOCK_K)
        else:
            b_q = tl.load(p_row[:, None] + o_k[None, :], mask=m_k, other=0)
            b_w = fp8_numbers(b_q, tl.float32, FORMAT) * row_scales(p_row, m_o, table, FORMAT)[:, None]
        tl.store(p_out + o_k[None, :], b_w.to(kind), mask=m_k)


def check_packed(name: str, packed: torch.Tensor, size: int, like: torch.Tensor | None = None) -> Format:
    """The format of a packed weight of `size` inputs; TypeError or ValueError unless it is one."""
    check_tensor(name, packed, tuple(BY_DTYPE), (None, None), like)
    form = BY_DTYPE[packed.dtype]
    check(form.takes(size), f"{name} must have whole blocks of {BLOCK} inputs", size, "leave the matrix dense")
    wanted = form.row(size)
    check(packed.shape[1] == wanted, f"{name} must have rows of {wanted} bytes for {size} inputs", packed.shape[1],
          "pack it with caw.models.packed")  # fmt: skip
    check(packed.is_contiguous(), f"{name} must be contiguous", "other strides", "call .contiguous()")
    return form


def unpack_weight(packed: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The weights [O, size] of a packed tensor in `dtype`, as `unpack_weight_ref`. Deterministic.

    Raises:
        TypeError, ValueError: naming the argument, before any launch.
    """
    form = check_packed("packed", packed, size)
    check(dtype in FLOATS, "dtype must be a floating type of models", dtype, "use torch.bfloat16")
    # the interpreter truncates to bfloat16 where a GPU rounds: there, let torch round
    out = packed.new_empty((packed.shape[0], size), dtype=torch.float32 if INTERPRETED else dtype)
    launch(
        _unpack_kernel,
        (cdiv(size, 256), cdiv(packed.shape[0], 16)),
        {"w_ptr": packed.view(torch.uint8), "out_ptr": out, "stride_w": packed.shape[1],
         "table": form.quants(size), "rows": packed.shape[0], "K": size, "FORMAT": format_number(packed),
         "EVEN_K": size % 256 == 0, "HALF": dtype == torch.float16, "UPCAST": INTERPRETED,
         "BLOCK_O": 16, "BLOCK_K": 256},
        num_warps=4,
    )  # fmt: skip
    return out.to(dtype)
