"""The device and the dtype that a model is loaded to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caw.io.show import shown

if TYPE_CHECKING:  # takes seconds to import
    import torch

SUMS = "float32-sums"  # matrices as the checkpoint has them, in 16 bits, and everything else in float32
DTYPES = ("float32", "bfloat16", "float16", SUMS)


def resolve_device(device: str | torch.device | None) -> torch.device:
    """Return the given device, otherwise CUDA if available. ValueError for an unknown or unavailable one."""
    import torch

    try:
        found = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(
            f"device must be one that torch can use here, got {shown(device)} ({reason}); use 'cpu'"
        ) from error
    return found


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Return the torch dtype of "auto" or a name on this device."""
    import torch

    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    if isinstance(dtype, str) and dtype == "auto":
        return torch.bfloat16 if device.type != "cpu" or _fast_bfloat16() else torch.float32
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"dtype must be auto, {', '.join(DTYPES)} or a torch.dtype, got {shown(dtype)}; use 'auto'")
    found = getattr(torch, "float32" if dtype == SUMS else dtype)
    assert isinstance(found, torch.dtype)
    return found


def keeps_halves(dtype: str | torch.dtype, device: torch.device) -> bool:
    """Tell whether 16-bit matrices stay beside float32: asked for (on a CPU, or ValueError), or "auto" there."""
    import torch

    if str(dtype) == SUMS and device.type != "cpu":
        raise ValueError(f"dtype={SUMS!r} is for a CPU, found {device}; use 'bfloat16'")
    return str(dtype) == SUMS or (str(dtype) == "auto" and resolve_dtype(dtype, device) == torch.float32)


def _fast_bfloat16() -> bool:
    import torch

    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)
