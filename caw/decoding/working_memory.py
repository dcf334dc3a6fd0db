"""The cache and the state of a decoder."""

from __future__ import annotations

from caw.decoding.capture.kept_graphs import Kept
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.forward.spread_cache import SpreadCache
from caw.decoding.plan import Plan
from caw.decoding.state import DecodeState


def make_cache(plan: Plan, beside: int, kept: Kept | None) -> SiblingCache:
    """One without texts; beside: places behind the plan's capacity. kept: whose memory it takes over."""
    facts = plan.facts
    cache = (SpreadCache if facts.spread else SiblingCache)(
        facts.config.num_hidden_layers, plan.batch, plan.capacity + beside, plan.slots + plan.drafts, facts.device,
        plan.copies, plan.kernels, plan.settings.prefill_attention,
    )  # fmt: skip
    if kept is not None:
        cache.store, cache.scratch, cache.lengths = kept.store, kept.scratch, kept.lengths
    return cache


def make_state(plan: Plan) -> DecodeState:
    """One without texts."""
    device = plan.facts.device
    window = plan.watermark.window if plan.watermark is not None else 0
    room = min(plan.limits.max_new_tokens, plan.capacity)  # a generous maximum costs no memory
    return DecodeState.empty(
        plan.batch, plan.facts.vocab_size, plan.history, window, room, device, plan.limits.ends,
        evidence=plan.loop.evidence(plan.batch, room, device) if plan.loop is not None else None,
    )  # fmt: skip
