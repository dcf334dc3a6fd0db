"""The page's texts in each of its languages (`templates/languages.yaml`), and which of them a visitor gets."""

import re
from importlib.resources import files
from typing import Any

import yaml

FILE = files("caw.serve") / "templates" / "languages.yaml"
LANGUAGES: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
# one of an Accept-Language header (RFC 9110, 12.5.4), in lower case: its first subtag and its quality
RANGE = re.compile(r"\s*([a-z]{1,8}|\*)(?:-[a-z0-9-]+)?\s*(?:;\s*q=(1(?:\.0{0,3})?|0(?:\.[0-9]{0,3})?)\s*)?")


def language_of(accepted: str, asked: str) -> str:
    """Return the code of a visitor's language: `asked` if the page has it, otherwise that of the greatest quality in an
    Accept-Language header, the first of equals. English where neither names one; what cannot be read is passed over.
    """
    if asked in LANGUAGES:
        return asked
    qualities: dict[str, float] = {}
    for given in filter(None, map(RANGE.fullmatch, accepted.lower().split(","))):
        name = "en" if given[1] == "*" else given[1]
        qualities[name] = max(qualities.get(name, 0.0), float(given[2] or 1))
    served = [name for name, quality in qualities.items() if name in LANGUAGES and quality > 0]
    return max(served, key=qualities.__getitem__, default="en")
