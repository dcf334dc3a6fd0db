"""Every operator of the library as Markdown: its schema, from what torch has registered."""

from __future__ import annotations

import torch

from caw import ops


def operators() -> str:
    """A row an operator: its schema, which begins with its name, and whether CUDA tensors have a kernel."""
    found = {name: op for name, op in vars(ops).items() if isinstance(op, torch._ops.OpOverload)}
    lines = [
        f"| `{str(op._schema).removeprefix(f'{ops.NAMESPACE}::')}` | {'yes' if ops.has_kernel(name, 'cuda') else ''} |"
        for name, op in found.items()
    ]
    return "\n".join(["| operator | CUDA |", "| --- | --- |", *lines])
