"""Modules and tensors of a model, listed once, so that what was derived from them holds until they change.

Walking the modules of a 30-layer model takes milliseconds, and a call of `caw.generate` asks a dozen questions of that
kind before its first step. Comparing what a model is made of with an earlier list takes half a millisecond.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any, TypeVar
from weakref import ref

import torch

PLAIN = (torch.Tensor, torch.nn.Parameter)
NAME = "_caw_parts"  # of the model's attribute
T = TypeVar("T")
# .models: those looked at in the call that this thread is in, if it is in one; .noted: what was noted of their parts
_call = threading.local()


@contextmanager
def looked_at_once() -> Iterator[None]:
    """Look at each model only once inside the block, in this thread: between the checks of a call none changes."""
    before = getattr(_call, "models", None), getattr(_call, "noted", None)
    _call.models, _call.noted = [], {}
    try:
        yield
    finally:
        _call.models, _call.noted = before


class ModelParts:
    """What a model was made of when it was looked at.

    Compared are its modules (their classes, names and places), its parameters and buffers as objects, and where and in
    what shape, dtype and layout each of them lies. Not compared: numbers in the tensors, hooks, modes, replaced
    forwards and other attributes.

    below: its modules, without the model itself. derived: what holds as long as the parts do, by name.

    Kept in the model's own `__dict__`: a table beside the models would keep every model alive to which something below
    it refers, a hook for one. Copies and files of a model do without. Holds no tensor itself; what was derived may,
    until the next call finds the model changed.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.below = tuple(model.modules())[1:]
        self._structure, tensors = self._look(model)
        self._tensors = [_nothing if tensor is None else ref(tensor) for tensor in tensors]
        self._layouts = list(map(_layout, tensors))
        self.derived: dict[str, Any] = {}

    @classmethod
    def of(cls, model: torch.nn.Module) -> ModelParts:
        """Return the parts found before if the model still has them, else those it has now."""
        known, looked = model.__dict__.get(NAME), getattr(_call, "models", None)
        if known is not None and looked is not None and any(model is one for one in looked):
            found: ModelParts = known
            return found
        if known is None or not known.hold(model):
            known = model.__dict__[NAME] = cls(model)
        if looked is not None:
            looked.append(model)
        found = known
        return found

    def hold(self, model: torch.nn.Module) -> bool:
        """Tell whether the model still consists of these parts."""
        structure, tensors = self._look(model)
        if len(structure) != len(self._structure) or len(tensors) != len(self._tensors):
            return False
        if not all(map(is_, structure, self._structure)):
            return False
        same = all(map(is_, tensors, (known() for known in self._tensors)))
        return same and list(map(_layout, tensors)) == self._layouts

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Leave nothing in a copy of the model."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` returned at the first call under this name."""
        if name not in self.derived:
            self.derived[name] = make()
        found: T = self.derived[name]
        return found

    def once_a_call(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` returned first under this name in the call of this thread; outside one, make it."""
        noted = getattr(_call, "noted", None)
        if noted is None:
            return make()
        key = (self, name)
        if key not in noted:
            noted[key] = make()
        found: T = noted[key]
        return found

    def _look(self, model: torch.nn.Module) -> tuple[list[Any], list[torch.Tensor | None]]:
        """Return (classes, children and the names of all that the modules hold; their tensors), in one order."""
        modules = (model, *self.below)
        structure: list[Any] = list(map(type, modules))
        tensors: list[Any] = []
        for module in modules:
            held = module.__dict__
            children, parameters, buffers = held["_modules"], held["_parameters"], held["_buffers"]
            if children:
                structure += children
                structure += children.values()
            if parameters:
                structure += parameters
                tensors += parameters.values()
            if buffers:
                structure += buffers
                tensors += buffers.values()
            structure.append(None)  # the next module begins
        return structure, tensors


def _nothing() -> None:
    """Stand for the weak reference of a parameter that is None."""


def _layout(tensor: torch.Tensor | None) -> tuple[Any, ...]:
    if tensor is None:
        return ()
    if type(tensor) in PLAIN and tensor.layout is torch.strided:
        return tensor.dtype, tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()
    return tensor.dtype, tensor.device, tensor.shape  # wrapped tensors have no address of their own
