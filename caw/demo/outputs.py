"""The demo: plain, KGW, CAW and drawn outputs of one prompt, with the watermark's effect on each token and the
detector's results.

plain   the model alone        CAW    strength looked up one token ahead
KGW     every token at full strength        drawn  at a temperature, by the key instead of random numbers
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from caw.decoding.trace import SequenceTrace
from caw.detection import DetectionResult, detect
from caw.entrance import generate
from caw.policies import CapacityPolicy, FixedStrength, Policy
from caw.policies.recommended import Recommended
from caw.watermarks.green_list import GreenList

Kind = Literal["marked", "kept", "protected", "green", "plain"]
TEMPERATURE = 0.7
WARM_UP_TOKENS = 4  # the first forwards allocate memory, which would make the first text look slow


@dataclass(frozen=True)
class DemoToken:
    """A token of a text: its text, its colour, and its tooltip."""

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
    """Four outputs of one prompt."""

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
    """Generate four texts one by one, for comparable speeds; p-values are `detect`'s, of texts and key alone."""
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
    race = Recommended(watermark.secret)
    out = generate(
        model, tokenizer, prompt, watermark=race, do_sample=True, temperature=TEMPERATURE,
        max_new_tokens=max_new_tokens, chat=chat,
    )  # fmt: skip
    assert out.trace is not None
    words = tuple(DemoToken(text, "plain", "drawn by the key") for text in pieces(tokenizer, out.trace[0].tokens))
    subtitle = f"at temperature {TEMPERATURE:g}, by the key: no likelihood changes"
    found = detect(out.texts[0], tokenizer, race, fpr=fpr)
    texts.append(DemoText("drawn", subtitle, words, found, out.tokens_per_second, 0, 0, math.nan))
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
    """Return the text that each token adds; "" for tokens that end inside a character, which the last token shows."""
    texts, shown = [], ""
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        unfinished = text.endswith("\ufffd") and end < len(ids)
        new = "" if unfinished else text[len(shown) :]
        texts.append(new)
        shown += new
    return texts
