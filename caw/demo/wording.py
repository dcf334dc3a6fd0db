"""What the demo says about its outputs, on a terminal and on a page."""

from __future__ import annotations

import math

from caw.demo.outputs import Demo, DemoText, Kind
from caw.io.show import format_p

INTRODUCTION = (
    "A watermark is a signal in the choice of words that readers do not see and that only the holder of a secret key "
    "can test. At each position the key declares a part of the vocabulary green; a watermarked model leans towards "
    "green tokens; a text with far more of them than chance allows gives itself away."
)
P_VALUE = "The p-value is the probability that a text without this watermark holds so many green tokens."


def facts(text: DemoText) -> list[tuple[str, str]]:
    """The numbers beneath a text: (name, value)."""
    d = text.detection
    rows = [
        ("p-value", format_p(d.p_value)),
        ("verdict", "watermarked" if d.is_watermarked else "no watermark found"),
        ("green / counted", f"{d.score:.0f} / {d.num_scored} (z {d.z_score:.1f})"),
        ("speed", f"{text.tokens_per_second:.1f} tokens/s"),
    ]
    if not math.isnan(text.single):
        changed = f"{text.changed} of {len(text.tokens)}"
        rows += [("changed tokens", changed), ("one candidate only", f"{text.single:.0%}")]
    if text.title == "CAW":
        kept = sum(t.kind == "kept" for t in text.tokens)
        rows.append(("protected tokens", f"{text.protected} of {len(text.tokens)}, {kept} kept by it"))
    return rows


def legend(demo: Demo) -> list[tuple[Kind, str]]:
    """What the colours mean."""
    return [
        ("marked", "the watermark chose another token here than the model would have"),
        ("kept", "the watermark would have chosen another token, but CAW predicts that this one matters and keeps it"),
        ("protected", "CAW predicts that this token matters; the watermark could not have changed it anyway"),
        (
            "green",
            f"on the key's green list by chance, as {demo.watermark.gamma:.0%} of all tokens are",
        ),
    ]


def settings(demo: Demo) -> str:
    """One line: model, watermark, policy; the key by its id alone."""
    w, p = demo.watermark, demo.policy
    return (
        f"{demo.model}, greedy; {w.name} gamma {w.gamma:g} delta {w.delta:g}, key {w.key_id}; "
        f"CAW theta {p.theta:g} beta {p.beta:g}"
    )
