"""Every operator of the library with its schema, as Markdown, from what torch has registered."""

from __future__ import annotations

import torch

from caw import ops


def operators() -> str:
    """A row an operator: its schema, and whether CUDA tensors have a kernel."""
    found = {name: op for name, op in vars(ops).items() if isinstance(op, torch._ops.OpOverload)}
    rows = [(name, str(op._schema).removeprefix(f"{ops.NAMESPACE}::"), ops.has_kernel(name, "cuda"))
            for name, op in found.items()]  # fmt: skip
    lines = [f"| `{name}` | `{schema}` | {'yes' if cuda else ''} |" for name, schema, cuda in rows]
    return "\n".join(["| operator | schema | CUDA |", "| --- | --- | --- |", *lines])
