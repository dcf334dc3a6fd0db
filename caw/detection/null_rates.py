"""Measure a key's false-positive rate on your own unmarked text, with confidence intervals.

A p-value is uniform over keys, not over texts that share phrases under one key: on GSM8K solutions one KGW lefthash key
calls from 0 % to 4.5 % marked at 1 %. "once" counts evidence once in the whole corpus; that is uniform for every key.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # its parts load when they are used: stats takes a second

from caw.detection.detector import Detector
from caw.detection.evidence import first_occurrences
from caw.detection.family import family_wise
from caw.detection.statistics import tails
from caw.detection.text_weights import TextWeights
from caw.detection.token_scores import score_stream
from caw.detection.weights import level_tails
from caw.io.figures import save_figure
from caw.requirements import require
from caw.watermarks import SynthID, Watermark

LEVELS = (1e-1, 1e-2, 1e-3, 1e-4)


@dataclass(frozen=True)
class Rate:
    """Share of texts with p <= level, the promised rate: `found` of them, with its 95 % Clopper-Pearson interval."""

    level: float
    found: int
    rate: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether the interval reaches down to the level or below."""
        return self.low <= self.level


@dataclass(frozen=True)
class NullReport:
    """False-positive rates of one key.

    key_id, watermark: eight hex digits that identify the key, and the watermark's name. texts, tokens: number of each.
    p_values: float64 [texts], in the order of the texts; 1 if nothing counts.
    rates: of the test as used, with all readings of a text; texts in which nothing counts (`without_evidence` of them)
    are above every level.
    rates_with_evidence: the same without those texts, which is more informative if many texts are short.
    without_evidence: number of texts in which nothing counts.
    once: p-values of the same texts, unchanged, with evidence counted once in the whole corpus, by the exact test (with
    the detector's weights) in any mode; texts without new evidence are excluded.
    once_texts: number of texts in `once`.
    uniform_p: Kolmogorov-Smirnov test that `once` is uniform (discrete scores randomised).
    """

    key_id: str
    watermark: str
    texts: int
    tokens: int
    rates: tuple[Rate, ...]
    without_evidence: int
    rates_with_evidence: tuple[Rate, ...]
    once: tuple[Rate, ...]
    once_texts: int
    uniform_p: float
    p_values: np.ndarray

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the p-values, ready for JSON."""
        out = asdict(self)
        del out["p_values"]
        return out


def rates_of(p_values: np.ndarray) -> tuple[Rate, ...]:
    """Return rates at 1e-1 ... 1e-4; without texts 0, with the interval from 0 to 1."""
    rows = []
    for level in LEVELS:
        found, count = int((p_values <= level).sum()), len(p_values)
        low, high = scipy.stats.binomtest(found, count).proportion_ci(method="exact") if count else (0.0, 1.0)
        rows.append(Rate(level, found, found / max(count, 1), float(low), float(high)))
    return tuple(rows)


def null_report(
    texts: Sequence[Any], detector: Detector, seed: int = 0, done: Callable[[int], object] = lambda texts: None
) -> NullReport:
    """Measure the false-positive rates of a detector on unmarked texts.

    Args:
        texts: strings or id lists, of the kind that the key will test.
        detector: with the key and the options to be used.
        seed: seed of the randomisation that makes the discrete p-values of green lists comparable with a uniform law.
        done: receives the number of further finished texts.

    Deterministic for a seed. Raises ValueError for no texts, and for a watermark with a payload.
    """
    ids, read = detector.ids_of(texts), detector.read(texts)
    if not ids:
        raise ValueError("unmarked texts are required, got none; give a corpus of the kind of text that you will test")
    once, continuous = _once(ids, detector, np.random.default_rng(seed))
    results = detector.detect_texts(read, done)
    p_values = np.array([r.p_value for r in results])
    some = np.array([r.num_scored > 0 for r in results])
    return NullReport(
        key_id=detector.watermark.key_id,
        watermark=detector.watermark.name,
        texts=len(ids),
        tokens=sum(map(len, ids)),
        rates=rates_of(p_values),
        without_evidence=int((~some).sum()),
        rates_with_evidence=rates_of(p_values[some]),
        once=rates_of(once),
        once_texts=len(once),
        uniform_p=float(scipy.stats.kstest(continuous, "uniform").pvalue) if len(continuous) else 1.0,
        p_values=p_values,
    )


def _once(ids: Sequence[np.ndarray], detector: Detector, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return (p-values, randomised p-values) by evidence that no earlier text gave, of the texts that have any."""
    found, randomised = _once_of_each(ids, detector, rng)
    some = ~np.isnan(found)
    return found[some], randomised[some]


