"""Weights of 4 and 8 bits: their numbers, products of few rows, matrices made dense, and rows alone."""

import importlib
import re

import numpy as np
import pytest
import torch
from product_inputs import drawn

from caw.models.packed import pack_weight
from caw.testing import assert_close
from caw.triton_kernels.packed_weights import HALF2, unpack_weight
from caw.triton_kernels.packed_weights_ref import FORMATS, FP8, INT4, INT8, join_row, unpack_weight_ref
from caw.triton_kernels.small_linear import packed_linear, product
from caw.triton_kernels.small_linear_ref import product_ref

ROWS = {torch.float32: "float32", torch.bfloat16: "attention/bfloat16", torch.float16: "attention/float16"}
KINDS = {form.name: form for form in FORMATS.values()}


def given(device, form, rows, size, outputs, dtype, *rest):
    """Arguments of `product` with packed weights, and with the dense ones that they stand for."""
    x, dense, *others = drawn(device, rows, size, outputs, dtype, *rest)
    packed = [pack_weight(weight, form) for weight in dense]
    return (x, packed, *others), (x, [unpack_weight_ref(w, size, dtype) for w in packed], *others)


# one of each kind; all of them are in the gate
QUICK = {("one", "fp8"), ("three-parts", "int8"), ("gated-half", "int4")}
CASES = {
    "one": (1, 32, [1], torch.float32),
    "three-parts": (3, 96, [17, 5, 20], torch.bfloat16, 0b101),
    "full-block-of-rows": (16, 256, [16, 16], torch.float16, 0, True),
    "gated": (17, 160, [7, 7], torch.float32, 0b11, True, True),
    "gated-half": (2, 288, [19, 19], torch.bfloat16, 0, False, True),
    "most-rows": (64, 128, [40], torch.float16, 1, True),
}


@pytest.mark.parametrize(
    "case, form",
    [
        pytest.param(case, form, marks=() if (case, form.name) in QUICK else pytest.mark.gate("rehearsal"))
        for case in CASES
        for form in KINDS.values()
    ],
    ids=lambda given: given if isinstance(given, str) else given.name,
)
def test_equals_the_reference(device, case, form):
    packed, dense = given(device, form, *CASES[case])
    actual, expected = product(*packed), product_ref(*dense)
    assert actual.dtype == expected.dtype and actual.is_contiguous()
    assert_close(actual, expected, ROWS[actual.dtype])


def test_the_stride_of_a_single_row_says_nothing(device):
    """A tensor of one row is contiguous whatever its stride, and no weight beside it, nor it, is read by that."""
    x, first, second = (torch.randn(rows, 64).to(device) for rows in (2, 1, 15))
    first, second = pack_weight(first, INT8), pack_weight(second, INT8)[:5]
    odd = first.as_strided(first.shape, (2 * first.stride(0), 1))
    assert odd.is_contiguous() and odd.stride(0) != first.stride(0)
    assert torch.equal(product(x, [odd, second], [None, None]), product(x, [first, second], [None, None]))
    assert torch.equal(unpack_weight(odd, 64, torch.float32), unpack_weight(first, 64, torch.float32))


def test_fp8_takes_rows_of_any_length_and_older_gpus(device, monkeypatch):
    """Bits moved by hand, as before compute capability 8.9, give the same numbers: every one that there is."""
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    weight = torch.stack([every.nan_to_num(0.0), torch.linspace(-3e-5, 2e-5, 256)])[:, 3:].to(device)  # 253: a prime
    packed, x = pack_weight(weight, FP8), torch.eye(253, device=device)[100:159]
    dense = unpack_weight_ref(packed, 253, torch.float32)
    assert torch.equal(dense[0], weight[0]), "what is a float8 already stays it"
    for _ in ("as this device does", "by bits"):
        assert torch.equal(unpack_weight(packed, 253, torch.float32), dense)
        assert torch.equal(product(x, [packed], [None]), dense[:, 100:159].T)
        monkeypatch.setattr(importlib.import_module("caw.triton_kernels.packed_weights"), "_has_fp8", lambda t: False)


