"""The guard's page begins with a text that is detected and keeps its number."""

from __future__ import annotations

from typing import Any

import pytest
from docs.test_pages import ROOT, blocks


@pytest.mark.slow(seconds=30)
def test_the_first_example_is_detected_and_kept(demo: object) -> None:
    page: dict[str, Any] = {}
    exec(next(blocks(ROOT / "docs" / "guard.md", {"python"})), page)
    receipt = page["receipt"]
    assert receipt.detected and receipt.kept and 0 < receipt.changes <= receipt.rollouts
