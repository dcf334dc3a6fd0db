"""Keys: what a user gives, what is derived from it for each purpose, and what logs may show."""

from __future__ import annotations

import hashlib

import numpy as np

from caw.io.unicode import is_unicode


def derive_key(key: int, domain: bytes) -> int:
    """A key for one purpose: first 8 bytes, big-endian, of sha256(domain + the user's key as 8 bytes big-endian)."""
    return int.from_bytes(hashlib.sha256(domain + key.to_bytes(8, "big")).digest()[:8], "big")


def signed(key: int) -> int:
    """The same 64 bits as torch's int64."""
    return key - (key >> 63 << 64)


def normalize_key(key: int | str | bytes) -> int:
    """The user's key as an integer below 2^64; text or bytes become the first 8 bytes of sha256(b"caw/key:" + bytes).

    Raises TypeError for other types (bool included) and ValueError for integers out of range or empty text.
    """
    if isinstance(key, bool) or not isinstance(key, (int, str, bytes, np.integer)):
        raise TypeError(f"key must be an int below 2**64, a str or bytes, got {type(key).__name__}; pass e.g. key=42")
    if isinstance(key, (str, bytes)):
        if isinstance(key, str) and not is_unicode(key):  # Python's own error would show a character of the key
            raise ValueError(
                "key must be text that UTF-8 can hold, got other bytes or half of a surrogate pair; pass bytes, or set "
                "CAW_KEY to UTF-8 text"
            )
        raw = key.encode() if isinstance(key, str) else key
        if not raw:
            raise ValueError("key must not be empty, got an empty string; pass a secret of your own")
        return int.from_bytes(hashlib.sha256(b"caw/key:" + raw).digest()[:8], "big")
    if not 0 <= int(key) < 1 << 64:
        raise ValueError(
            "key must be in [0, 2**64), got an integer outside it; pass text or bytes instead, e.g. key=str(number)"
        )
    return int(key)


def key_id(key: int) -> str:
    """Eight hex digits that name a key in logs and reports. They do not contain it, but let anyone check a guess."""
    return hashlib.sha256(b"caw/key-id" + key.to_bytes(8, "big")).hexdigest()[:8]
