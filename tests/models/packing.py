"""Models with packed weights, and the dense ones that they stand for."""

import copy
from typing import Any

import torch

from caw.models.packed import PackedLinear, pack_model
from caw.triton_kernels.packed_weights_ref import unpack_weight_ref


def packed_pair(model: Any, weights: str) -> tuple[Any, Any]:
    packed = pack_model(copy.deepcopy(model), weights, torch.device("cpu"))
    dense = copy.deepcopy(packed)
    for name, module in list(dense.named_modules()):
        if isinstance(module, PackedLinear):
            made = torch.nn.Linear(module.inputs, module.outputs, bias=module.bias is not None, dtype=module.dtype)
            made.weight.data = unpack_weight_ref(module.packed, module.inputs, module.dtype)
            if module.bias is not None:
                made.bias.data = module.bias.clone()
            parent, _, own = name.rpartition(".")
            setattr(dense.get_submodule(parent), own, made.requires_grad_(False))
    return packed, dense.eval()
