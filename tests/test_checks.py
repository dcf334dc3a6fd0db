"""Checks of arguments: what passes, and one sentence for what does not."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from caw.checks import require_bool, require_choice, require_int, require_number

CHECKS: dict[str, tuple[Callable[[Any], None], list[Any], list[Any], list[Any], str]] = {
    # what passes, what has a wrong value, what has a wrong type
    "closed interval": (
        lambda value: require_number("x", value, 0, 1, closed=True), [0, 1, 0.5, 0.0, 1.0],
        [-1e-9, 1.0000001, math.nan, -math.inf], [True, "1", None, [1]], r"^x must be a number in \[0, 1\], got",
    ),
    "open interval": (
        lambda value: require_number("x", value, 0, 1, closed=False), [0.5], [0, 1], [],
        r"^x must be a number in \(0, 1\), got",
    ),
    "no upper end": (
        lambda value: require_number("x", value, 0, math.inf, closed=True), [1e300], [math.inf], [], "got inf"
    ),
    "integer": (
        lambda value: require_int("n", value, 1, 3), [1, 2, 3], [0, 4], [1.0, True],
        r"^n must be an integer in \[1, 3\], got",
    ),
    "boolean": (
        lambda value: require_bool("b", value), [True, False], [], [0, 1, None, "True"],
        r"^b must be True or False, got .*; leave it out$",
    ),
    "choice": (
        lambda value: require_choice("c", value, ("a", "b"), "b"), ["a"], ["c", "", None, ["a"], 1], [],
        r"^c must be one of a, b, got .*; use 'b'$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_what_passes_and_what_does_not(name: str) -> None:
    check, good, wrong, strange, said = CHECKS[name]
    for value in good:
        check(value)
    for error, values in ((ValueError, wrong), (TypeError, strange)):
        for value in values:
            with pytest.raises(error, match=said):
                check(value)
