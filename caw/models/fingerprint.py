"""A digest of a model's numbers, in a moment: a sample of every weight tensor."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

SAMPLES = 16  # of a tensor, evenly spaced; another training, precision or quantisation changes them


def fingerprint(model: Any) -> str:
    """SHA-256, in hex, of the names, shapes, dtypes and some values of a model's parameters."""
    found = hashlib.sha256()
    for name, parameter in model.named_parameters():
        flat = parameter.detach().flatten()
        places = torch.linspace(0, max(flat.numel() - 1, 0), SAMPLES).long().to(flat.device)
        values = flat[places].float().tolist() if flat.numel() else []
        found.update(repr((name, tuple(parameter.shape), str(parameter.dtype), values)).encode())
    return found.hexdigest()
