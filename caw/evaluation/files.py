"""Files of lines that may be compressed: scores.jsonl, or scores.jsonl.xz in its place.

xz (`lzma` of the standard library; `xz -d` undoes it): of the published scores it makes half of what gzip does.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

SUFFIX = ".xz"


def packed_path(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def is_there(path: Path) -> bool:
    """Whether a file of lines is there, plain or compressed."""
    return path.exists() or packed_path(path).exists()


def opened(path: Path) -> BinaryIO:
    """A file of lines to read, however it is kept; `path` names the plain file.

    Raises FileNotFoundError for neither, ValueError for both or for a compressed file that is not whole.
    """
    packed = packed_path(path)
    if not packed.exists():
        return open(path, "rb")
    if path.exists():
        raise ValueError(f"expected {path.name} or {packed.name} in {path.parent}, found both; remove the older one")
    lzma = _lzma(packed)
    try:
        return io.BytesIO(lzma.decompress(packed.read_bytes()))
    except (lzma.LZMAError, EOFError):
        raise ValueError(f"expected a whole xz file in {packed}, found something else; publish it again") from None


def compress(content: bytes) -> bytes:
    """As an .xz file; the same bytes for the same content and liblzma."""
    lzma = _lzma(None)
    packed: bytes = lzma.compress(content, preset=6 | lzma.PRESET_EXTREME)
    return packed


def _lzma(path: Path | None) -> Any:
    try:
        import lzma
    except ModuleNotFoundError as error:  # where Python was built without liblzma
        remedy = "install liblzma and build Python again" + (f", or run `xz -d {path}`" if path else "")
        raise ImportError(f"compressed scores need Python's lzma module, found none; {remedy}") from error
    return lzma
