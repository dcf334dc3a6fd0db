"""One decoding step at a time for a model: within a step, its layers and its attention are this library's."""

import threading
from typing import Any
from weakref import WeakKeyDictionary

_locks: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()
_guard = threading.Lock()


def model_lock(model: Any) -> threading.RLock:
    """Return the lock of this model, the same for every thread and decoder; it lives as long as the model.

    Two threads may generate with one model: their steps take turns. What they must not do meanwhile is call the model
    themselves.
    """
    with _guard:
        return _locks.setdefault(model, threading.RLock())
