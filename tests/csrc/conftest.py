"""Tests of the compiled extension; skipped, with the reason, where it was not built."""

from collections.abc import Callable
from typing import Any

import pytest

from caw import ops


@pytest.fixture(autouse=True)
def _extension() -> None:
    if ops.missing_extension():
        pytest.skip(ops.missing_extension())


@pytest.fixture
def kernel() -> Callable[..., Any]:
    return lambda name, *given, **options: getattr(ops, name)(*given, **options)
