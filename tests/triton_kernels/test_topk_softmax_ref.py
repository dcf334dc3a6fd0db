"""The reference top-K against a plain stable sort: exact values, ids and ties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pairwise import pairwise

from caw.testing import assert_close
from caw.triton_kernels.topk_softmax_ref import ordered_bits, topk_softmax_ref


def slow(row: list[float], k: int) -> tuple[list[float], list[int]]:
    """Sort ids by (descending value, id); -0.0 equals 0.0. Padded with -inf and -1."""
    ids = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
    pad = k - len(ids)
    return [row[i] for i in ids] + [-math.inf] * pad, ids + [-1] * pad


def check(logits: torch.Tensor, k: int, rows: torch.Tensor | None = None) -> None:
    values, ids, probs, logsumexp = topk_softmax_ref(logits, k, rows)
    used = (logits if rows is None else logits[rows]).float()
    assert values.shape == ids.shape == probs.shape == (len(used), k) and logsumexp.shape == (len(used),)
    assert (values.dtype, ids.dtype, probs.dtype, logsumexp.dtype) == (
        torch.float32, torch.int64, torch.float32, torch.float32,
    )  # fmt: skip
    for i, row in enumerate(used.tolist()):
        expected_values, expected_ids = slow(row, k)
        assert ids[i].tolist() == expected_ids
        assert values[i].tolist() == expected_values
    exact = torch.logsumexp(used.double(), dim=-1)
    assert_close(logsumexp, exact, "float32")
    # of the float32 logsumexp: half a unit in its last place is half a millionth of every probability
    expected = torch.where(values > -torch.inf, (values.double() - logsumexp.double()[:, None]).exp(), 0.0)
    assert_close(probs, expected, "float32")


@pytest.mark.parametrize(
    "vocab_size, k, dtype",
    pairwise([1, 2, 99, 100, 101, 1009], [1, 7, 100], [torch.float32, torch.bfloat16, torch.float16]),
)
def test_random_rows(vocab_size: int, k: int, dtype: torch.dtype) -> None:
    check((torch.randn(5, vocab_size) * 4).to(dtype), k)


def test_masked_rows() -> None:
    logits = torch.randn(6, 211)
    logits[1, ::2] = -torch.inf
    logits[2, 1:] = -torch.inf
    logits[3, 30:] = -torch.inf  # fewer than K left: masked ones follow by id
    logits[4, :] = -torch.inf
    check(logits, 100)
    *_, probs, logsumexp = topk_softmax_ref(logits, 100)
    assert float(logsumexp[4]) == -math.inf and float(probs[4].abs().sum()) == 0.0
    assert not bool(probs.isnan().any())


@pytest.mark.parametrize("rows", [[2], [4, 0, 4], []])
def test_chosen_rows(rows: list[int]) -> None:
    check(torch.randn(5, 31), 10, torch.tensor(rows, dtype=torch.int64))


finite = st.floats(width=32, allow_nan=False)


@given(a=finite, b=finite)
def test_ordered_bits_order_as_the_floats_do(a: float, b: float) -> None:
    first, second = ordered_bits(torch.tensor([a, b])).tolist()
    assert (first < second, first == second) == (a < b, a == b)


@given(
    row=st.lists(finite | st.sampled_from([0.0, -0.0, 1.0, -math.inf]), min_size=1, max_size=20), k=st.integers(1, 25)
)
def test_any_row(row: list[float], k: int) -> None:
    values, ids, *_ = topk_softmax_ref(torch.tensor([row]), k)
    expected_values, expected_ids = slow(row, k)
    assert ids[0].tolist() == expected_ids and values[0].tolist() == expected_values
