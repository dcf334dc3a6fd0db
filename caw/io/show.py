"""Numbers and texts as people read them."""

from __future__ import annotations

from typing import Any

# control characters could move the cursor or recolour a terminal; Unicode has pictures of them
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
PICTURES |= dict.fromkeys(range(128, 160), 0xFFFD)

SHOWN = 60  # characters of a value in a message


def visible(text: str) -> str:
    """The text with every control character but line breaks and tabs replaced by its picture."""
    return text.translate(PICTURES)


def format_p(p: float) -> str:
    """A p-value with two digits; never "0", which no p-value is."""
    if p < 1e-300:
        return "< 1e-300"
    return f"{p:.2g}" if p < 0.095 else f"{p:.2f}"


def is_p(p: float) -> str:
    """ "p = 0.0021", or "p < 1e-300"."""
    said = format_p(p)
    return f"p {said}" if said.startswith("<") else f"p = {said}"


def shown(value: Any) -> str:
    """A value in a message: on one line, and short."""
    if isinstance(value, int) and value.bit_length() > 128:  # Python refuses to print very long integers
        return f"an integer of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
