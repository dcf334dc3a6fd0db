"""The page in a real Chromium, as people use it: by mouse, by keyboard, on a phone, in the dark, with hostile texts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browsing import CONTRAST, Browser, browser, started
from serve.serving import DIRECTORY, KEY, alone, running
from serve.test_detecting import UNMARKED, Keys
from serve.test_page import HOSTILE

from caw.io.show import visible
from caw.serve.contracts import MarkKey, SingleTenant, Tenant

pytestmark = pytest.mark.gate("browser")
__all__ = ["browser", "started"]  # fixtures
HOSTILES = {
    "markup": "".join(c for c in HOSTILE if c.isprintable() or c > "\x7f"),  # a field keeps no control characters
    "right to left": "مرحبا " * 80, "one long word": "x" * 3000, "invisible": "\u202e\u200b" * 300,
}  # fmt: skip


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(directory=SingleTenant(Tenant("default", MarkKey("k1", KEY)))) as served:
        yield served.server.url


@pytest.fixture(scope="module")
def marked() -> str:
    """A text that a field keeps: without control characters."""
    texts = (alone("the sky", key=KEY, max_new_tokens=200, do_sample=True, seed=seed)[0] for seed in range(99))
    return next("".join(c if c.isprintable() else " " for c in text) for text in texts if "\ufffd" not in text[:1])


def test_a_marked_text_is_pasted_and_shown_in_colours(browser: Browser, url: str, marked: str) -> None:
    browser.look(url)
    browser.ask(marked)
    assert browser.verdict == "Marked" and browser.driver.title.startswith("Marked: ")
    colour = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor"
    shades = {browser.run(colour, f".text .{shade}") for shade in ("p2", "m1", "again")}
    assert len(shades) == 3, "the content policy lets the style in"
    assert browser.count(".text span") > 100 and browser.one(".text").is_displayed()
    assert browser.run("return document.getElementById('text').value") == marked, "the text is still there"


def test_an_unmarked_text_and_a_short_one(browser: Browser, url: str) -> None:
    browser.look(url)
    browser.ask(UNMARKED)
    assert browser.verdict == "No mark found" and not browser.one(".text").is_displayed()
    browser.ask("two words")
    assert browser.verdict == "Too short to decide"


def test_a_keyboard_is_enough(browser: Browser, url: str, marked: str) -> None:
    """The field has the focus at first, the answer afterwards; the tokens open and close by themselves."""
    browser.look(url)
    browser.press("two words", "\ue004", "\ue007")  # tab, enter
    browser.wait()
    assert browser.run("return document.activeElement.id") == "verdict"
    browser.press("\ue004", " ")
    assert browser.run("return document.activeElement.tagName") == "SUMMARY" and browser.one(".text").is_displayed()
    browser.press("\ue004", "\ue004")
    outline = "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, parseInt(s.outlineWidth)]"
    assert browser.run(outline) == ["solid", 3], "who uses the keyboard sees where they are"


def test_it_needs_no_script(browser: Browser, url: str) -> None:
    browser.look(url, scripts=False)
    browser.one("#text").send_keys("two words")
    browser.one("button").click()
    browser.wait()
    assert browser.verdict == "Too short to decide" and browser.count("script") == 0


@pytest.mark.parametrize("name", HOSTILES)
def test_a_hostile_text_does_nothing(browser: Browser, url: str, name: str) -> None:
    text = HOSTILES[name]
    browser.look(url, 390)
    before = browser.count("body *")
    browser.ask(text)
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.run("return document.getElementById('text').value") == text
    assert browser.run("return document.querySelector('.text').textContent") == visible(text)
    drawn = browser.count(".answer *")
    assert browser.count("body *") == before + drawn + 1 and browser.count(".text *") == browser.count(".text > span")
    assert browser.one("h1").text == "Is this text marked?" and browser.one("button").text == "Test it"
    assert browser.run("return document.documentElement.scrollWidth") <= 390, "nothing leaves the screen"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_and_touched(browser: Browser, url: str, marked: str, scheme: str) -> None:
    browser.look(url, 390, scheme=scheme)
    browser.ask(marked)
    ratio, where = browser.run(CONTRAST)
    assert ratio >= 4.5, where
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == {
        "light": "rgb(255, 255, 255)", "dark": "rgb(19, 20, 23)",
    }[scheme]  # fmt: skip
    assert browser.run("return document.querySelector('button').getBoundingClientRect().height") >= 44
    assert browser.run("return document.documentElement.scrollWidth") <= 390


def test_an_api_key_is_used_and_not_shown_again(started: Browser, marked: str) -> None:
    with running(directory=Keys(DIRECTORY.tenants)) as served:
        started.look(served.server.url)
        started.ask(marked)
        assert started.verdict == "No mark found" and started.count(".text") == 0
        for key, verdict in (("one", "Marked"), ("stranger", "Not tested")):
            started.one("form summary").click()
            started.one("#key").send_keys(key)
            started.ask(marked)
            assert started.verdict == verdict and started.run("return document.getElementById('key').value") == ""
        assert "stranger" not in started.driver.page_source
