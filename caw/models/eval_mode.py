"""Decode one step at a time, in eval mode, whatever mode the model is in: dropout would make greedy text random."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

# attributes of transformers' layers that hold a dropout rate without a Dropout module
DROPPING = ("dropout", "attention_dropout", "activation_dropout", "layerdrop", "p")


class EvalMode:
    """Put all modules in eval mode inside the block, entered around every step; below: them, if they are known."""

    def __init__(self, model: Any, below: Sequence[torch.nn.Module] | None = None) -> None:
        # __dict__ directly, for speed: hundreds of modules are checked in every step
        modules = model.modules() if below is None else (model, *below)
        self._modules = [module.__dict__ for module in modules]
        self._changed: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self._changed = [attributes for attributes in self._modules if attributes.get("training")]
        for attributes in self._changed:
            attributes["training"] = False

    def __exit__(self, *error: object) -> None:
        for attributes in self._changed:
            attributes["training"] = True


def active_dropout(model: torch.nn.Module) -> str | None:
    """Return the name of a module with active dropout, None if there is none."""
    return next(_active_dropouts(model), None)


def _active_dropouts(model: torch.nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        shares = (getattr(module, kind, 0) for kind in DROPPING) if module.training else ()
        if any(isinstance(share, float) and share > 0 for share in shares):
            yield name or type(module).__name__


_locks: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()
_guard = threading.Lock()


def model_lock(model: Any) -> threading.RLock:
    """Return the model's one lock: threads' steps take turns, and nobody may call the model itself meanwhile."""
    with _guard:
        return _locks.setdefault(model, threading.RLock())
