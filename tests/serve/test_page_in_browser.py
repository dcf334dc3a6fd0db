"""The page in a real Chromium, as people use it: by mouse, by keyboard, on a phone, in the dark, with hostile texts."""

from collections.abc import Iterator

import pytest
from browsing import CONTRAST, Browser, browser, started
from serve.serving import KEY, alone, running
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
