"""Exact top-K by the kernel: the tests of the compiled one, vocabularies of models, and rows that do not exist."""

from __future__ import annotations

import pytest
import torch
from csrc.test_topk_softmax import *  # noqa: F403
from csrc.test_topk_softmax import check


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size, dtype", [(151936, torch.bfloat16), (262144, torch.float32)])
def test_vocabularies_of_models(kernel, vocab_size, dtype):
    check(kernel, torch.randn(1, vocab_size).to(dtype) * 3, 100)


def test_row_out_of_range_is_empty(kernel):
    values, ids, probs, logsumexp = kernel("topk_softmax", torch.randn(2, 300), 5, torch.tensor([2, -1]))
    assert (values == -torch.inf).all() and (ids == -1).all() and (probs == 0).all() and (logsumexp == -torch.inf).all()


@pytest.mark.parametrize("name, columns, k", [("logits", 0, 1), ("logits", 262145, 1), ("k", 300, 129)])
def test_what_is_beyond_the_kernel_is_named(kernel, name, columns, k):
    with pytest.raises(ValueError, match=rf"^{name} must"):
        kernel("topk_softmax", torch.zeros(1, 1).expand(1, columns), k)
