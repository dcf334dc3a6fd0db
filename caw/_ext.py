"""Loads the compiled extension `caw._C` if it was built; says once why not."""

from __future__ import annotations

import importlib.util
import os

import torch

REMEDY = "build it with `pip install -e . --no-build-isolation` (needs a C++ compiler)"


def _load() -> str:
    """Load the library; the reason if it cannot be had, else an empty string."""
    spec = importlib.util.find_spec("caw._C")
    if spec is None or spec.origin is None:
        return f"caw's compiled extension is not installed; {REMEDY}"
    try:
        torch.ops.load_library(spec.origin)
    except OSError as error:
        return f"caw's compiled extension does not load ({error}); {REMEDY}"
    return ""


WHY_MISSING = _load()
if WHY_MISSING and os.environ.get("CAW_EXT") == "require":
    raise ImportError(WHY_MISSING)
