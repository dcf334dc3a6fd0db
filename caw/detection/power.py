"""Detection rate of marked texts by length, expected and measured.

Expected: n pieces of evidence that each score like the given marked texts (green with their share of green, or with
their mean -log(1 - u)) reach the critical value of n. Texts differ and tokens of a text depend on each other, so the
measured rate rises more slowly than the expected one.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy  # its parts load when they are used: stats takes a second
from scipy import special

from caw.detection.detector import Detector
from caw.detection.statistics import tails
from caw.watermarks import Watermark

LENGTHS = (25, 50, 100, 200, 400, 800)
RATES = (1e-3, 1e-5)


@dataclass(frozen=True)
class PowerRow:
    """Detection rate of marked texts at one length and false-positive rate.

    tokens, fpr: the truncated length, and the threshold.
    expected: detection rate at the mean number of counted tokens; nan where `power_table` has no expectation.
    measured: detection rate of `texts` texts; nan if no text is long enough. low, high: its 95 % Clopper-Pearson
        interval.
    texts: number of texts that are long enough.
    """

    tokens: int
    fpr: float
    expected: float
    measured: float
    low: float
    high: float
    texts: int

    def as_dict(self) -> dict[str, float | None]:
        """Return the row for JSON, with None for nan."""
        return {name: (None if value != value else value) for name, value in asdict(self).items()}


def expected_power(watermark: Watermark, mean: float, counted: float, fpr: float) -> float:
    """Return the detection rate at `fpr` of `counted` pieces of evidence of `mean` score: binomial, or gamma."""
    n = round(counted)
    if n < 1:
        return 0.0
    if watermark.null == "binomial":
        hits = np.arange(n + 1)
        p = tails(watermark, hits, np.full(n + 1, n)).p_values
        enough = hits[p <= fpr]
        return float(scipy.stats.binom.sf(enough[0] - 1, n, mean)) if enough.size else 0.0
    critical = float(special.gammainccinv(n, fpr))
    return float(special.gammaincc(n, critical / mean))


def power_table(
    texts: Sequence[Any], detector: Detector, lengths: Sequence[int] = LENGTHS, rates: Sequence[float] = RATES,
    done: Callable[[int], object] = lambda texts: None,
) -> list[PowerRow]:  # fmt: skip
    """Compute expected and measured detection rates of marked texts by length.

    Args:
        texts: strings or id lists, marked with the detector's key.
        detector: as it will be used; its own fpr is ignored.
        lengths: texts are truncated to this many tokens; shorter ones are excluded.
        rates: false-positive rates, each in (0, 1).
        done: receives the number of further finished tests, 1 + len(lengths) per text.

    Returns:
        One row per length and rate, in that order. The expected rate is that of the exact test of green lists and
        races: nan for a detector with weights, mid_p, mode "compat", regions or a payload, for SynthID, for two keys
            and where several sub-keys or families are tried.

    Deterministic. Raises ValueError if nothing counts.
    """
    ids = detector.ids_of(texts)
    rows = []
    if not any(r.num_scored for r in detector.detect_ids(ids, done)):
        raise ValueError("marked texts with tokens that count are required, got none; give longer texts")
    mean = _mean_score(ids, detector) if _expects(detector) else float("nan")
    for length in lengths:
        cut = [t[:length] for t in ids if len(t) >= length]
        results = detector.detect_ids(cut)
        done(len(ids))
        counted = float(np.mean([r.num_scored for r in results])) if results else float("nan")
        for fpr in rates:
            known = results and mean == mean
            expected = expected_power(detector.mark, mean, counted, fpr) if known else float("nan")
            found = sum(r.p_value <= fpr for r in results)
            rows.append(PowerRow(length, fpr, expected, *_interval(found, len(results)), len(results)))
    return rows


def _expects(detector: Detector) -> bool:
    """Return whether `expected_power` applies: the exact test of green lists or of sums of Exponential(1)."""
    if detector.watermark.family > 1:
        return False
    watermark = detector.mark
    plain = detector.mode == "exact" and not detector.mid_p and detector.weights is None and watermark.code is None
    plain = plain and not detector.regions
    race = watermark.null == "gamma" and watermark.null_moments == (1.0, 1.0)
    return plain and (watermark.null == "binomial" or race)


def _mean_score(ids: Sequence[np.ndarray], detector: Detector) -> float:
    scored = list(detector.score(ids))
    total = sum(int(s.counted.sum()) for s in scored)
    return sum(float(s.values[s.counted].sum()) for s in scored) / total


def _interval(found: int, count: int) -> tuple[float, float, float]:
    if not count:
        return float("nan"), float("nan"), float("nan")
    interval = scipy.stats.binomtest(found, count).proportion_ci(method="exact")
    return found / count, float(interval.low), float(interval.high)
