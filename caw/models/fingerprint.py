"""Digests of weights: a fast one, from a sample of every tensor, and one of every byte."""

import hashlib
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch

SAMPLES = 16  # of a tensor, evenly spaced; another training, precision or quantization changes them


def fingerprint(model: Any) -> str:
    """Return SHA-256, in hex, of the names, shapes, dtypes and some values of a model's parameters and buffers."""
    found = hashlib.sha256()
    for name, parameter in chain(model.named_parameters(), model.named_buffers()):
        flat = parameter.detach().flatten()
        # in integers: float32 cannot name the last place of a tensor of more than 2^24 numbers
        places = torch.arange(SAMPLES, device=flat.device) * max(flat.numel() - 1, 0) // (SAMPLES - 1)
        values = flat[places].float().tolist() if flat.numel() else []
        found.update(repr((name, tuple(parameter.shape), str(parameter.dtype), values)).encode())
    return found.hexdigest()


def state_sha256(state: Mapping[str, torch.Tensor]) -> str:
    """Return SHA-256 of the names, dtypes, shapes and bytes of tensors, in order of their names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
