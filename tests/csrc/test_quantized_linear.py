"""Packed weights of every block type against the gguf package and float64, on every instruction set of this machine."""

import functools
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from pairwise import pairwise
from quantized import dequantized, random_blocks

from caw import ops
from caw.ops_ref.block_types import BLOCK_TYPES, packed_bytes
from caw.testing import assert_close

TESTS = Path(__file__).resolve().parents[1]
KINDS = pytest.mark.parametrize("kind", BLOCK_TYPES, ids=[b.name for b in BLOCK_TYPES.values()])
SHAPES = [(1, 1), (5, 3), (16, 2), (33, 9), (48, 17)]  # outputs, blocks across


def inputs_of(kind: int, across: int) -> int:
    return across * BLOCK_TYPES[kind].inputs


@KINDS
def test_unpacked_rows_equal_the_gguf_package_bit_for_bit(kind: int) -> None:
    for outputs, across in SHAPES:
        blocks = random_blocks(kind, outputs, across)
        packed = ops.pack_blocks(blocks, kind)
        rows = torch.randperm(outputs).repeat(2)
        assert packed.shape == (packed_bytes(outputs, blocks.shape[1], kind),)
        assert torch.equal(ops.unpack_rows(packed, rows, inputs_of(kind, across)), dequantized(kind, blocks)[rows])


@KINDS
def test_products_equal_float64(kind: int) -> None:
    for outputs, across in SHAPES:
        blocks, x = random_blocks(kind, outputs, across), torch.randn(7, inputs_of(kind, across))
        bias = torch.randn(outputs) if across % 2 else None
        expected = torch.nn.functional.linear(
            x.double(), dequantized(kind, blocks).double(), None if bias is None else bias.double()
        )
        found = ops.quantized_linear(x, ops.pack_blocks(blocks, kind), outputs, bias)
        assert_close(found, expected, "float32")
        assert_close(ops.quantized_linear(x, ops.pack_blocks(blocks, kind, True), outputs, bias), expected, "int8")


@KINDS
def test_activations_of_very_different_sizes(kind: int) -> None:
    """One greater by 10^4 in each unit, as real activations have them, and units that differ by 10^8."""
    blocks, x = random_blocks(kind, 21, 8), torch.randn(3, inputs_of(kind, 8))
    x[:, ::97] *= 1e4
    assert_close(
        ops.quantized_linear(x, ops.pack_blocks(blocks, kind), 21), x.double() @ dequantized(kind, blocks).double().T,
        "float32",
    )  # fmt: skip
    x = torch.randn(3, inputs_of(kind, 8)) * torch.logspace(-8, 0, inputs_of(kind, 8) // 32).repeat_interleave(32)
    assert_close(
        ops.quantized_linear(x, ops.pack_blocks(blocks, kind), 21), x.double() @ dequantized(kind, blocks).double().T,
        "float32",
    )  # fmt: skip


def test_two_tiles_of_outputs_are_work_for_two_threads() -> None:
    """Even where a thread that has both goes over them by turns; and shared out by odd numbers they are the same."""
    across, before = 4000, torch.get_num_threads()
    packed = ops.pack_blocks(random_blocks(8, 32, across), 8)
    x = torch.randn(1, inputs_of(8, across))
    odd = ops.pack_blocks(random_blocks(8, 117, 300), 8)
    many = torch.randn(9, inputs_of(8, 300))
    try:
        torch.set_num_threads(1)
        alone, together = ops.quantized_linear(x, packed, 32), ops.quantized_linear(many, odd, 117)
        torch.set_num_threads(2)
        every, mine = time.process_time(), time.thread_time()
        for _ in range(30):
            assert torch.equal(ops.quantized_linear(x, packed, 32), alone)
        every, mine = time.process_time() - every, time.thread_time() - mine
        for threads in (2, 3, 5):
            torch.set_num_threads(threads)
            assert torch.equal(ops.quantized_linear(many, odd, 117), together)
    finally:
        torch.set_num_threads(before)
    # beside other work the other thread comes to little; without any of its own it would wait, some 10 us a call
    assert every - mine > mine / 20, f"the other thread took {every - mine:.4f} s, this one {mine:.4f}"


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", [3, 6, 8, 14])
def test_rows_do_not_depend_on_their_neighbours(kind: int, fast: bool) -> None:
    across = 9 if kind != 14 else 3
    packed = ops.pack_blocks(random_blocks(kind, 37, across), kind, fast)
    x = torch.randn(97, inputs_of(kind, across))
    together = ops.quantized_linear(x, packed, 37)
    for rows in (*range(1, 18), 24, 31, 32, 33, 64, 96):
        for first in (0, 97 - rows):
            part = x[first : first + rows].clone()
            assert torch.equal(ops.quantized_linear(part, packed, 37), together[first : first + rows]), (rows, first)


def test_rows_of_a_prompt_go_in_parts() -> None:
    """More rows than are turned to digits at once."""
    packed, x = ops.pack_blocks(random_blocks(2, 16, 128), 2), torch.randn(200, 4096)
    together = ops.quantized_linear(x, packed, 16)
    for first in (0, 63, 64, 79, 80, 199):
        assert torch.equal(ops.quantized_linear(x[first : first + 1].clone(), packed, 16)[0], together[first])


@functools.cache
def bits_of_every_kind() -> str:
    """Digest of products of every block type; the same on every instruction set."""
    total = hashlib.sha256()
    torch.manual_seed(3)
    for kind in BLOCK_TYPES:
        across = 19 if BLOCK_TYPES[kind].inputs == 32 else 3  # units beyond the first eight and sixteen
        blocks = random_blocks(kind, 21, across, seed=kind)
        x = torch.randn(19, inputs_of(kind, across)) * torch.logspace(-6, 3, 19)[:, None]
        x[3, :40], x[4, 33] = 0.0, 2e38
        for fast in (False, True):
            packed = ops.pack_blocks(blocks, kind, fast)
            for rows in (19, 8, 5, 4, 3, 2, 1):
                total.update(ops.quantized_linear(x[:rows].contiguous(), packed, 21).numpy().tobytes())
    return total.hexdigest()


@pytest.mark.parametrize("name", ["generic", "avx2"])
def test_instruction_sets_give_the_same_bits(name: str) -> None:
    """Sums of a unit are exact, and what follows has one order; so texts do not depend on the processor."""
    script = "import test_quantized_linear as t; print(t.bits_of_every_kind())"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={**os.environ, "CAW_CPU_ISA": name, "PYTHONPATH": f"{TESTS}:{TESTS / 'csrc'}:{TESTS.parent}"},
    )  # fmt: skip
    assert done.stdout.strip() == bits_of_every_kind()


