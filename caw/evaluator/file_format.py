"""File format of an evaluator; everything in a file is checked before a network is built."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from caw.evaluator.features import FeatureSpec
from caw.io.vocabulary import Vocabulary

FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
MOST_HIDDEN = 1 << 16
REMEDY = "train again with `caw train-evaluator`"


@dataclass(frozen=True)
class About:
    """The metadata of a file; see `Evaluator`."""

    spec: FeatureSpec
    hidden: int
    provenance: dict[str, Any]
    vocabulary: Vocabulary | None
    universal: bool


def read_file(path: Path) -> tuple[About, dict[str, torch.Tensor]]:
    """Return a file's metadata and its tensors by name, weights as float32.

    Raises ValueError in one sentence for another kind of file, and naming the tensor if one is missing, unknown, or of
    a wrong dtype or shape for the features and width; no tensor is read before all are known to fit.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            about = _about(file.metadata() or {})
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            _check(about, {name: (part.get_dtype(), list(part.get_shape())) for name, part in slices.items()})
            tensors = {name: file.get_tensor(name) for name in slices}
            table = tensors.get("token_class")
            if table is not None and (most := int(table.max())) >= about.spec.classes:
                raise ValueError(f"tensor token_class with class {most}, where {about.spec.classes} are known")
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
        found = f"no {error} in its metadata" if isinstance(error, KeyError) else str(error).replace("\n", " ")
        raise ValueError(f"expected evaluator weights of this version in {path}, found: {found}; {REMEDY}") from error
    return about, {name: part if name == "token_class" else part.float() for name, part in tensors.items()}


def _about(metadata: dict[str, str]) -> About:
    spec, hidden = FeatureSpec(**json.loads(metadata["spec"])), int(metadata["hidden"])
    if not 0 < hidden <= MOST_HIDDEN:
        raise ValueError(f"width {hidden} in its metadata, where 1 to {MOST_HIDDEN} are known")
    provenance, universal = json.loads(metadata["provenance"]), json.loads(metadata.get("universal", "false"))
    if not isinstance(provenance, dict) or not isinstance(universal, bool):
        raise ValueError("a provenance that is no mapping, or 'universal' that is neither true nor false")
    vocabulary = Vocabulary.read(metadata["vocabulary"]) if "vocabulary" in metadata else None
    return About(spec, hidden, provenance, vocabulary, universal)


def shapes_of(spec: FeatureSpec, hidden: int) -> dict[str, list[int | None]]:
    """Return the shape of each tensor of a file; None = any length but 0."""
    inputs, h = spec.size, hidden
    shapes: dict[str, list[int | None]] = {
        "mean": [inputs], "scale": [inputs], "layer1.weight": [h, inputs], "layer1.bias": [h],
        "layer2.weight": [h, h], "layer2.bias": [h], "layer3.weight": [1, h], "layer3.bias": [1],
    }  # fmt: skip
    return {**shapes, "token_class": [None]} if spec.classes else shapes


def _check(about: About, found: dict[str, tuple[str, list[int]]]) -> None:
    """Raise ValueError naming the first tensor that does not match the metadata."""
    expected = shapes_of(about.spec, about.hidden)
    for name in expected:
        if name not in found and not (name == "token_class" and about.universal):
            raise ValueError(f"no tensor {name}")
    for name, (dtype, shape) in found.items():
        if name not in expected:
            raise ValueError(f"a tensor {name}, which no evaluator of these features has")
        kinds = {"U8": "uint8"} if name == "token_class" else FLOATS
        if dtype not in kinds:
            raise ValueError(f"tensor {name} of dtype {dtype}, where {' or '.join(kinds.values())} is known")
        fits = len(shape) == len(expected[name]) and all(
            size == wanted if wanted is not None else size > 0
            for size, wanted in zip(shape, expected[name], strict=True)
        )
        if not fits:
            wanted = ["V" if size is None else size for size in expected[name]]
            raise ValueError(
                f"tensor {name} of shape {shape}, where its features and width {about.hidden} in its metadata ask for "
                f"[{', '.join(map(str, wanted))}]"
            )
