"""Modules and tensors of a model, listed once, so that what was derived from them holds until they change.

Walking the modules of a 30-layer model takes milliseconds, and a call of `caw.generate` asks a dozen questions of that
kind before its first step. Comparing what a model is made of with an earlier list takes half a millisecond.
"""

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
_call = threading.local()  # .models: those looked at in the call that this thread is in, if it is in one


@contextmanager
def looked_at_once() -> Iterator[None]:
    """Look at each model only once inside the block, in this thread: between the checks of a call none changes."""
    before = getattr(_call, "models", None)
    _call.models = []
    try:
        yield
    finally:
        _call.models = before


class ModelParts:
    """What a model was made of when it was looked at, and all that is known of it for as long as it is.

    Compared are its modules (their classes, names and places), its parameters and buffers as objects, and where and in
    what shape, dtype and layout each of them lies. Not compared: numbers in the tensors, hooks, modes, replaced
    forwards and other attributes.

    below: its modules, without the model itself.

    Kept in the model's own `__dict__`: a table beside the models would keep every model alive to which something below
    it refers, a hook for one. Copies and files of a model do without. Holds no tensor itself; what was derived may,
    until the next call finds the model changed.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.below = tuple(model.modules())[1:]
        self._structure, tensors = self._look(model)
        self._tensors = [_nothing if tensor is None else ref(tensor) for tensor in tensors]
        self._layouts = list(map(_layout, tensors))
        self._known: dict[str, tuple[Any, Any]] = {}
        self._hooked: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, model: torch.nn.Module) -> "ModelParts":
        """Return the parts found before if the model still has them, else those it has now."""
        known: ModelParts | None = model.__dict__.get(NAME)
        looked = getattr(_call, "models", None)
        if known is not None and looked is not None and any(model is one for one in looked):
            return known
        if known is None or not known.hold(model):
            known = model.__dict__[NAME] = cls(model)
        known._hooked = None
        if looked is not None:
            looked.append(model)
        return known

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

    def known(self, name: str, about: Any = None) -> Any:
        """Return what was kept under this name for this `about`; None if there is nothing."""
        earlier, value = self._known.get(name, (None, None))
        return value if earlier == about else None

    def keep(self, name: str, value: T, about: Any = None) -> T:
        """Keep a value under this name in place of an earlier one, and return it."""
        self._known[name] = about, value
        return value

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` returned at the first call under this name."""
        if name not in self._known:
            self.keep(name, make())
        value: T = self._known[name][1]
        return value

    def hooked(self, model: torch.nn.Module) -> tuple[Any, ...]:
        """Return which modules run as their class says, and which train: what of them may change without a part."""
        if self._hooked is None:
            self._hooked = tuple((runs_as_written(m), m.training) for m in (model, *self.below))
        return self._hooked

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


def runs_as_written(module: torch.nn.Module) -> bool:
    """Tell whether it has no hook and no replaced forward: this library's operators would call neither."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return "forward" not in module.__dict__ and not any(hooks)


def _nothing() -> None:
    """Stand for the weak reference of a parameter that is None."""


def _layout(tensor: torch.Tensor | None) -> tuple[Any, ...]:
    if tensor is None:
        return ()
    if type(tensor) in PLAIN and tensor.layout is torch.strided:
        return tensor.dtype, tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()
    return tensor.dtype, tensor.device, tensor.shape  # wrapped tensors have no address of their own
