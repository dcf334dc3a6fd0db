"""Norms of few rows in one launch on a GPU, where transformers' take eight.

The last norm of a step stands outside of its layers (`fused_layers`); where layers run as they are, theirs do too.
"""

from __future__ import annotations

from typing import Any

import torch

from caw import ops
from caw.decoding.forward import fused_layers
from caw.decoding.forward.fused_layers import GPU_DTYPES, GPU_WIDTH, few_enough, plain
from caw.decoding.forward.layer_kinds import LAYERS, class_name
from caw.triton_kernels.decoder_layer_ref import FAMILIES

# class of the norm -> what is added to its weights
NORMS = {
    name.removesuffix("DecoderLayer") + "RMSNorm": FAMILIES[kind.family].norm_offset for name, kind in LAYERS.items()
}


def norm_forwards(model: Any) -> list[tuple[dict[str, Any], Any]]:
    """(attributes of a norm, what its forward is to be in a step) of every one that is known and lies on a GPU."""
    norms = [module for module in model.modules() if class_name(module) in NORMS and "forward" not in module.__dict__]
    return [(norm.__dict__, _SmallNorm(norm)) for norm in norms if fused_layers.on_gpu(norm.weight)]


class _SmallNorm:
    """What a norm's forward is: one operator for the rows and weights that it takes, else its own."""

    def __init__(self, layer: Any) -> None:
        self.layer, self.offset = layer, NORMS[class_name(layer)]
        self.eps = float(layer.variance_epsilon if hasattr(layer, "variance_epsilon") else layer.eps)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.layer.weight
        known = weight.dtype in GPU_DTYPES and weight.dtype == x.dtype and plain(weight)
        if not known or not few_enough(x) or not 1 <= x.shape[-1] <= GPU_WIDTH:
            own: torch.Tensor = type(self.layer).forward(self.layer, x)
            return own
        return ops.rms_norm(x.contiguous(), weight, self.eps, self.offset)
