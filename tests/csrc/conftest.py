"""Tests of the compiled extension; skipped, with the reason, where it was not built."""

from __future__ import annotations

import pytest

from caw import ops


@pytest.fixture(autouse=True)
def _extension() -> None:
    if ops.missing_extension():
        pytest.skip(ops.missing_extension())
