"""A Chromium for tests of pages, and how they look at one."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
# the least contrast of the elements that have words of their own, over all backgrounds behind them (WCAG 2.2, 1.4.3)
CONTRAST = """
const parts = c => { const n = c.match(/[\\d.]+/g).map(Number), k = c.startsWith('color(') ? 255 : 1;
  return [n[0] * k, n[1] * k, n[2] * k, n.length > 3 ? n[3] : 1]; };
const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
const light = c => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => { const v = c[i] / 255;
  return sum + w * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
const behind = e => e ? over(parts(getComputedStyle(e).backgroundColor), behind(e.parentElement)) : [255, 255, 255, 1];
const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
return [...document.body.querySelectorAll('*')].filter(own).map(e => {
  const back = behind(e), ink = over(parts(getComputedStyle(e).color), back);
  const [a, b] = [light(ink), light(back)].sort((x, y) => x - y);
  return [(b + 0.05) / (a + 0.05), e.tagName + '.' + e.className]; }).sort((x, y) => x[0] - y[0])[0];
"""


class Browser:
    def __init__(self, profile: Path) -> None:
        from selenium import webdriver

        programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
        options = webdriver.ChromeOptions()
        options.binary_location = programs["chromium"] or ""
        for argument in (*QUIET, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(programs["chromedriver"]))
        self.driver.set_page_load_timeout(60)

    def look(self, url: str, width: int = 1000, *, scheme: str = "light") -> None:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        self.driver.get(url)

    def ask(self, text: str) -> None:
        """Put a text into the field at once, as pasting does, and press the button."""
        self.run("document.getElementById('text').value = arguments[0]; window.before = true", text)
        self.one("button").click()
        self.wait()

    def wait(self) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        answered = "return !window.before && document.getElementById('verdict') !== null"
        WebDriverWait(self.driver, 60).until(lambda driver: driver.execute_script(answered))

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def count(self, selector: str) -> int:
        return len(self.driver.find_elements("css selector", selector))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    @property
    def verdict(self) -> str:
        return str(self.one("#verdict").text)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    pytest.importorskip("selenium", reason="needs selenium: pip install 'caw-watermark[browser]'")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(started: Browser) -> Iterator[Browser]:
    started.driver.get_log("browser")
    yield started
    # an element that the content policy refuses, a script that fails, a file that is missing; not a refused form
    said = [entry["message"] for entry in started.driver.get_log("browser")]
    assert [line for line in said if "favicon" not in line] == []
