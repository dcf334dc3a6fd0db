"""Defaults of a plan: slots, history, ends, and whether steps are captured and carry drafts."""

from typing import Any

import torch

from caw import ops
from caw.decoding.forward.fused_layers import DTYPES, fusible
from caw.decoding.forward.prefill_attention import compiled_prefill
from caw.decoding.row_settings import RowLimits
from caw.models.facts import ModelFacts
from caw.models.parts import ModelParts
from caw.policies import CapacityPolicy, FixedStrength, Policy
from caw.policies.base import check_declared
from caw.policies.mark import Mark
from caw.settings import MAX_SLOTS, WHERE_IT_PAYS, Settings
from caw.watermarks import Watermark

REPEATED_SLOTS = 2  # where each token is carried once, the likeliest first: it takes 1.07 steps a token of SynthID
DEFAULT_EXP_SLOTS = 8  # distinct race winners beyond 8 of 20 are a 0.03 % event on near-flat lists
CACHE_BLOCK = 256  # tokens: sizes of the cache that kernels are compiled for, and bodies by torch.compile
MOST_DRAFTS = 12  # drafts of one sequence in a forward, unless more are asked for
NEVER = "speculate is None"
ROUNDING = "the model has layers whose rounding may depend on the number of rows"


def candidate_slots(
    watermark: Watermark | None, policy: Policy, settings: Settings, max_strength: float, *, captured: bool = False
) -> int:
    """Return C, the maximum number of candidates of one forward."""
    if watermark is None or not policy.looks_ahead:
        return 1
    if settings.slots is not None:
        return settings.slots
    if watermark.rule == "reweight":
        return 2
    if watermark.repeats_candidates and not captured:
        return REPEATED_SLOTS
    most = watermark.max_candidates
    if watermark.rule == "top_k":
        most = max(1, round(max_strength * watermark.full))
    return min(most, DEFAULT_EXP_SLOTS, MAX_SLOTS)


def history_needed(policy: Policy) -> int:
    """Return N-, the number of earlier distributions that the policy's evaluator reads."""
    if not isinstance(policy, CapacityPolicy):
        return 0
    policy.network.spec.check_decodable()
    policy.network.check_served()
    policy.network.check_numbers()  # once more: its weights may have changed since the policy was made
    return policy.network.spec.previous


def checked(policy: Policy) -> Policy:
    """Return the policy; raise TypeError or ValueError unless steps can compute its strength."""
    check_declared(policy)
    reads = policy.reads_capacity or policy.looks_ahead
    if reads and type(policy).strength is not CapacityPolicy.strength:
        raise TypeError(
            "a policy that reads capacities must be a CapacityPolicy with its own strength formula, "
            f"{type(policy).__name__} has another; give it reads_capacity = False, or change theta, beta or the "
            "evaluator"
        )
    if reads and isinstance(policy, CapacityPolicy) and policy.network.spec.next and not policy.looks_ahead:
        raise ValueError(
            f"a policy whose evaluator reads the next position must look ahead, {type(policy).__name__} has "
            "looks_ahead = False; leave it out, or use an evaluator of window (1, 0)"
        )
    return policy


def marks_eos(asked: bool | None, watermark: Watermark | None, policy: Policy | None) -> bool:
    """Return `Plan.mark_eos`; None = as the watermark's system does. A full race draws ends as the model does."""
    if asked is not None:
        return asked
    return Mark(watermark, policy or FixedStrength(1.0)).races or (watermark is not None and watermark.marks_ends)


