"""Whether a str is valid Unicode: Python's may hold half of a surrogate pair, which UTF-8 cannot encode."""

from __future__ import annotations


def is_unicode(text: str) -> bool:
    """Whether it can be written as UTF-8."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return False
    return True
