"""Models whose weights are cut over several processes (transformers' tp_plan="auto", torch's DTensor).

Every process runs the same calls of `caw.generate` with the same prompts. Each sees the whole logits, so each makes the
same choices; what would let them differ (memory of its own device) is agreed on here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed


def is_tensor_parallel(model: Any) -> bool:
    """Whether some weight of the model is one process's part of it."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def smallest(number: int, model: Any, device: torch.device) -> int:
    """The smallest of the processes' numbers: each must run the same batch, or they wait for each other for ever."""
    from torch.distributed.tensor import DTensor

    mesh = next(p.device_mesh for p in model.parameters() if isinstance(p, DTensor))
    agreed = torch.tensor(number, device=device)
    for group in mesh.get_all_groups():
        distributed.all_reduce(agreed, distributed.ReduceOp.MIN, group=group)
    return int(agreed)
