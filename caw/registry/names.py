"""Checks of names and times: names that are safe in a URL, a shell and a page; times with a time zone."""

import re
from datetime import datetime

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def require_name(what: str, name: object) -> None:
    """Raise ValueError unless it is 1 to 63 letters, digits, dots, dashes, underscores, first a letter or digit."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            f"{what} must be 1 to 63 letters, digits, '.', '-' or '_' beginning with a letter or digit, got "
            f"{name if isinstance(name, str) and len(name) < 80 else type(name).__name__!r}; rename it"
        )


def require_moments(*moments: datetime | None) -> None:
    """Raise ValueError for a time without a UTC offset."""
    for moment in moments:
        if moment is not None and moment.tzinfo is None:
            raise ValueError(f"a time must have an offset from UTC, got {moment.isoformat()}; add timezone.utc")
