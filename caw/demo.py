"""The demo: one prompt's plain, KGW and CAW outputs, what the watermark did at each token, and what a detector says.

plain  the model alone         KGW  every token at full strength         CAW  strength looked up one token ahead
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from caw.decoding.trace import SequenceTrace
from caw.detection import DetectionResult, detect
from caw.entrance import generate
from caw.policies import CapacityPolicy, FixedStrength, Policy
from caw.show import format_p, visible
from caw.watermarks.green_list import GreenList

Kind = Literal["marked", "kept", "protected", "green", "plain"]
WARM_UP_TOKENS = 4  # the first forwards allocate; they would count against whichever text comes first
SIDE_BY_SIDE = 132  # terminal columns from which three texts stand beside each other
STYLES: dict[Kind, str] = {
    "marked": "bold black on green",
    "kept": "bold black on bright_cyan",
    "protected": "bright_cyan",
    "green": "green",
    "plain": "",
}
INTRODUCTION = (
    "A watermark is a signal in the choice of words that readers do not see and that only the holder of a secret key "
    "can test. At each position the key declares a part of the vocabulary green; a watermarked model leans towards "
    "green tokens; a text with far more of them than chance allows gives itself away."
)
P_VALUE = "The p-value is the probability that a text without this watermark holds so many green tokens."


@dataclass(frozen=True)
class DemoToken:
    """One token of a text: what it reads as, how it is coloured, and what a tooltip says about it."""

    text: str
    kind: Kind
    note: str


@dataclass(frozen=True)
class DemoText:
    """One output. changed, protected: number of tokens; single: share of tokens with one candidate, NaN if unmarked."""

    title: str
    subtitle: str
    tokens: tuple[DemoToken, ...]
    detection: DetectionResult
    tokens_per_second: float
    changed: int
    protected: int
    single: float


@dataclass(frozen=True)
class Demo:
    """Three outputs of one prompt."""

    model: str
    prompt: str
    watermark: GreenList
    policy: CapacityPolicy
    texts: tuple[DemoText, ...]


def run_demo(
    model: Any,
    tokenizer: Any,
    prompt: str,
    watermark: GreenList,
    policy: CapacityPolicy,
    *,
    max_new_tokens: int = 180,
    chat: bool = True,
    fpr: float = 1e-3,
) -> Demo:
    """Generate the three texts, one after the other and alone, so that their speeds compare.

    Greedy. Every p-value comes from the text alone, by `detect` with the same key; plain is tested like the others.
    """
    name = str(getattr(model.config, "_name_or_path", "") or model.config.model_type)
    generate(model, tokenizer, prompt, watermark=watermark, policy=policy, max_new_tokens=WARM_UP_TOKENS, chat=chat)
    runs: list[tuple[str, str, GreenList | None, Policy | None]] = [
        ("plain", "the model alone", None, None),
        ("KGW", f"every token marked, delta {watermark.delta:g}", watermark, FixedStrength(1.0)),
        ("CAW", f"delta {policy.beta * watermark.delta:g} or less, by importance", watermark, policy),
    ]
    texts = []
    for title, subtitle, mark, how in runs:
        out = generate(model, tokenizer, prompt, watermark=mark, policy=how, max_new_tokens=max_new_tokens, chat=chat)
        assert out.trace is not None
        tokens = _tokens(tokenizer, out.trace[0], watermark, how)
        texts.append(
            DemoText(
                title, subtitle, tokens, detect(out.texts[0], tokenizer, watermark, fpr=fpr), out.tokens_per_second,
                changed=sum(t.kind == "marked" for t in tokens),
                protected=sum(t.kind in ("kept", "protected") for t in tokens),
                single=out.trace[0].single_candidate_share if mark else math.nan,
            )
        )  # fmt: skip
    return Demo(name, prompt, watermark, policy, tuple(texts))


def _tokens(tokenizer: Any, trace: SequenceTrace, watermark: GreenList, policy: Policy | None) -> tuple[DemoToken, ...]:
    import torch

    theta = policy.theta if isinstance(policy, CapacityPolicy) else math.inf
    green = watermark.score_tokens(torch.tensor(trace.tokens, dtype=torch.int64)).values.bool().tolist()
    out = []
    for text, step, is_green in zip(pieces(tokenizer, trace.tokens), trace, green, strict=True):
        kind: Kind = "green" if is_green else "plain"
        if step.choice > 0:
            kind = "marked"
        elif step.capacity > theta:
            kind = "kept" if len(step.candidates) > 1 else "protected"
        notes = [f"importance {step.capacity:.2f}"] if not math.isnan(step.capacity) else []
        if step.choice > 0:
            notes.append(f"the model alone: {tokenizer.decode([step.candidates[0]])!r}")
        elif len(step.candidates) > 1:
            notes.append(f"full strength: {tokenizer.decode([step.candidates[-1]])!r}")
        out.append(DemoToken(text, kind, ", ".join(notes)))
    return tuple(out)


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each token adds; "" for tokens that end inside a character, whose last token shows it."""
    texts, shown = [], ""
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        unfinished = text.endswith("\ufffd") and end < len(ids)
        new = "" if unfinished else text[len(shown) :]
        texts.append(new)
        shown += new
    return texts


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


def render(demo: Demo, console: Console) -> None:
    """Print the demo: beside each other on wide terminals, else one below the other."""
    console.print(Padding(Text(f"{INTRODUCTION}\n{P_VALUE}", style="dim"), (0, 0, 1, 0)))
    console.print(Text.assemble(("prompt  ", "bold"), visible(demo.prompt)))
    console.print(Text.assemble(("model   ", "bold"), settings(demo)))
    panels = [_panel(text) for text in demo.texts]
    if console.width >= SIDE_BY_SIDE:
        console.print(Columns(panels, equal=True, expand=True, width=console.width // 3 - 1))
    else:
        console.print(*panels, sep="\n")
    console.print(_legend(demo))


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


def _panel(text: DemoText) -> Panel:
    body = Text()
    for token in text.tokens:
        body.append(visible(token.text), style=STYLES[token.kind])
    table = Table.grid(padding=(0, 2))
    for name, value in facts(text):
        table.add_row(Text(name, style="dim"), Text(value, style="bold" if name in ("p-value", "verdict") else ""))
    content: RenderableType = Group(body, Text(), table)
    return Panel(content, title=Text(f" {text.title}: {text.subtitle} "), title_align="left")


def _legend(demo: Demo) -> Table:
    table = Table.grid(padding=(0, 2))
    for kind, meaning in legend(demo):
        table.add_row(Text(f" {kind} ", style=STYLES[kind]), meaning)
    return table
