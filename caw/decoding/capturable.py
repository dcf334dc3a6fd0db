"""Whether steps are captured: what a step has to do without, and what is asked for."""

from __future__ import annotations

from caw import ops
from caw.decoding.warping import Warper, Warping
from caw.models.facts import ModelFacts
from caw.settings import Settings
from caw.watermarks import Watermark


def capturable(watermark: Watermark | None, warper: Warper | None) -> bool:
    """Whether a step can do without the host: no foreign format, no processors of transformers' own."""
    native = watermark is None or watermark.native is not None
    return native and (warper is None or isinstance(warper, Warping))


def will_capture(
    facts: ModelFacts, settings: Settings, kernels: ops.Ops, limit: int | None, possible: bool, asked: bool | None
) -> bool:
    """Whether steps are captured; ValueError where compile needs that and it cannot be.

    limit: as in `Plan`. possible: whether the step can do without the host (`capturable`). asked: None = where it pays.
    """
    # no graph spans devices or processes, and none can hold a rotary embedding that changes
    whole = not facts.spread and facts.mesh is None and limit is None
    if settings.compile and not (whole and possible and kernels.native and asked is not False):
        raise ValueError(
            "compile=True needs a model on one device, texts below the length where its rotary embedding changes, this "
            "library's kernels, and a watermark and sampler of its own, found another; leave compile out"
        )
    by_itself = (facts.device.type == "cuda" or settings.compile) and kernels.native
    return whole and possible and (by_itself if asked is None else asked)
