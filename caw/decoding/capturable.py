"""Whether steps are captured: what a step has to do without, and what is asked for."""

from __future__ import annotations

import torch

from caw import ops
from caw.decoding.row_settings import RowLimits
from caw.decoding.warping import Warper, Warping
from caw.models.facts import ModelFacts
from caw.policies import Policy
from caw.settings import Settings
from caw.watermarks import Watermark


def needed_of_host(
    watermark: Watermark | None, policy: Policy, warper: Warper | None, limits: RowLimits, device: torch.device
) -> str:
    """What a step needs of the host; "" where it can do without."""
    if warper is not None and not isinstance(warper, Warping):
        return "logits processors of transformers' own, which may read back"
    if watermark is None or watermark.native is not None:
        return ""
    name = getattr(watermark, "format", watermark.name)
    if not watermark.fixed_on(device):
        missing = " without this library's CUDA extension" if watermark.foreign else ""
        return f"ladders of {name!r}{missing}, which are made on the host"
    if limits.keys:
        return f"texts with keys of their own in format {name!r}, whose tables differ by key"
    if policy.target is not None:
        return f"a target, for which texts in format {name!r} are scored on the host"
    return ""


def will_capture(
    facts: ModelFacts,
    watermark: Watermark | None,
    policy: Policy,
    settings: Settings,
    kernels: ops.Ops,
    limits: RowLimits,
    warper: Warper | None,
    limit: int | None,
    asked: bool | None,
) -> bool:
    """Whether steps are captured; ValueError where compile needs that and it cannot be.

    Arguments as in `Plan`. asked: None = where it pays.
    """
    why_not = needed_of_host(watermark, policy, warper, limits, facts.device)
    # no graph spans devices or processes, and none can hold a rotary embedding that changes
    whole = not facts.spread and facts.mesh is None and limit is None
    if settings.compile and not (whole and not why_not and kernels.native and asked is not False):
        found = why_not or "another"
        raise ValueError(
            "compile=True needs a model on one device, texts below the length where its rotary embedding changes, this "
            f"library's kernels, and steps that need nothing of the host, found {found}; leave compile out"
        )
    by_itself = (facts.device.type == "cuda" or settings.compile) and kernels.native
    return whole and not why_not and (by_itself if asked is None else asked)
