"""Memory that is no longer used, given back to the system."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Free what the heap keeps for later: a tokenizer being made leaves as much behind as it keeps. glibc only."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
