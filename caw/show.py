"""Numbers as people read them."""

from __future__ import annotations


def format_p(p: float) -> str:
    """A p-value with two digits; never "0", which no p-value is."""
    if p < 1e-300:
        return "< 1e-300"
    return f"{p:.2g}" if p < 0.095 else f"{p:.2f}"
