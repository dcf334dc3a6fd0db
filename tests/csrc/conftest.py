"""Tests of the compiled extension; skipped, with the reason, where it was not built. Long sweeps wait to be asked."""

from __future__ import annotations

import pytest

from caw import ops


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `exhaustive` take minutes, so that only `-m exhaustive` chooses them."""
    if "exhaustive" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(autouse=True)
def _extension() -> None:
    if ops.missing_extension():
        pytest.skip(ops.missing_extension())
