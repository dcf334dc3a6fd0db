"""Keys and contexts that the tests of everything keyed share."""

from __future__ import annotations

import torch

KEYS = [0, 42, 2**32 - 1, 2**32, 2**63 + 12345, 2**64 - 1]
WIDTHS = [0, 1, 3, 4, 5, 9]


def contexts(batch, width, device):
    """Token ids, the missing token among them."""
    context = torch.randint(-1, 100_000, (batch, width))
    context[0] = -1
    return context.to(device)
