"""What a browser would make of a page."""

from html.parser import HTMLParser
from typing import Any


class Reader(HTMLParser):
    """A page as read. text: of each element, by its id, or else its first class, or else its tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[tuple[str, str]] = []
        self.text: dict[str, str] = {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag not in ("meta", "input"):
            self.open.append((tag, given.get("id") or (given.get("class") or tag).split()[0]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for name in {name for _, name in self.open}:
            self.text[name] = self.text.get(name, "") + data
