"""How an op of `ops.py` is registered: schema, CPU kernel or reference, fake, Triton launcher (imported late)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "caw"
library = torch.library.Library(NAMESPACE, "DEF")


def has_kernel(name: str, device: str) -> bool:
    """Whether the op of that name has a kernel for the device type ("cpu", "cuda")."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"{NAMESPACE}::{name}", device.upper()))


def launcher(module: str, function: str) -> Callable[..., Any]:
    """The launcher of a Triton kernel, imported at its first call: this library imports without Triton."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            kernels = importlib.import_module(f"caw.triton_kernels.{module}")
        except ModuleNotFoundError as error:
            if error.name != "triton":
                raise
            raise ImportError(
                f"expected Triton 3.6 or newer for caw.{function} on a CUDA tensor, found none; "
                "install it with `pip install triton`, or ask for backend='reference'"
            ) from error
        return getattr(kernels, function)(*args, **kwargs)

    return call


def register(
    schema: str, reference: Callable[..., Any] | None, fake: Callable[..., Any], triton: str | None = None
) -> Any:
    """Define one op; its CPU kernel is the extension's if that brought one, else the reference if there is one here.

    `triton` names the module in caw.triton_kernels whose function of the op's name serves CUDA tensors.
    """
    name = schema.split("(")[0]
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    if reference is not None and not has_kernel(name, "cpu"):
        library.impl(name, reference, "CPU")
    if triton is not None and not has_kernel(name, "cuda"):
        library.impl(name, launcher(triton, name), "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
    return getattr(torch.ops.caw, name).default
