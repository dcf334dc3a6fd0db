"""`caw detect --html`: the result in a sentence for everyone, and the evidence behind it. One page, no script.

Tokens are coloured by their evidence: for the mark, against it, or none. The curve is the evidence so far, -log10 of
the p-value of the text up to each token: 3 means "one key in a thousand fits by chance".
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from caw.detection.detector import Detector
from caw.detection.drawing import stretches
from caw.detection.family import family_wise, part_of
from caw.detection.message import note_of
from caw.detection.result import DetectionResult
from caw.detection.statistics import tails
from caw.detection.text_weights import TextWeights
from caw.detection.weights import level_tails
from caw.io.files import write_text
from caw.io.show import format_p, is_p, visible
from caw.watermarks import SynthID

POINTS = 240  # of the curve
FEW_POINTS = 24  # where a tail takes a tenth of a second: weighted means of many bits
WIDTH, HEIGHT, EDGE = 720, 180, 34
STYLE = """
:root { color-scheme: light dark; --ink: #1c1d1f; --soft: #63676e; --line: #d9dce1; --paper: #fff; --card: #f7f8fa;
  --for: #1d9a45; --against: #c2410c; --curve: #0b63c4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ec; --soft: #9aa1ab; --line: #33373e; --paper: #131417;
  --card: #1b1d21; --for: #35c268; --against: #f08a4b; --curve: #7ab8ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.5rem 3rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; } h2 { font-size: 1.1rem; margin: 0 0 .4rem; }
article { border: 1px solid var(--line); border-radius: .5rem; background: var(--card); padding: 1rem 1.2rem;
  margin: 1.2rem 0; }
.soft { color: var(--soft); font-size: .9rem; } .verdict { font-size: 1.1rem; font-weight: 650; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; margin: .8rem 0; border-top: 1px solid var(--line);
  padding-top: .8rem; }
.text span { border-radius: .15rem; } .region { border-bottom: 2px solid var(--curve); }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
"""
PROOF = (
    "The mark belongs to a secret key. This page shows what share of unrelated keys would fit the text this well "
    "by chance. It does not show that a text without the mark was written by a person (other programs leave no mark, "
    "and "
    "editing removes it), that every sentence is from the program, or who used it. It also does not show the rate of "
    "false alarms among many similar texts, which share phrases and may all fit one key a little too well (a null "
    "report "
    "measures that). Anyone who holds the key can write marked texts."
)


def verdict(result: DetectionResult) -> str:
    """Return one sentence for readers without statistics."""
    if result.error:
        return "This text is damaged and cannot be read."
    if not result.num_scored:
        return f"This text is {'too short' if result.num_tokens else 'empty'}: nothing can be said about it."
    doubt = ""
    if result.mostly_repetition:
        doubt = (
            f" The text is mostly repetition: {result.num_repeated} of its {result.num_tokens} tokens repeat "
            "earlier text, which counts once."
        )
    if result.mode == "compat":
        doubt += " This is another program's way of counting; its p-value may be too small."
    if result.is_watermarked:
        partly = result.text_p_value is not None and result.text_p_value > result.fpr
        what = "A part of this text" if partly else "This text"
        return (
            f"{what} carries the mark: {once_in(result.p_value)} unrelated keys would fit it this well by "
            f"chance.{doubt}"
        )
    if result.text_p_value is not None and result.text_p_value <= result.fpr:
        doubt += " It would pass if tested only as a whole; with the correction for searching its parts it does not."
    if result.is_undecided:
        why = "has too little new evidence" if result.mostly_repetition else "is too short"
        return (
            f"This text {why} to decide: {result.num_needed} tokens must count to reach the threshold, "
            f"{result.num_scored} do.{doubt}"
        )
    return (
        "No mark was found: the text may be unmarked, too short, too predictable or too much edited. "
        f"({once_in(result.p_value)} unrelated keys fit it this well or better.){doubt}"
    )


def once_in(p: float) -> str:
    """Express a probability as a frequency: "about 1 in 2,000"."""
    if p > 0.3:
        return f"about {round(10 * p)} in 10"
    if p < 1e-15:
        return "fewer than 1 in a million billion"
    return f"about 1 in {one_of(p):,}"


def one_of(p: float) -> int:
    """Return 1 / p with two significant digits."""
    digits = max(0, len(str(int(1 / p))) - 2)
    return int(round(1 / p, -digits))


def running_evidence(result: DetectionResult, detector: Detector) -> tuple[np.ndarray, np.ndarray]:
    """Return (tokens read, -log10 p of the text up to there), at most POINTS of them, starting with (0, 0)."""
    mark = part_of(detector.watermark, result.family)
    counted = np.array([s is not None for s in result.token_scores], dtype=bool)
    values = np.array([s or 0.0 for s in result.token_scores], dtype=np.float64)
    slow = isinstance(mark, SynthID) and mark.reading == "weighted"
    points = min(FEW_POINTS if slow else POINTS, len(values) + 1)
    ends = np.unique(np.linspace(0, len(values), points).astype(np.int64))
    weights = detector.weights
    if isinstance(weights, TextWeights) and (result.family is None or weights.are_for(mark)):
        [levels] = weights.text_levels([np.array(result.token_ids, dtype=np.int64)], mark)
        same = np.zeros(len(values), dtype=np.int64)
        parts = [(values[:e], levels[:e], same[:e], counted[:e]) for e in ends]
        p_values = np.array([level_tails(weights, mark, *part, 1)[1].p_values[0] for part in parts])
    else:
        sums = np.concatenate([[0.0], np.cumsum(np.where(counted, values, 0.0))])[ends]
        counts = np.concatenate([[0], np.cumsum(counted)])[ends]
        if mark.null == "binomial":
            sums = np.rint(sums)
        p_values = tails(mark, sums, counts, detector.mode, detector.mid_p).p_values
    if mark.code is not None:  # the tokens are scored under the payload that fits them best
        p_values = np.minimum(1.0, p_values * 2.0**mark.code.bits)
    p_values = family_wise(family_wise(p_values, result.num_subkeys), len(detector.watermark.parts))
    return ends, -np.log10(np.clip(p_values * result.num_readings, 1e-300, 1))


def write_html(path: str | Path, results: Sequence[tuple[str, DetectionResult]], detector: Detector) -> None:
    """Write one page about any number of results, each with its name."""
    articles = "\n".join(_article(name, result, detector) for name, result in results)
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>caw detect</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Is this text watermarked?</h1>
<p class="soft">{escape(PROOF)}</p>
{articles}
<p class="soft">Colours: <span style="color: var(--for)">green</span> tokens speak for the mark,
<span style="color: var(--against)">orange</span> ones against it; pale ones repeat earlier text and do not
count. Hover over a token for its score.</p>
</body>
</html>
"""
    write_text(path, page)


def _article(name: str, result: DetectionResult, detector: Detector) -> str:
    corrected = result.regions is not None or result.num_readings > 1 or result.num_subkeys > 1 or bool(result.family)
    family = f" ({result.family})" if result.family else ""
    facts = (
        f"{'corrected ' * corrected}p-value {format_p(result.p_value)}, z-score"
        f"{' of the whole text' * (result.regions is not None)} {result.z_score:.2f}, {result.num_scored} of "
        f"{result.num_tokens} tokens count, {result.watermark}{family} key {result.key_id}, threshold {result.fpr:g}"
    )
    if result.payload is not None and result.payload_confidence is not None:
        facts += f", payload {result.payload} (least certain bit {100 * min(result.payload_confidence):.3g} %)"
    lines = [facts, *(f"Marked part: tokens {r.start} to {r.end} ({is_p(r.p_value)})" for r in result.regions or ())]
    if note := note_of(result):
        lines.append(f"{note[:1].upper()}{note[1:]}. Shown is the text {result.reading}.")
    if result.text_p_value is not None:
        lines.append(f"The curve is of the whole text alone ({is_p(result.text_p_value)}).")
    said = "".join(f'<p class="soft">{escape(line)}</p>' for line in lines)
    return (
        f'<article><h2>{escape(visible(name))}</h2><p class="verdict">{escape(verdict(result))}</p>'
        f'{said}{_curve(result, detector)}<div class="text">{_tokens(result, detector)}</div></article>'
    )


def _tokens(result: DetectionResult, detector: Detector) -> str:
    inside = {i for r in result.regions or () for i in range(r.start, r.end)}
    out = []
    for drawn in stretches(result, detector.watermark, detector.tokenizer):
        text, first = escape(drawn.text), drawn.tokens[0]
        kind = ' class="region"' if first in inside else ""
        if drawn.lean is None:
            out.append(f'<span{kind} style="opacity: .55" title="not counted">{text}</span>')
            continue
        colour = "--for" if drawn.lean > 0 else "--against"
        share = min(70, round(22 * abs(drawn.lean)))
        style = f"background: color-mix(in srgb, var({colour}) {share}%, transparent)"
        scores = [s for s in (result.token_scores[i] for i in drawn.tokens) if s is not None]
        said = f"token {first}: score {', '.join(f'{score:.3g}' for score in scores)}"
        out.append(f'<span{kind} style="{style}" title="{said}">{text}</span>')
    return "".join(out)


def _curve(result: DetectionResult, detector: Detector) -> str:
    """Draw the running evidence as an SVG line, with the requested level."""
    if result.num_scored < 2:
        return ""
    at, evidence = running_evidence(result, detector)
    asked = -np.log10(result.fpr)
    top = max(float(evidence.max()), asked) * 1.1
    x = EDGE + (WIDTH - EDGE - 8) * at / max(1, int(at[-1]))
    y = HEIGHT - 22 - (HEIGHT - 32) * evidence / top
    level = HEIGHT - 22 - (HEIGHT - 32) * asked / top
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="evidence by token">'
        f'<line x1="{EDGE}" y1="{level:.1f}" x2="{WIDTH - 8}" y2="{level:.1f}" stroke="var(--soft)" '
        f'stroke-dasharray="4 4"/><text x="{EDGE + 4}" y="{level - 4:.1f}">threshold: 1 in {1 / result.fpr:,.0f}</text>'
        f'<polyline points="{points}" fill="none" stroke="var(--curve)" stroke-width="1.8"/>'
        f'<text x="{EDGE}" y="{HEIGHT - 4}">tokens read: 0</text>'
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 4}" text-anchor="end">{int(at[-1])}</text>'
        f'<text x="2" y="14">1 in</text><text x="2" y="27">10^{top:.0f}</text></svg>'
    )
