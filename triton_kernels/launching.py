"""How every launcher of this folder checks its arguments and starts its kernel.

A launch goes through `launch`, so that `benchmarks/aot.py` can record exactly what a launcher would run (kernel, grid,
argument types, their divisibility) and compile that without a GPU.
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from triton import knobs

# what @triton.jit made of the kernels of this process: decided when they were decorated, that is at import
INTERPRETED: bool = bool(knobs.runtime.interpret)
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
# streaming multiprocessors a grid should fill: H100 and H200 have 132. A constant, because asking the driver would tie
# the number of splits, and with it the rounding, to the card, and fails where there is none.
SM_COUNT = 132


@dataclass(frozen=True)
class Launch:
    """One kernel start as a launcher asked for it."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    options: dict[str, Any]


_recorder: ContextVar[list[Launch] | None] = ContextVar("caw_launch_recorder", default=None)


@contextlib.contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Inside the block nothing runs: launches are appended to the list, and tensors may be on the meta device."""
    launches: list[Launch] = []
    token = _recorder.set(launches)
    try:
        yield launches
    finally:
        _recorder.reset(token)


def launch(kernel: Any, grid: Sequence[int], arguments: dict[str, Any], **options: Any) -> None:
    """Start `kernel` over `grid` with named arguments; options are Triton's (num_warps, num_stages, ...).

    Fused multiply-add is on unless the options say otherwise: Triton's own default changes with its version.
    """
    options.setdefault("enable_fp_fusion", True)
    if not all(grid):  # nothing to do: a batch of zero, which CUDA refuses as a grid
        return
    recorder = _recorder.get()
    if recorder is not None:
        recorder.append(Launch(kernel, tuple(grid), arguments, options))
        return
    kernel[tuple(grid)](**arguments, **options)


def check(condition: bool, expected: str, found: Any, remedy: str) -> None:
    """Raise ValueError "expected ..., got ...; remedy" unless the condition holds."""
    if not condition:
        raise ValueError(f"{expected}, got {found}; {remedy}")


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int | None],
    like: torch.Tensor | None = None,
) -> None:
    """Raise TypeError or ValueError naming the argument unless dtype, shape (None = any) and device are right."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}; pass a torch.Tensor")
    if tensor.dtype not in dtypes:
        names = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        found = str(tensor.dtype).removeprefix("torch.")
        raise TypeError(f"{name} must be {names}, got {found}; convert it with {name}.to(...)")
    wanted = "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
    fits = tensor.dim() == len(shape) and all(n is None or n == m for n, m in zip(shape, tensor.shape, strict=True))
    check(fits, f"{name} must have shape {wanted}", list(tensor.shape), "reshape it")
    if like is not None and tensor.device != like.device:
        raise ValueError(f"{name} must be on {like.device}, got {tensor.device}; move it with {name}.to(...)")
    recording = _recorder.get() is not None
    runnable = tensor.is_cuda or (INTERPRETED and tensor.device.type == "cpu") or (recording and tensor.is_meta)
    check(runnable, f"{name} must be on a CUDA device for a Triton kernel", tensor.device, "use the reference on CPU")


def check_lengths(lengths: torch.Tensor, size: int) -> None:
    """Raise ValueError if a length lies outside [0, size]; on a GPU only with TRITON_DEBUG=1, because it must wait.

    Without the check kernels clamp to the cache: a length too long can give a wrong result, never a wild access.
    """
    if lengths.is_meta or lengths.numel() == 0 or (lengths.is_cuda and not knobs.runtime.debug):
        return
    low, high = int(lengths.min()), int(lengths.max())
    check(low >= 0 and high <= size, f"lengths must be in [0, {size}], the places of the cache", [low, high], "grow it")


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def cdiv(a: int, b: int) -> int:
    return -(-a // b)
