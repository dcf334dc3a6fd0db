"""The audit's page in a real Chromium: it can be read on a phone, in the dark and on paper, and needs nothing else."""

from __future__ import annotations

import itertools
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


def test_its_tables_say_what_their_cells_are(browser: Browser, page: str) -> None:
    """Screen readers: tables have captions, cells the heads of their columns and rows; headings are in order."""
    browser.look(page)
    bare = """return [...document.querySelectorAll('table')].filter(t => !t.caption ||
      [...t.rows].some(r => !r.querySelector('th[scope]')) ||
      new Set([...t.rows].map(r => r.cells.length)).size !== 1).length"""
    assert browser.run(bare) == 0
    levels = "return [...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1]))"
    found = browser.run(levels)
    assert found[0] == 1 and found.count(1) == 1 and all(b - a <= 1 for a, b in itertools.pairwise(found))
    assert browser.run("return document.documentElement.lang") == "en"


def test_it_asks_for_nothing_and_prints(browser: Browser, page: str) -> None:
    browser.look(page, scripts=False)
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert "taken over" in browser.one("body").text and browser.driver.title == "caw audit report"
    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 10_000
