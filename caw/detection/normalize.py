"""Normalisation of texts that passed through other programs, before tokenisation.

A watermark lives in token ids, and a changed character can change the ids around it, so a text should be tested exactly
as it was generated. If it was altered, these steps undo common changes. Each changes unmarked text as well, which keeps
p-values valid: given any text, only the key is random.
"""

import re
from collections.abc import Callable
from typing import Any

from caw.io.unicode import normalized

# invisible characters that come along when texts are pasted: zero-width ones, marks of direction, soft hyphens, ...
INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\ufff9-\ufffb\ufe00-\ufe0f]")
SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
QUOTES = str.maketrans({"‘": "'", "’": "'", "‚": "'", "“": '"', "”": '"', "„": '"', "–": "-", "—": "-", "…": "..."})


def _spaces(text: str) -> str:
    text = SPACES.sub(" ", INVISIBLE.sub("", text)).replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join(line.rstrip(" \t") for line in text.split("\n")).strip()


STEPS: dict[str, Callable[[str], str]] = {
    "nfc": lambda text: normalized("NFC", text),
    "nfkc": lambda text: normalized("NFKC", text),
    "spaces": _spaces,
    "quotes": lambda text: text.translate(QUOTES),
}


NONE, READINGS = "none", "readings"  # each alone: the text as it is, and its readings
NAMES = (*STEPS, NONE, READINGS)


def read_steps(normalize: Any) -> tuple[str, ...]:
    """Parse names, or a comma-separated str, to steps; () = the mode's default. TypeError, ValueError for others."""
    if not isinstance(normalize, (str, list, tuple)):
        raise TypeError(
            f"normalize must be a str or a sequence of {', '.join(NAMES)}, got {type(normalize).__name__}; leave it out"
        )
    names = [name.strip() for name in normalize.split(",")] if isinstance(normalize, str) else normalize
    steps = tuple(name for name in names if name != "")
    for step in steps:
        if not isinstance(step, str) or step not in NAMES:
            raise ValueError(f"normalize must name steps of {', '.join(NAMES)}, got {step!r}; leave it out")
        if step not in STEPS and len(steps) > 1:
            raise ValueError(f"normalize must be {step} alone or steps of {', '.join(STEPS)}, got both; leave one out")
    return steps


def normalize_text(text: str, steps: tuple[str, ...]) -> str:
    """Apply the steps to the text, in the order given.

    nfc, nfkc: Unicode normal forms. spaces: removes invisible characters, replaces every space by a plain one, removes
    spaces at the ends of lines and of the text. quotes: turns typographic quotes, dashes and dots into ASCII.
    """
    for step in steps:
        text = STEPS[step](text) if step in STEPS else text
    return text


def trim_prefix(text: str, prefix: str) -> str:
    """Remove a leading prompt or chat template if the text begins with it (ignoring leading space)."""
    start = text.lstrip()
    wanted = prefix.strip()
    return start[len(wanted) :] if wanted and start.startswith(wanted) else text
