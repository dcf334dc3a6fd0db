"""Texts of the demo, for the terminal and the page."""

import math

from caw.demo.outputs import TEMPERATURE, Demo, DemoText, Kind
from caw.io.show import format_p

INTRODUCTION = (
    "A watermark is a signal in the choice of words that readers do not notice and that only the holder of "
    "a secret key can detect. At each position the key makes a part of the vocabulary green. A watermarked model "
    "prefers "
    "green tokens, so its texts contain far more of them than chance allows. Where words are drawn, the key takes the "
    "place of the random numbers, which changes no probability."
)
P_VALUE = "The p-value is the probability that a text without this watermark scores as high."


def facts(text: DemoText) -> list[tuple[str, str]]:
    """Return the numbers beneath a text: (name, value)."""
    d = text.detection
    counted = f"{d.score:.0f} / {d.num_scored} (z {d.z_score:.1f})"
    rows = [
        ("p-value", format_p(d.p_value)),
        ("verdict", "watermarked" if d.is_watermarked else "no watermark found"),
        ("score / counted" if d.family == "exp" else "green / counted", counted),
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
    return [
        ("marked", "the watermark changed the model's choice here"),
        ("kept", "the watermark would have changed this token, but CAW predicts that it matters and protects it"),
        ("protected", "CAW predicts that this token matters; the watermark would not have changed it"),
        ("green", f"green by chance, like {demo.watermark.gamma:.0%} of all tokens"),
    ]


def settings(demo: Demo) -> str:
    """Describe model, watermark and policy in one line; the key only by its id."""
    w, p = demo.watermark, demo.policy
    return (
        f"{demo.model}, greedy (drawn: temperature {TEMPERATURE:g}); "
        f"{w.name} gamma {w.gamma:g} delta {w.delta:g}, key {w.key_id}; "
        f"CAW theta {p.theta:g} beta {p.beta:g}"
    )
