"""Watermarks by name, for the command line, YAML files and benchmarks. Importing this module imports none of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # PyTorch takes a second to import
    from caw.watermarks.base import Signature


@dataclass(frozen=True)
class WatermarkEntry:
    """class_name: in `module`. strength: arguments that set the strength, which no detector reads."""

    class_name: str
    strength: tuple[str, ...] = ()
    module: str = "caw.watermarks"


WATERMARKS = {
    "recommended": WatermarkEntry("Recommended", ("target", "evaluator"), "caw.policies.recommended"),
    "kgw": WatermarkEntry("KGW", ("delta",)),
    "unigram": WatermarkEntry("Unigram", ("delta",)),
    "exp": WatermarkEntry("EXP", ("top_k", "free")),
    "synthid": WatermarkEntry("SynthID"),
}


def watermark_class(name: str) -> type[Signature]:
    entry = WATERMARKS[name]
    found: type[Signature] = getattr(importlib.import_module(entry.module), entry.class_name)
    return found


def watermark_arguments(name: str) -> list[str]:
    """Return the arguments of its class, without the key."""
    return [field.name for field in fields(watermark_class(name)) if field.init and field.name != "key"]


def watermark_name(watermark: Signature) -> str:
    """Return the name of a watermark's class. KeyError for an unlisted class."""
    return {entry.class_name: name for name, entry in WATERMARKS.items()}[type(watermark).__name__]


def said_of(watermark: Signature) -> dict[str, Any]:
    """Describe a watermark without its key, for JSON: its "name" and its arguments that are not None."""
    name = watermark_name(watermark)
    values = {argument: getattr(watermark, argument) for argument in watermark_arguments(name)}
    return {"name": name, **{argument: value for argument, value in values.items() if value is not None}}


def watermark_from(said: Mapping[str, Any], key: int | str | bytes) -> Signature:
    """Build the watermark that `said_of` described, under a key. KeyError, TypeError or ValueError for another."""
    return watermark_class(said["name"])(key, **{name: value for name, value in said.items() if name != "name"})


def reads_alike(one: Signature, other: Signature) -> bool:
    """Return whether a detector of one reads the other, given equal keys: as strong or not, with enough sub-keys."""
    told = []
    for said in (said_of(one), said_of(other)):
        # generation fills vocab_size in
        unread = {*WATERMARKS[said["name"]].strength, "vocab_size", "subkeys", "subkey"}
        told.append({name: value for name, value in said.items() if name not in unread})
    return told[0] == told[1] and one.is_read_by(other)
