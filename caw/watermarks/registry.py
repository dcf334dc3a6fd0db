"""Watermarks by name: one list for the command line, YAML files and benchmarks. Importing it imports none of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

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
