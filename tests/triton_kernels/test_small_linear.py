"""Products of few rows against their reference: shapes, dtypes, parts, gates, biases, residuals, and rows alone."""

import pytest
import torch
from product_inputs import drawn

from caw.testing import assert_close
from caw.triton_kernels.small_linear import product, small_linear
from caw.triton_kernels.small_linear_ref import product_ref

ROWS = {torch.float32: "float32", torch.bfloat16: "attention/bfloat16", torch.float16: "attention/float16"}


CASES = {
    "one": (1, 1, [1], torch.float32),
    "three-parts": (3, 37, [17, 5, 70], torch.bfloat16, 0b101),
    "equal-parts": (16, 256, [16, 16], torch.float16, 0, True),
    "gated": (17, 131, [33, 33], torch.float32, 0b11, True, True),
    "gated-plain": (2, 64, [31, 31], torch.bfloat16, 0, False, True),
    "two-blocks-of-rows": (33, 300, [40], torch.float32, 1, True),
    "last-bias-alone": (64, 128, [1, 2, 3], torch.float16, 0b100),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(device, case):
    arguments = drawn(device, *CASES[case])
    actual, expected = product(*arguments), product_ref(*arguments)
    assert actual.dtype == expected.dtype and actual.is_contiguous()
    assert_close(actual, expected, ROWS[actual.dtype])


def test_a_row_has_the_same_bits_beside_any_others(device):
    """One row, some of a block, more than one; sums are exact in the interpreter, which is NumPy's."""
    x, weights, biases, _, _ = drawn(device, 40, 200, [48, 48], torch.float32, 0b11)
    if device.type != "cuda":
        x, weights = (8 * x).round(), [(8 * weight).round() for weight in weights]
    whole, gated = product(x, weights, biases), product(x, weights, biases, gated=True)
    for rows in (slice(0, 1), slice(7, 12), slice(39, 40)):
        assert torch.equal(product(x[rows], weights, biases), whole[rows])
        assert torch.equal(product(x[rows], weights, biases, gated=True), gated[rows])
    assert torch.equal(small_linear(x[3:5], weights[1], biases[1]), whole[3:5, 48:])
    assert small_linear(x[:0], weights[0]).shape == (0, 48)
