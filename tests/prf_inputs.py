"""Keys and contexts that the tests of everything keyed share."""

from collections.abc import Sequence

import torch

from caw.watermarks.keys import signed

KEYS = [0, 42, 2**32 - 1, 2**32, 2**63 + 12345, 2**64 - 1]
WIDTHS = [0, 1, 3, 4, 5, 9]


def contexts(batch, width, device):
    context = torch.randint(-1, 100_000, (batch, width))
    context[0] = -1
    return context.to(device)


def mixed_keys(key: int, count: int) -> list[int]:
    return ([key] + KEYS[::-1] * count)[:count]


def key_tensor(keys: Sequence[int], device: torch.device | str = "cpu") -> torch.Tensor:
    """Keys below 2^64 as int64 [B] of the same bits, which is how ops take them."""
    return torch.tensor([signed(key) for key in keys], dtype=torch.int64, device=device)
