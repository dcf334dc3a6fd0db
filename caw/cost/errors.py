"""What a table says of a case that failed."""

from __future__ import annotations

MOST = 160  # characters of it: a line of a table; who needs more runs the case by itself


def in_a_line(error: Exception) -> str:
    """Its kind and the beginning of its first line."""
    said = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {said.strip()[:MOST]}"
