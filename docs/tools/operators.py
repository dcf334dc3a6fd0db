"""Every operator of the library as Markdown: its schema, from what torch has registered, and its reference."""

from __future__ import annotations

from pathlib import Path

import torch

from caw import ops

ROOT = Path(__file__).resolve().parents[2]


def operators() -> str:
    """A row an operator: its schema, which begins with its name, and whether CUDA tensors have a kernel."""
    found = {name: op for name, op in vars(ops).items() if isinstance(op, torch._ops.OpOverload)}
    lines = [
        f"| `{str(op._schema).removeprefix(f'{ops.NAMESPACE}::')}` | {'yes' if ops.has_kernel(name, 'cuda') else ''} |"
        for name, op in found.items()
    ]
    return "\n".join(["| operator | CUDA |", "| --- | --- |", *lines])


def references(folder: str) -> str:
    """What mkdocstrings shows of every reference in a folder."""
    files = sorted((ROOT / folder).glob("*_ref.py"))
    if not files:
        raise ValueError(f"no reference in {folder}")
    names = [f"{folder.replace('/', '.')}.{file.stem}" for file in files]
    return "\n\n".join(f"::: {name}\n    options: {{heading_level: 3}}" for name in names)
