"""Weights of 4 and 8 bits as products on a GPU read them: their layout, and what numbers they stand for.

A matrix [O, K] is one tensor [O, bytes]; its dtype says the format. A row begins with its quants, padded with zeros to
a multiple of `line`; behind them stands its table, and zeros up to a multiple of `line` again:

    fp8   float8_e4m3fn   K numbers; one float32 scale, a power of two
    int8  int8            K whole numbers plus 128; a float16 scale for each 32 of them
    int4  uint8           of each 32 inputs 8 words of 16 bits, inputs j, j + 8, j + 16, j + 24 from its lowest bits on;
                          a float16 scale and minimum for each 32

A weight is quant * scale (+ minimum), worked out in float32 and rounded to the dtype of the model; those of int4 in
float16 are rounded once, as one multiply-add of that dtype gives them. Those of fp8 need no rounding in bfloat16: a
scale that is a power of two leaves the three bits behind the point as they are.
"""

from dataclasses import dataclass

import torch

BLOCK = 32  # inputs that share a scale


@dataclass(frozen=True)
class Format:
    """per_byte: quants in one. table: bytes for each block, 0 = one float32 of the row. line: what rows are padded to.

    A row of scales must begin where 16 bytes can be read at once, and a row of any kind at a 32-byte sector.
    """

    name: str
    dtype: torch.dtype
    per_byte: int
    table: int
    line: int

    def quants(self, size: int) -> int:
        """Bytes of a row of `size` inputs before its table."""
        return _padded(-(-size // self.per_byte), self.line)

    def row(self, size: int) -> int:
        """Bytes of a row of `size` inputs."""
        return self.quants(size) + _padded(size // BLOCK * self.table or 4, self.line)

    def takes(self, size: int) -> bool:
        """Whether rows of `size` inputs can be had."""
        return size > 0 and (not self.table or size % BLOCK == 0)


FP8 = Format("fp8", torch.float8_e4m3fn, 1, 0, 32)
INT8 = Format("int8", torch.int8, 1, 2, 64)
INT4 = Format("int4", torch.uint8, 2, 4, 64)
FORMATS = {form.name: form for form in (FP8, INT8, INT4)}
BY_DTYPE = {form.dtype: form for form in FORMATS.values()}


def _padded(count: int, line: int) -> int:
    return -(-count // line) * line


def join_row(quants: torch.Tensor, table: torch.Tensor, form: Format, size: int) -> torch.Tensor:
    """Quants and tables of the rows of one matrix, contiguous, of any dtype: the packed tensor [O, bytes]."""
    rows = quants.shape[0]
    out = quants.new_zeros((rows, form.row(size)), dtype=torch.uint8)
    parts = (0, quants.view(torch.uint8)), (form.quants(size), table.view(torch.uint8))
    for start, part in parts:
        out[:, start : start + part.shape[1]] = part
    return out.view(form.dtype)


def unpack_weight_ref(packed: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The weights [O, size] that a packed tensor [O, bytes] stands for, rounded to `dtype`."""
    form, rows = BY_DTYPE[packed.dtype], packed.shape[0]
    raw = packed.view(torch.uint8)
    count = -(-size // form.per_byte)
    table = raw[:, form.quants(size) :]
    if form is FP8:
        scale = table[:, :4].contiguous().view(torch.float32)
        return (raw[:, :count].contiguous().view(form.dtype).float() * scale).to(dtype)
    table = table[:, : size // BLOCK * form.table].contiguous().view(torch.float16).float()
    if form is INT8:
        quants = (raw[:, :count].float() - 128).reshape(rows, -1, BLOCK)
        return (quants * table.unsqueeze(-1)).view(rows, size).to(dtype)
    bytes_ = raw[:, :count].reshape(rows, -1, BLOCK // 4, 2)
    scale, least = table.view(rows, -1, 2).unsqueeze(-1).unbind(2)  # [O, blocks, 1]
    low, high = bytes_.unbind(-1)
    quants = torch.cat([low & 15, low >> 4, high & 15, high >> 4], dim=-1).float()
    if dtype == torch.float16:
        return _half(quants.double() * scale.double() + least.double()).view(rows, size)
    return (quants * scale + least).view(rows, size).to(dtype)


def _half(x: torch.Tensor) -> torch.Tensor:
    """float64 in float16, rounded once, by way of float32 cut towards zero: its last bit says whether any was cut."""
    cut = x.float()
    cut = torch.where(cut.double().abs() > x.abs(), cut.nextafter(torch.zeros_like(cut)), cut)
    return (cut.view(torch.int32) | (cut.double() != x)).view(torch.float32).half()
