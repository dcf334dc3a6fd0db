"""Argument checks with one-sentence errors: expected, found, remedy."""

import math
import numbers
from collections.abc import Sequence
from typing import Any

from caw.io.show import shown


def require_number(name: str, value: Any, low: float, high: float, *, closed: bool) -> None:
    """Raise unless value is a finite real number in (low, high), or in [low, high] if closed."""
    expected = f"{name} must be a number in {'[' if closed else '('}{low:g}, {high:g}{']' if closed else ')'}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{expected}, got {type(value).__name__} {shown(value)}; pass a plain number")
    inside = low <= value <= high if closed else low < value < high  # false of NaN
    if not inside or value in (math.inf, -math.inf):
        raise ValueError(f"{expected}, got {shown(value)}; choose a value inside")


def require_int(name: str, value: Any, low: int, high: int) -> None:
    """Raise unless value is an int in [low, high]."""
    expected = f"{name} must be an integer in [{low}, {high}]"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{expected}, got {type(value).__name__} {shown(value)}; pass a plain integer")
    if not low <= value <= high:
        raise ValueError(f"{expected}, got {shown(value)}; choose a value inside")


def require_bool(name: str, value: Any) -> None:
    """Raise unless value is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {shown(value)}; leave it out")


def require_choice(name: str, value: Any, known: Sequence[str], use: str) -> None:
    """Raise ValueError unless value is one of the names."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {shown(value)}; use {use!r}")


def require_ints(name: str, values: Any) -> list[int]:
    """Return integers of a list, a tuple, an array or a tensor as plain ones; raise TypeError for anything else."""
    plain = values.tolist() if hasattr(values, "tolist") else values
    expected = f"{name} must be a list of integers, got"
    if not isinstance(plain, Sequence) or isinstance(plain, str | bytes):
        raise TypeError(f"{expected} {shown(values)}; convert it")
    kinds = set(map(type, plain))
    if strange := {kind.__name__ for kind in kinds if not issubclass(kind, numbers.Integral) or kind is bool}:
        raise TypeError(f"{expected} one with {', '.join(sorted(strange))}; convert it")
    return list(plain) if kinds <= {int} else [int(value) for value in plain]
