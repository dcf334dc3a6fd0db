"""What `load_model(weights=...)` may be, and where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from caw.io.show import shown

if TYPE_CHECKING:  # takes seconds to import
    import torch

FILE_WEIGHTS, ROUNDED_WEIGHTS = ("file", "file-fast"), ("int8", "int4")


def check_quantised(weights: str, source: Path, device: torch.device, dtype: str | torch.dtype) -> None:
    """Raise ValueError, or ImportError without the compiled extension, unless these weights can be had."""
    from caw import ops

    if weights not in (*FILE_WEIGHTS, *ROUNDED_WEIGHTS):
        known = ", ".join((*FILE_WEIGHTS, *ROUNDED_WEIGHTS))
        raise ValueError(f"weights must be None, {known}, got {shown(weights)}; leave it out for plain numbers")
    is_file = source.suffix == ".gguf"
    if is_file != (weights in FILE_WEIGHTS):
        found, remedy = ("one", "'file'") if is_file else ("another model", "'int8' or 'int4'")
        kind = "a model that is no .gguf file" if is_file else "a .gguf file"
        raise ValueError(f"weights={weights!r} is for {kind}, found {found}; use {remedy}")
    if device.type != "cpu" or str(dtype) not in ("auto", "float32", "torch.float32"):
        raise ValueError(
            f"weights={weights!r} computes in float32 on a CPU, found {dtype} on {device}; leave dtype out and "
            "load with device='cpu', or leave weights out"
        )
    if ops.missing_extension():
        raise ImportError(f"weights={weights!r} needs the compiled extension: {ops.missing_extension()}")
