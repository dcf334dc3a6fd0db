"""Exact top-K, compiled and by the Triton kernel: the reference's values and ids bit for bit, and its probabilities."""

from typing import Any

import pytest
import torch
from pairwise import pairwise

from caw.testing import assert_close
from caw.triton_kernels.topk_softmax_ref import topk_softmax_ref

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def check(kernel: Any, logits: torch.Tensor, k: int, rows: torch.Tensor | None = None) -> None:
    values, ids, probs, logsumexp = kernel("topk_softmax", logits, k, rows)
    expected = topk_softmax_ref(logits, k, rows)
    bits = [x.nan_to_num(nan=1.5).view(torch.int32) for x in (values, expected[0])]  # the sign of zeros included
    assert torch.equal(*bits)
    assert torch.equal(ids, expected[1])
    assert_close(probs, expected[2], "softmax")
    assert_close(logsumexp, expected[3], "float32")


@pytest.mark.parametrize(
    "vocab_size, dtype, k", pairwise([1, 16, 101, 1009, 4097], [F32, F16, BF16], [1, 7, 100, 127, 128])
)
def test_equals_the_reference(kernel: Any, vocab_size: int, dtype: torch.dtype, k: int) -> None:
    logits = (torch.randn(4, vocab_size) * 4).to(dtype)
    logits[1] = logits[1].float().round().to(dtype)  # ties everywhere
    logits[2] = 0  # nothing but ties
    logits[3] = logits[3].sort().values  # every later token beats all before
    check(kernel, logits, k)


def test_ties_and_zeros_go_to_the_smaller_id(kernel: Any) -> None:
    steps = torch.arange(300).flip(0).floor_divide(40).float()
    check(kernel, torch.stack([steps, torch.where(torch.arange(300) % 2 == 0, 0.0, -0.0)]), 100)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_infinities_and_nan(kernel: Any, dtype: torch.dtype) -> None:
    """A masked vocabulary, a fully masked row, +inf, and NaN of either sign, in the reference's order."""
    x = torch.randn(9, 5000).to(dtype)
    x[0, 3:], x[1], x[2, 4321], x[3, 17] = -torch.inf, -torch.inf, torch.inf, torch.nan
    x[4, 17], x[4, 4500] = -torch.nan, torch.nan
    x[5, :4096] = -torch.inf  # a whole block
    x[6], x[7], x[8, ::2] = torch.inf, -3e4, -torch.inf
    check(kernel, x, 100)


def test_extreme_numbers(kernel: Any) -> None:
    check(kernel, torch.tensor([[3.4e38, -3.4e38, 1e-45, -1e-45, 0.0, -0.0, 1.0, -1.0]]), 8)
    check(kernel, torch.tensor([[6e-8, -6e-8, 65504.0, -65504.0, 0.0, -0.0]]).to(F16), 6)


def test_strides_and_chosen_rows(kernel: Any) -> None:
    logits = torch.randn(6, 700)
    check(kernel, logits, 50, torch.tensor([5, 0, 5]))
    check(kernel, logits, 50, torch.empty(0, dtype=torch.int64))
    for strided in (logits.t().contiguous().t(), logits[::2, ::3], logits.bfloat16()[:, 1::2],
                    logits[:1].expand(3, -1), logits[:0]):  # fmt: skip
        check(kernel, strided, 50)


@pytest.mark.parametrize("name, logits, more", [
    ("logits", torch.zeros(2, 3, dtype=torch.int64), (1,)), ("logits", torch.zeros(3), (1,)),
    ("k", torch.zeros(2, 300), (0,)), ("rows", torch.zeros(2, 300), (5, torch.zeros(1, dtype=torch.int32))),
    ("rows", torch.zeros(2, 300), (5, torch.zeros(1, 1, dtype=torch.int64))),
])  # fmt: skip
def test_bad_input_names_the_argument(kernel: Any, name: str, logits: torch.Tensor, more: tuple[Any, ...]) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError), match=rf"^{name} must"):
        kernel("topk_softmax", logits, *more)
