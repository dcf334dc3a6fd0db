"""Watermarks by name: one list for the command line, YAML files and benchmarks. Importing it imports none of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # PyTorch takes a second to import
    from caw.watermarks.base import Watermark


@dataclass(frozen=True)
class Entry:
    """class_name: in `caw.watermarks`. strength: arguments that say how strongly it marks, which no detector reads."""

    class_name: str
    strength: tuple[str, ...] = ()


WATERMARKS = {
    "kgw": Entry("KGW", ("delta",)),
    "unigram": Entry("Unigram", ("delta",)),
    "exp": Entry("EXP", ("top_k",)),
    "synthid": Entry("SynthID"),
}


def watermark_class(name: str) -> type[Watermark]:
    """The class of a name in WATERMARKS."""
    found: type[Watermark] = getattr(importlib.import_module("caw.watermarks"), WATERMARKS[name].class_name)
    return found


def watermark_arguments(name: str) -> list[str]:
    """What its class takes besides the key."""
    return [field.name for field in fields(watermark_class(name)) if field.init and field.name != "key"]


def watermark_name(watermark: Watermark) -> str:
    """The name of a watermark's class; raises KeyError for a class that is not in the list."""
    return {entry.class_name: name for name, entry in WATERMARKS.items()}[type(watermark).__name__]


def said_of(watermark: Watermark) -> dict[str, Any]:
    """All of a watermark but its key, for JSON: its "name" and its arguments, those left out that are None."""
    name = watermark_name(watermark)
    values = {argument: getattr(watermark, argument) for argument in watermark_arguments(name)}
    return {"name": name, **{argument: value for argument, value in values.items() if value is not None}}


def watermark_from(said: Mapping[str, Any], key: int | str | bytes) -> Watermark:
    """The watermark that `said_of` told of, under a key. Raises KeyError, TypeError or ValueError for another thing."""
    return watermark_class(said["name"])(key, **{name: value for name, value in said.items() if name != "name"})


def reads_alike(one: Watermark, other: Watermark) -> bool:
    """Whether a detector makes the same test of both, were their keys the same: they differ in strength at most."""
    told = []
    for said in (said_of(one), said_of(other)):
        unread = (*WATERMARKS[said["name"]].strength, "vocab_size")  # which generation fills in
        told.append({name: value for name, value in said.items() if name not in unread})
    return told[0] == told[1]