@pytest.mark.parametrize("form", KINDS.values(), ids=KINDS)
def test_made_dense_it_is_the_reference(device, form):
    packed = pack_weight(torch.randn(19, 288, generator=torch.Generator().manual_seed(1)).to(device), form)
    for dtype in ROWS:
        assert torch.equal(unpack_weight(packed, 288, dtype), unpack_weight_ref(packed, 288, dtype))
    assert torch.equal(unpack_weight(packed[:0], 288, torch.float32), torch.empty(0, 288, device=device))


def run(asm, *inputs):
    """What PTX leaves in $0: shr, lop3, and sub and fma of two float16, each rounded once. A register is 32 bits."""
    registers = {f"${i}": value for i, value in enumerate(inputs, start=1)}
    for line in asm.removeprefix("{ .reg .b32 t; ").removesuffix("; }").split("; "):
        operation, to, *names = re.split(r"[ ,]+", line)
        a, b, *rest = (registers[n] if n in registers else np.uint32(int(n, 0)) for n in names)
        if operation == "shr.b32":
            registers[to] = a >> b
        elif operation == "lop3.b32":
            terms = [(a if i & 4 else ~a) & (b if i & 2 else ~b) & (rest[0] if i & 1 else ~rest[0]) for i in range(8)]
            registers[to] = np.bitwise_or.reduce([t for i, t in enumerate(terms) if int(rest[1]) >> i & 1])
        else:
            halves = [np.ascontiguousarray(x)[..., None].view(np.float16).astype(np.float64) for x in (a, b, *rest)]
            assert operation == ("fma.rn.f16x2" if rest else "sub.rn.f16x2")
            result = halves[0] * halves[1] + halves[2] if rest else halves[0] - halves[1]
            registers[to] = result.astype(np.float16).view(np.uint32)[..., 0]
    return registers["$0"]


@pytest.mark.filterwarnings("ignore:overflow")
def test_the_assembly_of_int4_gives_the_references_numbers():
    """Every word, with scales and minima of every exponent: the interpreter runs no assembly."""
    draw, words = np.random.default_rng(4), np.arange(1 << 16, dtype=np.uint16)
    signs = draw.integers(0, 2, (len(words), 2)) << 15
    table = (draw.integers(0, 0x7C00, (len(words), 2)) | signs).astype(np.uint16).view(np.float16)  # no infinities
    exact = ((words[:, None] >> np.arange(0, 16, 4)) & 15) * table[:, :1].astype(np.float64) + table[:, 1:]
    expected = exact.astype(np.float16)
    assert (exact.astype(np.float32).astype(np.float16) != expected).sum() > 10, "rounding twice is something else"
    columns = [np.stack([t, t[::-1]], axis=1).view(np.uint32)[:, 0] for t in (words, *table.T, *expected.T)]
    for part, asm in enumerate(HALF2.value):
        assert np.array_equal(run(asm, *columns[:3], np.uint32(0x64006400)), columns[3 + part])
    rows = np.repeat(words[:, None], 8, axis=1).view(np.uint8)  # a block of 32 has eight words
    packed = join_row(torch.from_numpy(rows), torch.from_numpy(table), INT4, 32)
    found = unpack_weight_ref(packed, 32, torch.float16).numpy()
    assert np.array_equal(found[:, ::8].view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("form", KINDS.values(), ids=KINDS)
def test_a_row_has_the_same_bits_beside_any_others(device, form):
    """The interpreter's products are NumPy's, whose order is nobody's promise: there sums are exact."""
    numbers = torch.randn(48, 192, generator=torch.Generator().manual_seed(2)).to(device)
    x = torch.randn(40, 192, generator=torch.Generator().manual_seed(3)).to(device)
    if device.type != "cuda":
        x, numbers = (8 * x).round(), (3 * numbers).round().clamp(-8, 7)
        numbers[:, ::32], numbers[:, 1::32] = (-8, 7) if form is INT4 else (127, 0)  # steps of 1 in every block
    packed = pack_weight(numbers, form)
    whole = packed_linear(x, packed)
    for rows in (slice(0, 1), slice(7, 12), slice(39, 40)):
        assert torch.equal(packed_linear(x[rows], packed), whole[rows])
    assert packed_linear(x[:0], packed).shape == (0, 48)
