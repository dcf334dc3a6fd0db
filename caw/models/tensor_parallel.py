"""Models whose weights are split over several processes (transformers' tp_plan="auto", torch's DTensor).

Every process runs the same calls of `caw.generate` with the same prompts. Each sees the whole logits and so makes the
same choices. Where they could differ (the memory that is free), they agree here.
"""

from typing import Any

import torch
from torch import distributed


def mesh_of(model: Any) -> Any:
    """Return the device mesh of a model whose weights are split over processes; None for any other."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    from torch.distributed.tensor import DTensor

    return next((p.device_mesh for p in model.parameters() if isinstance(p, DTensor)), None)


def agree_on_smallest(number: int, mesh: Any, device: torch.device) -> int:
    """Return the smallest of the processes' numbers: without the same batch they wait for each other forever."""
    agreed = torch.tensor(number, device=device)
    for group in mesh.get_all_groups():
        distributed.all_reduce(agreed, distributed.ReduceOp.MIN, group=group)
    return int(agreed)
