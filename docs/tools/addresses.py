"""What a page would fetch from other places when a browser opens it."""

from __future__ import annotations

import re
from html.parser import HTMLParser


def fetches(page: str) -> list[str]:
    """Addresses of other places that a browser loads with the page; a link that waits for a click is none."""
    parser = _Addresses()
    parser.feed(page)
    return [address for address in parser.found if re.match(r"(https?:)?//", address)]


class _Addresses(HTMLParser):
    """Addresses that are loaded with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.found += [values[name] or "" for name in ("src", "data", "poster") if name in values]
        if tag == "link" and values.get("rel") != "canonical":
            self.found.append(values.get("href") or "")
