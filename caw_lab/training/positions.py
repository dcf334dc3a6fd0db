"""Stored records of a teacher-forced pass: run the model once, train evaluators with many feature specs.

A folder holds, memory-mapped, one row per kept position of each document (R rows; a document's rows are contiguous,
from three positions before its reference to one behind it) and one entry per reference token (N tokens):

    values [R, K] float32, ids [R, K] int32, logsumexp [R], entropy [R] float32     the record of p at that position
    token [N] int32, key [N] bool, row [N] int64 (of its p_i), document [N] int32

and `meta.json`, written last: a folder without it was left by an interrupted pass.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from caw.evaluator.features import FeatureSpec
from caw.io.files import naming, write_text
from caw.record import RECORD_SIZE, Record

VERSION = 1
SPLIT = {"train": 0.70, "validation": 0.15, "test": 0.15}
ROW_ARRAYS = {"values": np.float32, "ids": np.int32, "logsumexp": np.float32, "entropy": np.float32}
TOKEN_ARRAYS = {"token": np.int32, "key": np.bool_, "row": np.int64, "document": np.int32}
CHUNK = 4096  # rows per gather: bounds the memory beside the result


@dataclass(frozen=True)
class Positions:
    """The folder's arrays (see the module) and its metadata.

    bounds: int64 [documents + 1], where each document's rows start. meta: model, prompt, document names, counts.
    """

    arrays: dict[str, np.ndarray]
    bounds: np.ndarray
    meta: dict[str, Any]

    @classmethod
    def create(cls, folder: Path, rows: np.ndarray, tokens: int) -> Positions:
        """Create empty arrays for documents of `rows` rows and `tokens` tokens in all; `close` completes the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("meta.json", "bounds.npy"):
            (folder / name).unlink(missing_ok=True)
        bounds = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        arrays: dict[str, np.ndarray] = {}
        for names, count in ((ROW_ARRAYS, int(bounds[-1])), (TOKEN_ARRAYS, tokens)):
            for name, dtype in names.items():
                shape = (count, RECORD_SIZE) if name in ("values", "ids") else (count,)
                path = folder / f"{name}.npy"
                arrays[name] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
                _take_room(path)
        return cls(arrays, bounds, {})

    def close(self, folder: Path, meta: dict[str, Any]) -> Positions:
        """Flush, write `meta.json` and open the folder for reading."""
        for array in self.arrays.values():
            assert isinstance(array, np.memmap)
            array.flush()
        with naming(folder / "bounds.npy"):
            np.save(folder / "bounds.npy", self.bounds)
        write_text(folder / "meta.json", json.dumps({"version": VERSION, **meta}, indent=1) + "\n")
        return Positions.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Positions:
        """Memory-map a complete folder. Raises FileNotFoundError or ValueError in one sentence."""
        folder = Path(folder)
        if not (folder / "meta.json").is_file():
            raise FileNotFoundError(
                f"{folder} must be a complete folder of stored positions, meta.json is missing; run the pass again"
            )
        meta = json.loads((folder / "meta.json").read_text())
        if meta.get("version") != VERSION:
            raise ValueError(f"stored positions must be version {VERSION}, {folder} has {meta.get('version')}; rerun")
        names = [*ROW_ARRAYS, *TOKEN_ARRAYS]
        return cls(
            {n: np.load(folder / f"{n}.npy", mmap_mode="r") for n in names}, np.load(folder / "bounds.npy"), meta
        )

    def __len__(self) -> int:
        """N, the number of reference tokens."""
        return len(self.arrays["token"])

    @property
    def key(self) -> np.ndarray:
        """Labels, bool [N]."""
        return np.array(self.arrays["key"])

    def with_key(self, also: np.ndarray) -> Positions:
        """Return the same positions with more tokens labelled key: those where `also`, bool [N], is true."""
        key = self.key | also
        return Positions({**self.arrays, "key": key}, self.bounds, {**self.meta, "key_tokens": int(key.sum())})

    @property
    def agree(self) -> np.ndarray:
        """Whether the model's own choice a_0 is the reference token, bool [N]: features there are decoding's."""
        return np.asarray(self.arrays["ids"][:, 0][self.arrays["row"]] == self.arrays["token"])

    @property
    def part(self) -> np.ndarray:
        """ "train", "validation" or "test" of each token, [N]; whole documents, see `part_of`."""
        parts = np.array([part_of(name) for name in self.meta["documents"]])
        return parts[np.asarray(self.arrays["document"])]

    def baselines(self) -> dict[str, np.ndarray]:
        """Scores [N] of the baselines without training, high = key: minus entropy (nats), logit delta."""
        row = np.asarray(self.arrays["row"])
        delta = self.arrays["values"][:, 0] - self.arrays["values"][:, 1]
        # a one-token vocabulary has no second logit: the gap is infinite, which sklearn refuses
        delta = np.nan_to_num(np.asarray(delta), posinf=np.finfo(np.float32).max)
        return {"entropy": -np.asarray(self.arrays["entropy"])[row], "logit_delta": delta[row]}

    def record(self, rows: np.ndarray) -> Record:
        """Return the stored records of rows int64 [n]; row -1 is a position that does not exist."""
        there = torch.from_numpy(rows >= 0)
        take = np.maximum(rows, 0)
        values = torch.from_numpy(np.asarray(self.arrays["values"][take]))
        logsumexp = torch.from_numpy(np.asarray(self.arrays["logsumexp"][take]))
        # as in topk_softmax, which made values and logsumexp
        probs = torch.where(values == -torch.inf, torch.zeros_like(values), (values - logsumexp[:, None]).exp())
        found = Record(values, torch.from_numpy(self.arrays["ids"][take].astype(np.int64)), probs, logsumexp)
        return Record.empty(len(rows), values.device).where(there, found)

    def window(self, tokens: np.ndarray, offset: int) -> np.ndarray:
        """Return rows int64 [n] of position i + offset of each token int64 [n]; -1 if its document has none."""
        row = np.asarray(self.arrays["row"])[tokens] + offset
        document = np.asarray(self.arrays["document"])[tokens]
        inside = (row >= self.bounds[document]) & (row < self.bounds[document + 1])
        return np.where(inside, row, -1)

    def features(self, spec: FeatureSpec, tokens: np.ndarray, table: torch.Tensor | None = None) -> torch.Tensor:
        """Return features float32 [n, spec.size] of tokens int64 [n], through `FeatureSpec.assemble` as in decoding.

        table: uint8 [V], needed if the spec counts token classes.
        """
        out = torch.empty(len(tokens), spec.size)
        for start in range(0, len(tokens), CHUNK):
            some = tokens[start : start + CHUNK]
            records = [self.record(self.window(some, j)) for j in range(-spec.previous, spec.next + 1)]
            out[start : start + CHUNK] = spec.assemble(records, table)
        return out


def _take_room(path: Path) -> None:
    """Reserve a file's blocks (OSError without room): on a full disk, writing to a mapped hole is fatal (SIGBUS)."""
    if hasattr(os, "posix_fallocate"):
        with naming(path), open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def part_of(document: str) -> str:
    """Return the document's part of the split, by a hash of its name: the same for every model and label file."""
    place = int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big") / 2**64
    for name, share in SPLIT.items():
        if place < share:
            return name
        place -= share
    return "test"
