"""What a plan has where the caller left it open: how many candidates, how much history, whose ends are marked."""

from __future__ import annotations

import torch

from caw.policies import CapacityPolicy, Policy
from caw.settings import MAX_SLOTS, Settings
from caw.watermarks import Watermark

DEFAULT_EXP_SLOTS = 8  # distinct race winners beyond 8 of 20 are a 0.03 % event on near-flat lists
CACHE_BLOCK = 256  # tokens: sizes of the cache that kernels are compiled for, and bodies by torch.compile


def candidate_slots(watermark: Watermark | None, policy: Policy, settings: Settings, max_strength: float) -> int:
    """C: how many candidates one forward carries at most."""
    if watermark is None or not policy.looks_ahead:
        return 1
    if settings.slots is not None:
        return settings.slots
    if watermark.rule == "reweight":
        return 2
    most = watermark.max_candidates
    if watermark.rule == "top_k":
        most = max(1, round(max_strength * watermark.full))
    return min(most, DEFAULT_EXP_SLOTS, MAX_SLOTS)


def history_needed(policy: Policy) -> int:
    """N-: how many earlier distributions the policy's evaluator reads."""
    if not isinstance(policy, CapacityPolicy):
        return 0
    policy.network.spec.check_decodable()
    policy.network.check_numbers()  # once more: its weights may have changed since the policy was made
    return policy.network.spec.previous


def marks_eos(asked: bool | None, watermark: Watermark | None) -> bool:
    """`Plan.mark_eos`; None = as the watermark's system does (`Watermark.marks_ends`)."""
    return (watermark is not None and watermark.marks_ends) if asked is None else asked


def cache_places(longest: int, device: torch.device, compiled: bool) -> int:
    """Tokens that a sequence has room for: whole blocks where another size would be compiled for."""
    whole = -(-longest // CACHE_BLOCK) * CACHE_BLOCK
    return whole if compiled or device.type == "cuda" else longest
