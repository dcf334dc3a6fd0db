"""Checks of what a user gave: one sentence that says what was expected, what was found, and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from caw.io.show import shown


def require_number(name: str, value: Any, low: float, high: float, *, closed: bool) -> None:
    """Raise unless value is a finite real number in (low, high), or [low, high] if closed."""
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
