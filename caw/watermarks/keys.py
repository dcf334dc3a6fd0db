"""Keys: from the user's key to derived keys, and to the id that logs may show."""

import hashlib
import numbers
import re
import unicodedata
from typing import Any

from caw.io.unicode import is_unicode

INVISIBLE = {"Zs", "Zl", "Zp", "Cc", "Cf"}  # Unicode categories: spaces, line ends, control and format characters
DIGITS = r"-?[0-9]+"
BLANK = "key must have a visible character, got an empty or blank text; pass a secret of your own"


def derive_key(key: int, domain: bytes) -> int:
    """Derive a key for one purpose: first 8 bytes, big-endian, of sha256(domain + key as 8 bytes big-endian)."""
    return int.from_bytes(hashlib.sha256(domain + key.to_bytes(8, "big")).digest()[:8], "big")


def signed(key: int) -> int:
    return key - (key >> 63 << 64)


def parse_key(text: str) -> int | str:
    """Parse a key: digits, optionally with a minus sign, are an integer, as in the library; anything else is text.

    Raises ValueError, without showing the key, for an integer out of range: as text it would be another key than the
    same number in Python.
    """
    if not re.fullmatch(DIGITS, text):
        return text
    if text[0] == "-" or len(text) > 20 or int(text) >= 1 << 64:
        raise ValueError(
            "a key of digits alone must be an integer in [0, 2**64) of up to 20 digits, got another; add a letter, "
            "which makes it text"
        )
    return int(text)


def read_key(value: Any) -> int | str | bytes:
    """Return the key that a file holds: text as `parse_key` reads it, an integer or bytes as they are.

    Raises TypeError, without showing it, for what a file format turned into anything else.
    """
    if isinstance(value, str):
        return parse_key(value)
    if isinstance(value, bool) or not isinstance(value, (int, bytes)):
        raise TypeError(f"a key in a file must be text or an integer, got {type(value).__name__}; put it in quotes")
    return value


def normalize_key(key: int | str | bytes) -> int:
    """Return the user's key as an integer below 2^64; text or bytes become the first 8 bytes of sha256(b"caw/key:" +
    bytes).

    Text is normalized first (`key_text`), so that one spelling is one key however it was typed; bytes are used as they
    are. Raises TypeError for other types (including bool) and ValueError for integers out of range, for text that
    `key_text` refuses, and for text that is another key elsewhere: digits, which the command line reads as a number,
    and text with white space around it, such as the line end of a file, which `$(cat keyfile)` drops.
    """
    if isinstance(key, bool) or not isinstance(key, (numbers.Integral, str, bytes)):
        raise TypeError(f"key must be an int below 2**64, a str or bytes, got {type(key).__name__}; pass e.g. key=42")
    if isinstance(key, (str, bytes)):
        raw = _unmistakable(key_text(key)).encode() if isinstance(key, str) else key
        if not raw.strip():
            raise ValueError(BLANK)
        return int.from_bytes(hashlib.sha256(b"caw/key:" + raw).digest()[:8], "big")
    if not 0 <= int(key) < 1 << 64:
        raise ValueError("key must be in [0, 2**64), got an integer outside it; pass text instead, with a letter in it")
    return int(key)


def _unmistakable(key: str) -> str:
    """Return the text of a key. Raises ValueError for one that is another key elsewhere."""
    if re.fullmatch(DIGITS, key):
        raise ValueError(
            "key must be an int, or text that is not a number, got text of digits alone, which the command line and "
            "CAW_KEY read as the number; pass int(key), or add a letter"
        )
    if key != key.strip():
        raise ValueError(
            "key must not begin or end with white space, got text that does; remove it with key.strip(), or pass bytes"
        )
    return key


def key_text(key: str) -> str:
    """Return the text of a key in Unicode's composed form (NFC), so that separately typed accents give the same key.

    Raises ValueError, without showing the key, for text that UTF-8 cannot encode and for text without a visible
    character: empty, white space, or only invisible characters.
    """
    if not is_unicode(key):  # Python's own error would show a character of the key
        raise ValueError(
            "key must be text that UTF-8 can encode, got other bytes or half of a surrogate pair; pass bytes, or set "
            "CAW_KEY to UTF-8 text"
        )
    if all(unicodedata.category(c) in INVISIBLE for c in key):
        raise ValueError(BLANK)
    return unicodedata.normalize("NFC", key)


def joined(several: tuple[int, ...]) -> int:
    """Return one number for several keys, to derive `key_id` from."""
    return int.from_bytes(hashlib.sha256(repr(several).encode()).digest()[:8], "big")


def key_id(key: int) -> str:
    """Return eight hex digits that name a key in logs; they do not contain it, but allow checking a guess."""
    return hashlib.sha256(b"caw/key-id" + key.to_bytes(8, "big")).hexdigest()[:8]
