"""Unicode validity: Python's str may contain half of a surrogate pair, which UTF-8 cannot encode."""

from __future__ import annotations


def is_unicode(text: str) -> bool:
    """Return whether it can be encoded as UTF-8."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return False
    return True
