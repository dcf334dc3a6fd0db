"""Digests of weights: a fast one, from a sample of every tensor, and one of every byte."""

import hashlib
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch

SAMPLES = 16  # of a tensor, evenly spaced; another training, precision or quantization changes them


def fingerprint(model: Any) -> str:
    """Return SHA-256, in hex, of the names, shapes, dtypes and some values of a model's parameters and buffers.

    A model of `keep_halves` has that of the float32 model, whose texts it gives.
    """
    found, wide = hashlib.sha256(), getattr(model, "stands_for_float32", False)
    for name, parameter in _widened(model) if wide else chain(model.named_parameters(), model.named_buffers()):
        flat = parameter.detach().flatten()
        # in integers: float32 cannot name the last place of a tensor of more than 2^24 numbers
        places = torch.arange(SAMPLES, device=flat.device) * max(flat.numel() - 1, 0) // (SAMPLES - 1)
        values = flat[places].float().tolist() if flat.numel() else []
        dtype = torch.float32 if wide else parameter.dtype
        found.update(repr((name, tuple(parameter.shape), str(dtype), values)).encode())
    return found.hexdigest()


def _widened(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Return parameters, then buffers, by the names that they have where every matrix is a parameter."""
    parameters: dict[int, tuple[str, torch.Tensor]] = {}  # by tensor, of which the first name counts
    buffers = parameters.copy()
    for path, module in model.named_modules():
        half = "packed" in module._buffers
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            place = parameters if half or name in module._parameters else buffers
            if tensor is not None:
                place.setdefault(id(tensor), (f"{path}.{'weight' if name == 'packed' else name}", tensor))
        if half and getattr(module, "scale", 1) != 1:
            buffers[id(module)] = (f"{path}.embed_scale", torch.tensor(module.scale))
    return [*parameters.values(), *buffers.values()]


def state_sha256(state: Mapping[str, torch.Tensor]) -> str:
    """Return SHA-256 of the names, dtypes, shapes and bytes of tensors, in order of their names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