# where a block's scales stand, and what: scales of 1 (and 63), minima of -8 (and -63)
SCALES = {2: (0, "003c"), 3: (0, "003c00c8"), 6: (0, "003c"), 8: (0, "003c"), 11: (96, "00" * 12 + "003c"),
          12: (0, "003c003c" + "ff" * 12), 13: (0, "003c003c" + "ff" * 12), 14: (192, "01" * 16 + "003c")}  # fmt: skip
LARGEST = 8355711.0  # the greatest number of three digits
ONE_ROUNDING = (2, 6, 8)  # no minima, and one scale a block


@pytest.mark.parametrize(
    "kind, quants, rows, top",
    pairwise(SCALES, [0x00, 0xFF, 0x80, 0x7F], [1, 4, 5, 16, 17], [LARGEST, LARGEST + 0.5, LARGEST + 1]),
)
def test_the_greatest_sums_are_exact(kind: int, quants: int, rows: int, top: float) -> None:
    """Quants and inputs of the greatest size and one sign: 4 bits leave 32-bit sums no room beyond that."""
    form, (place, scales) = BLOCK_TYPES[kind], SCALES[kind]
    block = torch.full((form.bytes,), quants, dtype=torch.uint8)
    block[place : place + len(scales) // 2] = torch.tensor(list(bytes.fromhex(scales)), dtype=torch.uint8)
    blocks = block.repeat(3, 2)
    x = torch.full((rows, 2 * form.inputs), top)
    x[:, form.inputs :] *= torch.tensor([-1.0, 1.0] * (form.inputs // 2))
    weight = dequantized(kind, blocks).double()
    expected = x.double() @ weight.T
    found = ops.quantized_linear(x, ops.pack_blocks(blocks, kind), 3)
    if kind in ONE_ROUNDING and top == LARGEST:
        assert torch.equal(found, expected.float())
    assert (found - expected).abs().max() <= 2.0**-21 * (x.double().abs() @ weight.abs().T).max()


@pytest.mark.parametrize("size", [2.0**-100, 2.0**-106, 1e-38, 1e-42, 1.4e-45])
def test_digits_of_tiny_inputs_run_out(size: float) -> None:
    """Below 2^-100 inputs are whole numbers of 2^-122; without that bound nothing would be left of 2^-106."""
    for kind in BLOCK_TYPES:
        blocks = random_blocks(kind, 5, 2)
        x = torch.full((3, inputs_of(kind, 2)), size) * torch.tensor([[1.0], [-1.0], [0.0]])
        weight = dequantized(kind, blocks).double()
        found = ops.quantized_linear(x, ops.pack_blocks(blocks, kind), 5).double()
        assert ((found - x.double() @ weight.T).abs() <= 2.0**-121 * weight.abs().sum(dim=1)).all()
        assert (found[2] == 0).all()


def test_infinity_and_nan_stay_in_their_row() -> None:
    packed, x = ops.pack_blocks(random_blocks(6, 9, 4), 6), torch.randn(6, 128)
    plain = ops.quantized_linear(x, packed, 9)
    x[1, 5], x[4, 127] = torch.inf, torch.nan
    found = ops.quantized_linear(x, packed, 9)
    assert found[[1, 4]].isnan().all() and torch.equal(found[[0, 2, 3, 5]], plain[[0, 2, 3, 5]])


def test_no_rows_and_strided_rows() -> None:
    packed, wide = ops.pack_blocks(random_blocks(3, 9, 2), 3), torch.randn(64, 10)
    assert ops.quantized_linear(torch.zeros(0, 64), packed, 9).shape == (0, 9)
    assert torch.equal(
        ops.quantized_linear(wide.T[::2], packed, 9), ops.quantized_linear(wide.T[::2].contiguous(), packed, 9)
    )


def damaged(place: int, value: int) -> torch.Tensor:
    packed = ops.pack_blocks(random_blocks(12, 20, 2), 12)
    packed[place] = value
    return packed


@pytest.mark.parametrize(
    "packed",
    [
        torch.zeros(0, dtype=torch.uint8),
        torch.zeros(4000, dtype=torch.uint8),
        torch.zeros(4000),
        torch.zeros(2, 2000, dtype=torch.uint8),
        damaged(0, 1),  # its mark
        damaged(8, 3), damaged(8, 99),  # the type
        damaged(16, 33), damaged(23, 127), damaged(23, 255),  # outputs
        damaged(24, 1), damaged(25, 4), damaged(31, 127), damaged(31, 255),  # inputs
        damaged(16, 20)[:-1], torch.cat([damaged(16, 20)] * 2),
    ],
)  # fmt: skip
def test_packed_weights_that_are_none_are_refused(packed: torch.Tensor) -> None:
    for call in (lambda: ops.quantized_linear(torch.zeros(1, 512), packed, 20),
                 lambda: ops.unpack_rows(packed, torch.tensor([0]), 512)):  # fmt: skip
        with pytest.raises(RuntimeError, match=r"^packed must be what pack_blocks made, "):
            call()


@pytest.mark.parametrize("call,names", [
    (lambda: ops.pack_blocks(torch.zeros(2, 18, dtype=torch.uint8), 1), "type"),
    (lambda: ops.pack_blocks(torch.zeros(2, 17, dtype=torch.uint8), 2), "blocks"),
    (lambda: ops.pack_blocks(torch.zeros(0, 18, dtype=torch.uint8), 2), "blocks"),
    (lambda: ops.pack_blocks(torch.zeros(18, dtype=torch.uint8), 2), "blocks"),
    (lambda: ops.pack_blocks(torch.zeros(2, 18), 2), "blocks"),
    (lambda: ops.pack_blocks_into(torch.zeros(2, 17, dtype=torch.uint8), 2, False, PACKED), "blocks"),
    (lambda: ops.pack_blocks_into(torch.zeros(17, 18, dtype=torch.uint8), 2, False, PACKED), "out"),
    (lambda: ops.pack_blocks_into(torch.zeros(2, 18, dtype=torch.uint8), 2, False, PACKED.float()), "out"),
    (lambda: ops.pack_blocks_into(torch.zeros(2, 18, dtype=torch.uint8), 2, False, PACKED.repeat(2)[::2]), "out"),
    (lambda: ops.quantized_linear(torch.zeros(1, 31), PACKED, 3), "x"),
    (lambda: ops.quantized_linear(torch.zeros(32), PACKED, 3), "x"),
    (lambda: ops.quantized_linear(torch.zeros(1, 32).double(), PACKED, 3), "x"),
    (lambda: ops.quantized_linear(torch.zeros(1, 32), PACKED, 4), "outputs"),
    (lambda: ops.quantized_linear(torch.zeros(1, 32), PACKED, 3, torch.zeros(4)), "bias"),
    (lambda: ops.quantized_linear(torch.zeros(1, 32), PACKED, 3, torch.zeros(3).double()), "bias"),
    (lambda: ops.unpack_rows(PACKED, torch.tensor([3]), 32), "rows"),
    (lambda: ops.unpack_rows(PACKED, torch.tensor([-1]), 32), "rows"),
    (lambda: ops.unpack_rows(PACKED, torch.tensor([0.0]), 32), "rows"),
    (lambda: ops.unpack_rows(PACKED, torch.tensor([0]), 64), "size"),
])  # fmt: skip
def test_bad_input_names_the_argument(call, names) -> None:
    with pytest.raises(RuntimeError, match=f"^{names} must"):
        call()


PACKED = torch.zeros(0) if ops.missing_extension() else ops.pack_blocks(torch.zeros(3, 18, dtype=torch.uint8), 2)
