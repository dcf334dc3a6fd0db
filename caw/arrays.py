"""Arrays of either library: what marking does in torch, scoring does in NumPy too, so that detection needs no torch.

A watermark's file holds both sides. It takes `torch`, and `ops`, whose operators need it, from here: both are imported
when a tensor is at hand. What is written once for tensors and arrays uses names that both libraries have (`space_of`).
"""

import importlib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from caw.requirements import require

if TYPE_CHECKING:
    import torch as torch  # others take it from here

    from caw import ops as ops

LAZY = {"torch": "torch", "ops": "caw.ops"}


class LazyModule:
    """A module that is imported when an attribute is first asked for; ImportError in one sentence without torch."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if self._name not in sys.modules:
            require("torch", "marking texts and running models")
        return getattr(importlib.import_module(self._name), name)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:  # for `from caw.arrays import torch`
        if name not in LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return sys.modules.get(LAZY[name]) or LazyModule(LAZY[name])


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor; nobody has one who has not imported torch."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(value, module.Tensor)


def space_of(values: Any) -> Any:
    """The library of an array, whose functions take axes by place: `numpy` or `torch`."""
    return np if isinstance(values, np.ndarray) else sys.modules["torch"]


def columns(values: Any) -> Iterable[Any]:
    """The columns of an array [..., W], each [...]."""
    return iter(space_of(values).moveaxis(values, -1, 0))


def float64(values: Any) -> Any:
    return values.astype(np.float64) if isinstance(values, np.ndarray) else values.double()


def clamped(values: Any) -> Any:
    """Integers with 0 in place of those below: missing tokens."""
    return np.maximum(values, 0) if isinstance(values, np.ndarray) else values.clamp_min(0)


def beside(table: Any, values: Any) -> Any:
    """A table, array or tensor, in the library and on the device of the values."""
    if isinstance(values, np.ndarray):
        return table.numpy() if is_tensor(table) else table
    return space_of(values).as_tensor(table).to(values.device)
