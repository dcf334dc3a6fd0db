"""Where this library keeps what it makes once and reads again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """Of converted models, tokenizers and tuned products: CAW_CACHE, or ~/.cache/caw."""
    return Path(os.environ.get("CAW_CACHE") or Path.home() / ".cache" / "caw")
