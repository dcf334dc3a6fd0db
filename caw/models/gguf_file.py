"""Header and tensors of a .gguf file; every length is checked against the file before it is used.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

import itertools
import math
import mmap
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caw.io.show import shown
from caw.ops_ref.block_types import BLOCK_TYPES

STRING, ARRAY = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
PLAIN: dict[int, np.dtype[Any]] = {
    0: np.dtype("<f4"),
    1: np.dtype("<f2"),
    30: np.dtype("<u2"),
}  # F32, F16 and the upper halves of BF16
BFLOAT16 = 30
MOST_DIMENSIONS, MOST_DEPTH = 4, 4
MOST_NAME, MOST_KEY = 64, 65535  # bytes, by the format
# architectures whose layers are known to products with blocks; a file calls Mistral's "llama"
FAMILIES = ("llama", "qwen2", "qwen3", "granite", "phi3", "starcoder2", "gemma", "gemma2", "gemma3")


@dataclass(frozen=True)
class TensorInfo:
    """shape: outputs first. kind: ggml's number of its type. offset, bytes: where it lies in the file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    bytes: int


def known_type(kind: int) -> bool:
    """Return whether tensors of this ggml type number are supported."""
    return kind in PLAIN or kind in BLOCK_TYPES


class GGUFFile:
    """The settings and tensors of a .gguf file, which stays mapped; texts in lists are left out of the settings.

    Raises ValueError in one sentence for a file that is cut off, contradicts itself or is no GGUF.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            size = path.stat().st_size
            self._data: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size else b""
        self._at = 0
        if self._take(4) != b"GGUF":
            raise self._broken("no magic bytes 'GGUF'")
        (version,) = struct.unpack("<I", self._take(4))
        if version not in (2, 3):
            raise self._broken(f"version {version}, of which only 2 and 3 are known")
        tensors, settings = struct.unpack("<QQ", self._take(16))
        self.settings: dict[str, Any] = {}
        self._left_out: dict[str, int] = {}  # where lists of texts begin
        for _ in range(settings):
            name = self._text(MOST_KEY)
            if name in self.settings:
                raise self._broken(f"two settings {name[:MOST_NAME]!r}")  # others may take the other one
            at = self._at
            self.settings[name] = self._value(struct.unpack("<I", self._take(4))[0], 0)
            if self.settings[name] is None:
                self._left_out[name] = at
        found = [self._tensor() for _ in range(tensors)]
        alignment = self.settings.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            raise self._broken(f"an alignment of {alignment!r}")
        start = -(-self._at // alignment) * alignment
        self.tensors = {info.name: self._placed(info, start, alignment) for info in found}
        if len(self.tensors) != len(found):
            raise self._broken("two tensors of one name")
        self._require_apart()

    @property
    def architecture(self) -> str:
        """The file's architecture; empty if it names none."""
        found = self.settings.get("general.architecture")
        return found if isinstance(found, str) else ""

    def texts(self, name: str) -> list[str]:
        """Return the texts of a list that the settings leave out; [] if there is none of that name."""
        if name not in self._left_out:
            return []
        self._at = self._left_out[name]
        kind, inner, count = struct.unpack("<IIQ", self._take(16))
        if (kind, inner) != (ARRAY, STRING):
            raise self._broken(f"other things than texts in {name}")
        return [self._text() for _ in range(count)]

    def check_layers(self) -> None:
        """Raise ValueError unless its tensors form as many layers as its settings say, numbered from 0.

        Other loaders fill missing layers with random numbers.
        """
        layers = self.settings.get(f"{self.architecture}.block_count")
        held = {name.split(".")[1] for name in self.tensors if name.startswith("blk.")}
        # their count first, since what the settings say may be thousands of millions
        if type(layers) is not int or not layers or len(held) != layers or held != set(map(str, range(layers))):
            numbers = ", ".join(sorted(held, key=lambda number: (len(number), number)))
            raise self._broken(f"a block count of {shown(layers)} and tensors of layers {shown(numbers or 'none')}")

    def why_not_blocks(self) -> str:
        """Return why its blocks cannot be used directly; empty if they can."""
        if self.architecture not in FAMILIES:
            return f"its architecture is {self.architecture!r}, known are {', '.join(FAMILIES)}"
        kinds = {info.kind: info.name for info in self.tensors.values()}
        unknown = [f"type {kind} of {name}" for kind, name in sorted(kinds.items()) if not known_type(kind)]
        return f"it holds blocks that are not known here, ggml's {', '.join(unknown)}" if unknown else ""

    def array(self, info: TensorInfo) -> np.ndarray:
        """Return a tensor's bytes, a read-only view of the file: uint8 [outputs, bytes per row]."""
        rows = info.shape[0] if len(info.shape) > 1 else 1
        return np.frombuffer(self._data, np.uint8, info.bytes, info.offset).reshape(rows, -1)

    def bytes_of(self, info: TensorInfo, inputs: int, size: int) -> np.ndarray:
        """Return the bytes of a tensor of an unknown type: blocks of this many numbers in this many bytes."""
        row, rest = divmod(info.shape[-1], inputs)
        rows = math.prod(info.shape[:-1])
        if rest or info.offset + rows * row * size > len(self._data):
            raise self._broken(f"its end inside {info.name!r}")
        return np.frombuffer(self._data, np.uint8, rows * row * size, info.offset).reshape(rows, -1)

    def floats(self, info: TensorInfo) -> np.ndarray:
        """Return a tensor of F32, F16 or BF16 as float32, a copy."""
        plain = self.array(info).reshape(-1).view(PLAIN[info.kind])
        if info.kind == BFLOAT16:
            return (plain.astype("<u4") << 16).view("<f4").reshape(info.shape)
        return plain.astype(np.float32).reshape(info.shape)

    def forget(self, info: TensorInfo) -> None:
        """Let the system reclaim the memory through which a tensor was read."""
        if hasattr(self._data, "madvise") and info.bytes:
            begin = info.offset // mmap.PAGESIZE * mmap.PAGESIZE
            self._data.madvise(mmap.MADV_DONTNEED, begin, info.offset + info.bytes - begin)

    def _broken(self, found: str) -> ValueError:
        part = re.search(r"-(\d{5})-of-(\d{5})\.gguf$", self.path.name)
        remedy = (
            f"it is named as part {int(part[1])} of {int(part[2])}: join the parts" if part else "download it again"
        )
        return ValueError(f"the GGUF file must be complete, found {found} in {self.path}; {remedy}")

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise self._broken(f"its end {count - (len(self._data) - self._at)} bytes too early")
        self._at += count
        return bytes(self._data[self._at - count : self._at])

    def _require_apart(self) -> None:
        placed = sorted(self.tensors.values(), key=lambda info: info.offset)
        for one, following in itertools.pairwise(placed):
            if one.offset + one.bytes > following.offset:
                raise self._broken(f"{one.name!r} and {following.name!r} in the same place")

    def _text(self, most: int | None = None) -> str:
        (length,) = struct.unpack("<Q", self._take(8))
        if most is not None and length > most:
            raise self._broken(f"a name of {length} bytes")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self._broken("a text that is not UTF-8") from None

    def _value(self, kind: int, depth: int) -> Any:
        if kind in NUMBERS:
            return struct.unpack(f"<{NUMBERS[kind]}", self._take(struct.calcsize(NUMBERS[kind])))[0]
        if kind == STRING:
            return self._text()
        if kind != ARRAY or depth == MOST_DEPTH:
            raise self._broken(f"a value of unknown type {kind}" if kind != ARRAY else "lists in lists")
        inner, count = struct.unpack("<IQ", self._take(12))
        if inner in NUMBERS:
            return np.frombuffer(self._take(count * struct.calcsize(NUMBERS[inner])), f"<{NUMBERS[inner]}")
        self._skip_texts(count) if inner == STRING else [self._value(inner, depth + 1) for _ in range(count)]
        return None

    def _skip_texts(self, count: int) -> None:
        """Skip text lists in bulk: vocabularies have hundreds of thousands of texts."""
        data, at, end = self._data, self._at, len(self._data)
        unpack: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > end:
                break
            at += 8 + unpack(data, at)[0]
        else:
            if at <= end:
                self._at = at
                return
        raise self._broken("its end inside a list of texts")

    def _tensor(self) -> TensorInfo:
        name = self._text(MOST_NAME)
        (count,) = struct.unpack("<I", self._take(4))
        if not 1 <= count <= MOST_DIMENSIONS:
            raise self._broken(f"{count} dimensions of {name!r}")
        shape = struct.unpack(f"<{count}Q", self._take(8 * count))[::-1]
        kind, offset = struct.unpack("<IQ", self._take(12))
        return TensorInfo(name, shape, kind, offset, 0)

    def _placed(self, info: TensorInfo, start: int, alignment: int) -> TensorInfo:
        """Return the tensor with its position in the file; unknown types have no size."""
        elements = 1
        for length in info.shape:
            elements *= length
        if not elements or info.offset % alignment:
            raise self._broken(f"a shape {info.shape} or place {info.offset} that {info.name!r} cannot have")
        if info.kind in PLAIN:
            size = elements * PLAIN[info.kind].itemsize
        elif info.kind in BLOCK_TYPES:
            block = BLOCK_TYPES[info.kind]
            if info.shape[-1] % block.inputs:
                raise self._broken(
                    f"rows of {info.shape[-1]} numbers in {info.name!r}, no whole blocks of {block.name}"
                )
            size = elements // block.inputs * block.bytes
        else:
            size = 0
        if start + info.offset + size > len(self._data):
            raise self._broken(f"its end inside {info.name!r}")
        return TensorInfo(info.name, info.shape, info.kind, start + info.offset, size)
