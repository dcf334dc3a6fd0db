"""What may be done to a text before it is tokenised, for texts that came through other programs.

A watermark lies in token ids. A changed character can change the ids around it, so a text should be tested as it was
generated; where it was not kept so, these options undo what commonly happens. Each changes unmarked text as well, which
keeps p-values valid: given any text, only the key is random.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

# invisible characters that come along when texts are pasted: zero-width ones, marks of direction, soft hyphens, ...
INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\ufff9-\ufffb\ufe00-\ufe0f]")
SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
QUOTES = str.maketrans({"‘": "'", "’": "'", "‚": "'", "“": '"', "”": '"', "„": '"', "–": "-", "—": "-", "…": "..."})


def _spaces(text: str) -> str:
    text = SPACES.sub(" ", INVISIBLE.sub("", text)).replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join(line.rstrip(" \t") for line in text.split("\n")).strip()


STEPS: dict[str, Callable[[str], str]] = {
    "nfc": lambda text: unicodedata.normalize("NFC", text),
    "nfkc": lambda text: unicodedata.normalize("NFKC", text),
    "spaces": _spaces,
    "quotes": lambda text: text.translate(QUOTES),
}


def read_steps(normalize: Any) -> tuple[str, ...]:
    """The steps that a sequence of names or one comma-separated str asks for.

    Raises TypeError for other types, ValueError for a name that is no step.
    """
    if not isinstance(normalize, (str, list, tuple)):
        raise TypeError(
            f"normalize must be a str or a sequence of {', '.join(STEPS)}, got {type(normalize).__name__}; leave it "
            "out for none"
        )
    names = [name.strip() for name in normalize.split(",")] if isinstance(normalize, str) else normalize
    steps = tuple(name for name in names if name != "")
    for step in steps:
        if not isinstance(step, str) or step not in STEPS:
            raise ValueError(f"normalize must name steps of {', '.join(STEPS)}, got {step!r}; leave it out for none")
    return steps


def normalize_text(text: str, steps: tuple[str, ...]) -> str:
    """The text after the steps, in the order given.

    nfc, nfkc: Unicode normal forms. spaces: drops invisible characters, makes every space a plain one, drops spaces at
    the ends of lines and of the text. quotes: typographic quotes, dashes and dots become ASCII.
    """
    for step in steps:
        text = STEPS[step](text)
    return text


def trim_prefix(text: str, prefix: str) -> str:
    """The text without a leading prompt or chat template, where it begins with one (leading space aside)."""
    start = text.lstrip()
    wanted = prefix.strip()
    return start[len(wanted) :] if wanted and start.startswith(wanted) else text
