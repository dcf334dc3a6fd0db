"""Norms of rows against their reference in float64: widths, offsets, a sum before and a norm after, wrong input."""

import pytest
import torch

from caw.testing import assert_close
from caw.triton_kernels.rms_norm import added, added_and_normed, normed, rms_norm
from caw.triton_kernels.rms_norm_ref import rms_norm_ref

ROWS = {torch.float32: "float32", torch.bfloat16: "attention/bfloat16", torch.float16: "attention/float16"}
EPS = 1e-5
CASES = {  # shape, added to the weights, dtype
    "one number": ((1,), 0.0, torch.float32),
    "a prime": ((3, 37), 1.0, torch.float32),
    "no power of two": ((2, 2, 600), 0.0, torch.bfloat16),
    "a power of two": ((5, 64), 1.0, torch.float16),
    "no rows": ((0, 8), 1.0, torch.float32),
}


def drawn(device, shape, dtype, count):
    torch.manual_seed(1)
    rows = [(3 * torch.randn(shape)).to(device, dtype) for _ in range(count)]
    return rows, [torch.randn(shape[-1]).to(device, dtype) for _ in range(count)]


@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(device, case):
    shape, offset, dtype = CASES[case]
    (x,), (weight,) = drawn(device, shape, dtype, 1)
    before = x.clone()
    actual, expected = rms_norm(x, weight, EPS, offset), rms_norm_ref(x.double(), weight.double(), EPS, offset)
    assert actual.dtype == dtype and actual.shape == shape and torch.equal(x, before)
    assert_close(actual, expected.to(dtype), ROWS[dtype])


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_sums_and_the_norm_after_them(device, offset):
    """The second norm is of the sum as it was rounded."""
    (x, residual), (weight, following) = drawn(device, (3, 37), torch.float16, 2)
    expected = residual.double() + rms_norm_ref(x.double(), weight.double(), EPS, offset)
    total, out = added_and_normed(x, weight, residual, following, EPS, offset)
    assert torch.equal(total, added(x, weight, residual, EPS, offset))
    assert_close(total, expected.half(), ROWS[x.dtype])
    assert_close(out, rms_norm_ref(total, following, EPS, offset), ROWS[x.dtype])


@pytest.mark.parametrize("count", [1, 256, 300])
def test_counters_are_cleared_and_nothing_beyond_them(device, count):
    (x,), (weight,) = drawn(device, (2, 5), torch.float32, 1)
    counters = torch.full((count + 9,), 7, dtype=torch.int32, device=device)
    normed(x, weight, EPS, 0.0, counters[:count])
    assert (counters[:count] == 0).all() and (counters[count:] == 7).all()


def test_a_weight_with_gaps_is_named(device):
    """Made on the device: a move closes the gaps."""
    with pytest.raises(ValueError, match="weight must be contiguous"):
        rms_norm(torch.zeros(2, 8, device=device), torch.zeros(16, device=device)[::2], EPS)
