"""Numbers, texts and errors as people read them."""

import pytest

from caw.io.show import MOST, in_a_line


@pytest.mark.parametrize(
    "error, said", [
        (ValueError("expected 3, got 4\nand much more"), "ValueError: expected 3, got 4"),
        (RuntimeError("\n  CUDA error\nat line 3"), "RuntimeError: CUDA error"), (MemoryError(), "MemoryError: "),
        (RuntimeError("a" * 500), "RuntimeError: " + "a" * MOST),
    ],
)  # fmt: skip
def test_an_error_in_a_line_is_its_kind_and_its_beginning(error: Exception, said: str) -> None:
    assert in_a_line(error) == said