def _once_of_each(
    ids: Sequence[np.ndarray], detector: Detector, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The same for each text, nan without such evidence; sub-keys and families without evidence count for none."""
    mark = detector.watermark
    if mark.family == 1:
        return _once_under_a_key(ids, detector, rng)
    several = len(mark.parts) > 1
    tried = mark.parts if several else [mark.under_subkey(number) for number in range(mark.family)]
    least, tests = np.full((2, len(ids)), np.nan), np.zeros(len(ids))
    for each in tried:
        weights = detector.weights
        if several and isinstance(weights, TextWeights) and not weights.are_for(each):
            weights = None
        own = _once_of_each(ids, replace(detector, watermark=each, tokenizer=None, weights=weights), rng)
        least = np.fmin(least, own)
        tests += ~np.isnan(own[0])
    found, randomised = family_wise(least, tests)
    return found, randomised


def _once_under_a_key(
    ids: Sequence[np.ndarray], detector: Detector, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The same for a watermark with a single key."""
    # what another system counts, and mid-p values, promise no uniform law that could be checked
    values, evidence, counted = score_stream(detector.mark, ids, "exact")
    assert evidence is not None
    owner = np.repeat(np.arange(len(ids)), [len(text) for text in ids])
    counted = counted & first_occurrences(np.zeros_like(owner), evidence, counted)
    weights, levels = detector.weights, None
    if isinstance(weights, TextWeights):
        levels = np.concatenate(weights.text_levels(ids, detector.mark))
        counted &= levels > 0
    counts = np.bincount(owner[counted], minlength=len(ids))
    scores = np.bincount(owner[counted], weights=values[counted], minlength=len(ids))
    some = counts > 0

    def tail(more: float) -> np.ndarray:
        """Return P(score >= the texts' scores, and `more`)."""
        if levels is None:
            return tails(detector.mark, scores[some] + more, counts[some]).p_values
        assert isinstance(weights, TextWeights)
        found = level_tails(weights, detector.mark, values, levels, owner, counted, len(ids), more)[1]
        return found.p_values[some]

    p, step = tail(0.0), _step(detector.mark)
    randomised = p if not step else tail(step) + rng.random(len(p)) * (p - tail(step))
    found = np.full((2, len(ids)), np.nan)
    found[:, some] = p, randomised
    return found[0], found[1]


def _step(watermark: Watermark) -> float:
    """Return the step between neighbouring scores; 0 if they are (almost) continuous."""
    if watermark.null == "binomial":
        return 1.0
    if isinstance(watermark, SynthID) and watermark.reading == "mean":
        return 1 / watermark.depth
    return 0.0


def plot_qq(reports: Sequence[NullReport], path: str | Path) -> None:
    """Draw a log QQ plot of reports' p-values; the path's ending says how. ImportError without matplotlib, OSError."""
    require("matplotlib", "the QQ plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.add_subplot()
    for report in reports:
        found = np.sort(report.p_values)
        axes.plot((np.arange(len(found)) + 0.5) / len(found), found, lw=1, label=f"key {report.key_id}")
    least = 0.5 / max(r.texts for r in reports)
    axes.plot([least, 1], [least, 1], color="black", lw=0.8, ls="--", label="promised")
    axes.set(xscale="log", yscale="log", xlabel="promised: share of texts", ylabel="p-value", title="unmarked texts")
    axes.legend(fontsize=7)
    save_figure(figure, path)
