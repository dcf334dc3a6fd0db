"""Layers that hold quantised blocks and multiply by them where they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from caw import ops


class _Packed(torch.nn.Module):
    """Packed weights [outputs, inputs]; they stay on the CPU and compute in float32."""

    packed: torch.Tensor

    def __init__(self, packed: torch.Tensor, outputs: int, inputs: int) -> None:
        super().__init__()
        self.register_buffer("packed", packed)
        self.outputs, self.inputs = outputs, inputs

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        probe = fn(torch.zeros(1))
        if probe.dtype != torch.float32 or probe.device.type != "cpu":
            raise ValueError(
                f"expected a model of quantised weights to stay in float32 on the CPU, found a move to "
                f"{probe.dtype} on {probe.device}; load it with load_model(..., weights=None) and a dtype"
            )
        return self

    def extra_repr(self) -> str:
        """Sizes, as torch.nn.Linear shows its own."""
        return f"outputs={self.outputs}, inputs={self.inputs}, bytes={self.packed.nbytes}"


class QuantisedLinear(_Packed):
    """In place of torch.nn.Linear: float32 x [..., inputs] -> [..., outputs].

    A row's result has the same bits whatever other rows come with it. No gradient.
    """

    def __init__(self, packed: torch.Tensor, outputs: int, inputs: int, bias: torch.Tensor | None = None) -> None:
        super().__init__(packed, outputs, inputs)
        self.out_features, self.in_features = outputs, inputs
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, plus the bias if there is one."""
        rows = x.reshape(-1, self.inputs)
        return ops.quantised_linear(rows, self.packed, self.outputs, self.bias).view(*x.shape[:-1], self.outputs)


class HalfLinear(QuantisedLinear):
    """The same of a weight [outputs, inputs] in float16 or bfloat16, which is widened as it is read.

    A result has the same bits as that of the weight in float32.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, plus the bias if there is one."""
        return ops.small_linear(x.reshape(-1, self.inputs), self.packed, self.bias).view(*x.shape[:-1], self.outputs)


class HalfEmbedding(_Packed):
    """In place of torch.nn.Embedding, with a weight in float16 or bfloat16: ids [...] -> float32 [..., inputs]."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of these ids; IndexError for ids outside the vocabulary."""
        return torch.nn.functional.embedding(ids, self.packed).float()


class QuantisedEmbedding(_Packed):
    """In place of torch.nn.Embedding: ids [...] -> float32 [..., inputs], the dequantised rows."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of these ids; RuntimeError for ids outside the vocabulary."""
        return ops.unpack_rows(self.packed, ids.reshape(-1), self.inputs).view(*ids.shape, self.inputs)
