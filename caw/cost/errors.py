"""What a table says of a case that failed."""

from __future__ import annotations

MOST = 160  # of what the error says; the rest is in the log


def in_a_line(error: Exception) -> str:
    """Its kind and the beginning of its first line."""
    said = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {said[0][:MOST]}"
