"""What a table says of a case that failed."""

from __future__ import annotations

import pytest

from caw.cost.errors import MOST, in_a_line


@pytest.mark.parametrize(
    "error, said",
    [
        (ValueError("expected 3, got 4\nand much more"), "ValueError: expected 3, got 4"),
        (RuntimeError("\n  CUDA error\nat line 3"), "RuntimeError: CUDA error"),
        (MemoryError(), "MemoryError: "),
        (RuntimeError("a" * 500), "RuntimeError: " + "a" * MOST),
    ],
)
def test_is_the_kind_and_the_beginning(error: Exception, said: str) -> None:
    assert in_a_line(error) == said
