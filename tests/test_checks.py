"""Checks of arguments: what passes, and one sentence for what does not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from caw.checks import require_bool, require_choice, require_int, require_number


@pytest.mark.parametrize("value", [0, 1, 0.5, 0.0, 1.0])
def test_numbers_of_a_closed_interval(value: Any) -> None:
    require_number("x", value, 0, 1, closed=True)


@pytest.mark.parametrize("value", [-1e-9, 1.0000001, math.nan, math.inf, -math.inf])
def test_numbers_outside(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^x must be a number in \[0, 1\], got .*; choose a value inside$"):
        require_number("x", value, 0, 1, closed=True)


@pytest.mark.parametrize("value", [0, 1])
def test_ends_of_an_open_interval(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^x must be a number in \(0, 1\), got"):
        require_number("x", value, 0, 1, closed=False)


def test_infinity_is_outside_of_every_interval() -> None:
    with pytest.raises(ValueError, match="got inf"):
        require_number("x", math.inf, 0, math.inf, closed=True)


@pytest.mark.parametrize("value", [True, "1", None, [1]])
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^x must be a number in .*, got .*; pass a plain number$"):
        require_number("x", value, 0, 1, closed=True)


@pytest.mark.parametrize("value, error", [(0, ValueError), (4, ValueError), (1.0, TypeError), (True, TypeError)])
def test_integers(value: Any, error: type) -> None:
    for good in (1, 2, 3):
        require_int("n", good, 1, 3)
    with pytest.raises(error, match=r"^n must be an integer in \[1, 3\], got"):
        require_int("n", value, 1, 3)


@pytest.mark.parametrize("value", [0, 1, None, "True"])
def test_booleans(value: Any) -> None:
    require_bool("b", True)
    require_bool("b", False)
    with pytest.raises(TypeError, match=r"^b must be True or False, got .*; leave it out$"):
        require_bool("b", value)


@pytest.mark.parametrize("value", ["c", "", None, ["a"], 1])
def test_choices(value: Any) -> None:
    require_choice("c", "a", ("a", "b"), "b")
    with pytest.raises(ValueError, match=r"^c must be one of a, b, got .*; use 'b'$"):
        require_choice("c", value, ("a", "b"), "b")
