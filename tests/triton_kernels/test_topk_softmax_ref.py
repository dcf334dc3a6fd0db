"""The reference top-K against a plain stable sort: exact values, ids and ties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 99, 100, 101, 1009])
@pytest.mark.parametrize("k", [1, 7, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_random_rows(vocab_size: int, k: int, dtype: torch.dtype) -> None:
    check((torch.randn(5, vocab_size) * 4).to(dtype), k)


@pytest.mark.parametrize("vocab_size", [1, 5, 100, 257])
def test_ties(vocab_size: int) -> None:
    check(torch.randint(-1, 2, (7, vocab_size)).float(), 100)
    check(torch.zeros(3, vocab_size), 13)
    check(torch.full((2, vocab_size), -3.5).bfloat16(), 100)
    check(torch.where(torch.rand(4, vocab_size) < 0.5, 0.0, -0.0), 20)


def test_bfloat16_rows_have_ties_and_they_go_to_the_smaller_id() -> None:
    logits = (torch.randn(4, 4001) * 3).bfloat16()
    assert all(len(row.unique()) < 2000 for row in logits)
    check(logits, 100)


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


def test_strided_rows() -> None:
    base = torch.randn(40, 3, 50)
    check(base[::3, 1], 9)
    check(base[:, 0, ::7], 9)
    check(base[:, 0].t(), 9)
    check(base[0, :1].expand(4, -1), 9)


def test_no_rows() -> None:
    values, ids, probs, logsumexp = topk_softmax_ref(torch.empty(0, 12), 5)
    assert values.shape == ids.shape == probs.shape == (0, 5) and logsumexp.shape == (0,)


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
