"""Formatting of numbers and texts for people."""

import re
from typing import Any

# control characters could move the cursor or recolour a terminal; Unicode has pictures of them
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
PICTURES |= dict.fromkeys(range(128, 160), 0xFFFD)

# signs that show nothing, or turn the direction of what follows: a text with them reads as another than the one that is
# tested. Unicode's Default_Ignorable_Code_Point with the other invisible format characters, but for the two that only
# choose how the sign before them looks (FE0E, FE0F)
HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

SHOWN = 60  # characters of a value in a message


def visible(text: str) -> str:
    """Return the text with control characters but line breaks and tabs as pictures, other hidden ones as [U+202E]."""
    return HIDDEN.sub(_code, text.translate(PICTURES))


def format_p(p: float) -> str:
    """Format a p-value with two digits; never "0", which no p-value is."""
    if p < 1e-300:
        return "< 1e-300"
    return f"{p:.2g}" if p < 0.095 else f"{p:.2f}"


def is_p(p: float) -> str:
    """Return "p = 0.0021", or "p < 1e-300"."""
    said = format_p(p)
    return f"p {said}" if said.startswith("<") else f"p = {said}"


def shown(value: Any) -> str:
    """Format a value for a message: on one line, and short."""
    if isinstance(value, int) and value.bit_length() > 128:  # Python refuses to print very long integers
        return f"an integer of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def kind_of(value: Any) -> str:
    """Name the type of a value for a message; of a class that was given instead of an object, say so."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


# a secret that was written where the name of its variable belongs must not be shown
VARIABLE = re.compile("[A-Z]{1,12}|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+){1,8}")


def shown_variable(name: Any) -> str:
    """Name an environment variable for a message, if it looks like one and not like the secret itself."""
    looks = isinstance(name, str) and len(name) <= SHOWN and VARIABLE.fullmatch(name)
    return f"environment variable {name}" if looks else "the environment variable of that name"


def _code(found: re.Match[str]) -> str:
    return f"[U+{ord(found[0]):04X}]"


MOST = 160  # characters of an error in a table; who needs more runs the case by itself


def in_a_line(error: Exception) -> str:
    """An error's kind and the beginning of its first line, for a table of cases."""
    said = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {said.strip()[:MOST]}"
