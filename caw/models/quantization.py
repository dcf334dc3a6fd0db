"""Values of `load_model(quantization=...)`, and where each is supported."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import TYPE_CHECKING

from caw.io.show import shown
from caw.io.warn import warn_caller
from caw.models.device import resolve_dtype
from caw.models.gguf import cache_folder, is_gguf, require_gguf_packages

if TYPE_CHECKING:  # takes seconds to import
    import torch

FILE_WEIGHTS, ROUNDED_WEIGHTS = ("file", "file-fast"), ("int8", "int4")
GPU_WEIGHTS = ("fp8", *ROUNDED_WEIGHTS)
TRITON = (3, 6)  # the oldest whose kernels are compiled here


def usual_weights(source: Path, device: torch.device, dtype: str | torch.dtype) -> str | None:
    """Return what `quantization=None` means: "file" for a .gguf file on a CPU where "auto" is float32, else None."""
    import torch

    if not is_gguf(source):
        return None
    require_gguf_packages()  # before the file is read
    if device.type != "cpu" or str(dtype) != "auto" or resolve_dtype(dtype, device) != torch.float32:
        return None
    return block_weights(source)


def block_weights(source: Path) -> str | None:
    """Return "file" for a .gguf file, None with a warning if its blocks are not supported. Raises as reading does."""
    from caw import ops
    from caw.models.gguf_file import GGUFFile
    from caw.models.gguf_kinds import require_model

    cache_folder(source)  # says best that it is missing or no GGUF file
    file = GGUFFile(source)
    require_model(file)
    reason = ops.missing_extension() or file.why_not_blocks()
    if not reason:
        return "file"
    warn_caller(f"{source.name} is dequantized, which takes longer and more memory: {reason}")
    return None


def usual_device(weights: str | None, device: str | None) -> str | None:
    """Return the device to use: the given one, otherwise a CPU for a file's blocks, which need one."""
    return device or ("cpu" if weights in FILE_WEIGHTS else None)


def check_quantization(
    weights: str, source: Path, device: torch.device, dtype: str | torch.dtype, option: str = "quantization"
) -> None:
    """Raise ValueError, or ImportError for the extension, for what is not supported. option: its name in messages."""
    check_name(weights, option)
    given = f"{option}={weights!r}"
    if device.type == "cuda" and weights in GPU_WEIGHTS:
        return _check_triton(given)
    is_file = is_gguf(source)
    if weights not in (*FILE_WEIGHTS, *ROUNDED_WEIGHTS):
        raise ValueError(f"{given} is for a GPU, found {device}; load with device='cuda', or use {_remedy(is_file)}")
    if is_file != (weights in FILE_WEIGHTS):
        found = "one" if is_file else "another model"
        kind = "a model that is no .gguf file" if is_file else "a .gguf file"
        raise ValueError(f"{given} is for {kind}, found {found}; use {_remedy(is_file)}")
    if device.type != "cpu" or str(dtype) not in ("auto", "float32", "torch.float32"):
        raise ValueError(
            f"{given} computes in float32 on a CPU, found {dtype} on {device}; leave dtype out and "
            f"load with device='cpu', or leave {option} out"
        )
    from caw import ops

    if ops.missing_extension():
        raise ImportError(f"{given} requires the compiled extension: {ops.missing_extension()}")


def check_name(weights: str, option: str = "quantization") -> None:
    """Raise ValueError unless the name is a quantization of some model on some device."""
    known = (*FILE_WEIGHTS, *GPU_WEIGHTS)
    if weights not in known:
        found = f"{option} must be one of {', '.join(known)}, got {shown(weights)}"
        raise ValueError(f"{found}; leave it out for plain numbers")


def _remedy(is_file: bool) -> str:
    return "'file'" if is_file else "'int8' or 'int4'"


def _check_triton(given: str) -> None:
    """Raise ImportError if the kernels of this quantization are not available."""
    try:
        found = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    least, numbers = ".".join(map(str, TRITON)), re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < TRITON:
        raise ImportError(
            f"{given} requires Triton {least} or newer, found {found}; run `pip install 'triton>={least}'`"
        )
