"""Unicode validity: Python's str may contain half of a surrogate pair, which UTF-8 cannot encode.

Normal forms in linear time: Python takes a step for each pair of marks in a row, and no other thread runs meanwhile.
"""

import re
import unicodedata
from typing import Literal

MOST_MARKS = 30  # in a row that are put in order; Unicode's stream-safe texts (UAX 15) have no more


def is_unicode(text: str) -> bool:
    """Return whether it can be encoded as UTF-8."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return False
    return True


def normalized(form: Literal["NFC", "NFKC"], text: str) -> str:
    """Return the text in a normal form, where longer runs of combining marks than `MOST_MARKS` stay as they are."""
    if text.isascii():
        return text
    marks = [re.escape(sign) for sign in set(text) if unicodedata.combining(unicodedata.normalize("NFKD", sign)[0])]
    parts = re.split(f"([{''.join(marks)}]{{{MOST_MARKS + 1},}})", text) if len(marks) else [text]
    return "".join(part if i % 2 else unicodedata.normalize(form, part) for i, part in enumerate(parts))
