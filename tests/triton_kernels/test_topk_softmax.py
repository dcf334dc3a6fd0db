"""Exact top-K against its reference: values and ids bit for bit, over odd shapes, ties and infinities."""

from __future__ import annotations

import pytest
import torch

from caw.testing import assert_close
from caw.triton_kernels.topk_softmax_ref import topk_softmax_ref

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def run(logits, k, rows=None):
    from caw.triton_kernels.topk_softmax import topk_softmax

    values, ids, probs, logsumexp = topk_softmax(logits, k, rows)
    expected = topk_softmax_ref(logits.cpu(), k, None if rows is None else rows.cpu())
    assert torch.equal(values.cpu().view(torch.int32), expected[0].view(torch.int32))  # bits: -0.0 and NaN included
    assert torch.equal(ids.cpu(), expected[1])
    assert_close(probs, expected[2], "softmax")
    assert_close(logsumexp, expected[3], "float32")


FAST = {(1, F32), (101, BF16), (4097, F32), (1000, F16)}
SIZES = [
    pytest.param(size, dtype, id=f"{size}-{dtype}", marks=() if (size, dtype) in FAST else pytest.mark.slow)
    for size in (1, 2, 97, 100, 101, 128, 1000, 4096, 4097, 8209)
    for dtype in (F32, F16, BF16)
]


@pytest.mark.parametrize("vocab_size, dtype", SIZES)
def test_equals_the_reference(device, vocab_size, dtype):
    run(torch.randn(3, vocab_size).to(device, dtype) * 4, 100)


@pytest.mark.parametrize("k", [1, 127, 128, *(pytest.param(k, marks=pytest.mark.slow) for k in (2, 3, 64, 100))])
def test_every_k(device, k):
    run(torch.randn(2, 777).to(device), k)


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size, dtype", [(32000, F32), (151936, BF16), (160001, F16), (262144, F32)])
def test_vocabularies_of_models(device, vocab_size, dtype):
    run(torch.randn(1, vocab_size).to(device, dtype) * 3, 100)


@pytest.mark.parametrize("vocab_size", [50, 300, 9000])
def test_ties_go_to_the_smaller_id(device, vocab_size):
    rows = torch.stack([
        torch.zeros(vocab_size),
        torch.randn(vocab_size).round(),
        torch.where(torch.arange(vocab_size) % 2 == 0, 0.0, -0.0),
        torch.arange(vocab_size).flip(0).floor_divide(40).float(),
    ])  # fmt: skip
    run(rows.to(device), 100)


def test_infinities_and_nan(device):
    """A masked vocabulary, a fully masked row, +inf, and NaN of either sign, in the reference's order."""
    x = torch.randn(8, 5000)
    x[0, 3:] = -torch.inf
    x[1] = -torch.inf
    x[2, 4321] = torch.inf
    x[3, 17] = torch.nan
    x[4, 17], x[4, 4500] = -torch.nan, torch.nan
    x[5, :4096] = -torch.inf  # a whole block
    x[6] = torch.inf
    x[7] = -1e30
    run(x.to(device), 100)


def test_extreme_numbers(device):
    x = torch.tensor([[3.4e38, -3.4e38, 1e-45, -1e-45, 0.0, -0.0, 1.0, -1.0]])
    run(x.to(device), 8)
    run(torch.tensor([[6e-8, -6e-8, 65504.0, -65504.0, 0.0, -0.0]]).to(device, F16), 6)


def test_strides_and_rows(device):
    x = torch.randn(500, 7).to(device)
    run(x.T, 100)
    run(x.T[::2], 100)
    run(x.T[:, ::3], 100)
    run(x.T, 100, torch.tensor([6, 0, 0, 3], device=device))


def test_row_out_of_range_is_empty(device):
    from caw.triton_kernels.topk_softmax import topk_softmax

    values, ids, probs, logsumexp = topk_softmax(
        torch.randn(2, 300).to(device), 5, torch.tensor([2, -1], device=device)
    )
    assert (values == -torch.inf).all() and (ids == -1).all() and (probs == 0).all() and (logsumexp == -torch.inf).all()


def test_no_rows(device):
    from caw.triton_kernels.topk_softmax import topk_softmax

    none = torch.empty(0, dtype=torch.int64, device=device)
    assert [tuple(x.shape) for x in topk_softmax(torch.randn(2, 30).to(device), 5, none)] == [(0, 5)] * 3 + [(0,)]


@pytest.mark.parametrize(
    "name, arguments, error",
    [
        ("logits", (torch.zeros(2, 3, dtype=torch.int64), 1), TypeError),
        ("logits", (torch.zeros(3), 1), ValueError),
        ("logits", (torch.zeros(2, 0), 1), ValueError),
        ("logits", (torch.zeros(1, 1).expand(1, 262145), 1), ValueError),
        ("k", (torch.zeros(2, 300), 129), ValueError),
        ("k", (torch.zeros(2, 300), 0), ValueError),
        ("rows", (torch.zeros(2, 300), 5, torch.zeros(1, dtype=torch.int32)), TypeError),
        ("rows", (torch.zeros(2, 300), 5, torch.zeros(1, 1, dtype=torch.int64)), ValueError),
    ],
)
def test_bad_input_names_the_argument(device, name, arguments, error):
    from caw.triton_kernels.topk_softmax import topk_softmax

    moved = [x.to(device) if isinstance(x, torch.Tensor) else x for x in arguments]
    with pytest.raises(error, match=rf"^{name} must"):
        topk_softmax(*moved)