def cache_places(longest: int, device: torch.device, compiled: bool) -> int:
    """Return the capacity of a sequence in tokens: whole blocks where each size is compiled for."""
    whole = -(-longest // CACHE_BLOCK) * CACHE_BLOCK
    return whole if compiled or device.type == "cuda" else longest


def needed_of_host(
    watermark: Watermark | None, policy: Policy, limits: RowLimits, device: torch.device, *, processors: bool
) -> str:
    """Say what a step needs the host for; "" if nothing."""
    if processors:
        return "logits processors of transformers' own, which may read back"
    if watermark is None or watermark.native is not None:
        return ""
    name = getattr(watermark, "format", watermark.name)
    if watermark.placed(device) is None:
        missing = " without this library's CUDA extension" if watermark.foreign else ""
        return f"ladders of {name!r}{missing}, which are made on the host"
    if limits.keys:
        return f"texts with keys of their own in format {name!r}, whose tables differ by key"
    if policy.target is not None:
        return f"a target, for which texts in format {name!r} are scored on the host"
    return ""


def will_capture(
    facts: ModelFacts, watermark: Watermark | None, policy: Policy, settings: Settings, kernels: ops.Ops,
    limits: RowLimits, limit: int | None, asked: bool | None, *, processors: bool,
) -> bool:  # fmt: skip
    """Tell whether steps are captured; asked: None = on CUDA or with compile=True. ValueError if that cannot be."""
    why_not = needed_of_host(watermark, policy, limits, facts.device, processors=processors)
    # no graph spans devices or processes, and none can hold a rotary embedding that changes
    whole = not facts.spread and facts.mesh is None and limit is None and settings.branching == "tree"
    if settings.compile and not (whole and not why_not and kernels.native and asked is not False):
        spread = facts.spread or facts.mesh is not None
        obstacle = why_not or (
            "a model on several devices" if spread
            else "texts that may reach that length" if limit is not None
            else f"branching={settings.branching!r}" if settings.branching != "tree"
            else "backend='reference'" if not kernels.native
            else "settings that keep steps eager"
        )  # fmt: skip
        raise ValueError(
            "compile=True needs a model on one device, texts below the length where its rotary embedding changes, this "
            f"library's kernels, and steps that need nothing of the host, found {obstacle}; leave compile out"
        )
    by_itself = (facts.device.type == "cuda" or settings.compile) and kernels.native
    return whole and not why_not and (by_itself if asked is None else asked)


def why_no_drafts(facts: ModelFacts, settings: Settings, kernels: ops.Ops, *, captured: bool, changing: bool) -> str:
    """Say why decoding carries no drafts, "" if it may. changing: keys may change later. ValueError if asked for."""
    if settings.speculate is None:
        return NEVER
    compiled = compiled_prefill(settings.prefill_attention, facts.device, kernels) and facts.dtype in DTYPES
    spread = facts.spread or facts.mesh is not None
    obstacles = {
        "steps other than this library's compiled ones on a CPU, in float32 or bfloat16": not compiled,
        "steps on several devices": spread,
        "compile=True": settings.compile,
        "captured steps": captured,
        f"branching={settings.branching!r}": settings.branching != "tree",
        "texts that may outgrow the model's rotary embedding, or dropout": changing,
    }
    reason = next((name for name, there in obstacles.items() if there), "")
    if reason and settings.speculate not in WHERE_IT_PAYS:
        raise ValueError(
            f"speculate={_said(settings.speculate)} needs branching='tree' and this library's compiled steps on a "
            f"CPU, found {reason}; leave speculate out"
        )
    return reason


def most_drafts(settings: Settings, why_not: str) -> int:
    """Return the maximum length of one sequence's draft; 0 if there is a reason for none."""
    most = settings.speculate if isinstance(settings.speculate, int) else MOST_DRAFTS
    return 0 if why_not else most


def exact_rows(model: Any) -> bool:
    """Tell whether one row-invariant operator runs all decoder layers, with no torch behind that rounds by rows."""
    parts = ModelParts.of(model)
    about = ops.missing_extension(), parts.hooked(model)
    exact: bool | None = parts.known("exact_rows", about)
    if exact is None:
        layers = [module for module in parts.below if type(module).__name__.endswith("DecoderLayer")]
        exact = bool(layers) and all(map(fusible, layers)) and not _capped_unevenly(model.config)
        parts.keep("exact_rows", exact, about)
    return exact


def _capped_unevenly(config: Any) -> bool:
    """Tell whether logits are capped by a tanh of torch's, which takes a tensor's last few numbers otherwise."""
    return bool(getattr(config, "final_logit_softcapping", None)) and config.vocab_size % 32 != 0


def _said(speculate: Any) -> str:
    return str(speculate) if isinstance(speculate, int) else type(speculate).__name__
