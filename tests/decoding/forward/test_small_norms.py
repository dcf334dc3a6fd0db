"""Norms of a GPU's step as one operator: which of them, the model's own numbers, and the rows that are left alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from decoding.architectures import build

from caw import ops
from caw.decoding.forward import fused_layers
from caw.decoding.forward.small_norms import norm_forwards
from caw.testing import assert_close


@pytest.mark.parametrize(("name", "of_a_layer"), [("llama", 2), ("qwen3", 4), ("gemma", 2), ("gemma2", 4)])
def test_every_norm_on_a_gpu_and_none_elsewhere(name: str, of_a_layer: int) -> None:
    model = build(name)
    assert norm_forwards(model) == []
    model = copy.deepcopy(model).to("meta")  # stands for a GPU's
    assert len(norm_forwards(model)) == of_a_layer * model.config.num_hidden_layers + 1
    model.model.norm.forward = lambda x: x
    assert len(norm_forwards(model)) == of_a_layer * model.config.num_hidden_layers


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_the_operator_gives_the_models_own_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 64 rows of the weights' dtype go to it, in any strides; all others to the model's own forward."""
    calls: list[int] = []
    original = ops.rms_norm

    def counted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        assert x.is_contiguous()
        calls.append(x.numel() // x.shape[-1])
        return original(x, *rest)

    monkeypatch.setattr(fused_layers, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(ops, "rms_norm", counted)
    norm = copy.deepcopy(build(name).model.norm)
    width = norm.weight.shape[0]
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1, 2, width))
    _, forward = norm_forwards(norm)[-1]
    torch.manual_seed(2)
    for x in (
        torch.randn(2, 3, width),
        torch.randn(2, width, 32).mT,
        torch.randn(65, width),
        torch.randn(3, width).half(),
    ):
        assert_close(forward(x), norm(x), "float32")
    assert calls == [6, 64]
