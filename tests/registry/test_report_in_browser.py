"""The audit's page in a real Chromium: it can be read on a phone, in the dark and on paper, and needs nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing import CONTRAST, Browser, browser, started
from registry.conftest import clock, masters, registry, url
from registry.test_report import texts, unmarked, words

from caw.registry import Registry
from caw.registry.report import make_report
from caw.registry.report_page import write_page

pytestmark = pytest.mark.gate("browser")
__all__ = ["browser", "clock", "masters", "registry", "started", "texts", "url"]  # fixtures


@pytest.fixture
def page(registry: Registry, texts: list[str], tmp_path: Path) -> str:
    """Two keys, of which one has marked texts; a reason with markup in it."""
    from registry.samples import begun

    registry.receipts.begin(begun("x", key_id="", unmarked="<script>document.title = 'taken over'</script>"))
    report = make_report(registry, words, unmarked(), [(text, None) for text in texts])
    write_page(tmp_path / "report.html", report)
    return f"file://{tmp_path}/report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1000])
def test_it_can_be_read(browser: Browser, page: str, scheme: str, width: int) -> None:
    browser.look(page, width, scheme=scheme)
    assert browser.driver.title == "caw audit report"
    assert browser.count("article") == 2 and browser.count("table") == 3 and browser.count("script") == 0
    ratio, where = browser.run(CONTRAST)
    assert ratio >= 4.5, where
    assert browser.run("return document.documentElement.scrollWidth") <= width, "tables scroll by themselves"
    assert browser.run("return getComputedStyle(document.querySelector('table')).borderCollapse") == "collapse"
    drawn = {"light": "rgb(255, 255, 255)", "dark": "rgb(19, 20, 23)"}[scheme]
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == drawn
