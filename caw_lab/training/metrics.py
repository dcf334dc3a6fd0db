"""How well scores separate key tokens from others: ranking metrics, metrics at a threshold, calibration.

F1 alone is misleading if most tokens are key (calling every token key already has F1 = 2r / (1 + r) at base rate r):
judge by AUROC and average precision. Uses scikit-learn, from the extra `eval`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from caw.requirements import require
from caw_lab.training.positions import Positions

BINS = 10


def _sklearn() -> Any:
    require("scikit-learn", "the metrics of evaluators")
    import sklearn.metrics

    return sklearn.metrics


def auroc(key: np.ndarray, score: np.ndarray) -> float:
    """Return how probably a key token (bool [n]) scores [n] above another, ties half. Requires both classes."""
    return float(_sklearn().roc_auc_score(key, score))


def best_threshold(key: np.ndarray, score: np.ndarray) -> float:
    """Return the score threshold (inclusive) with the greatest F1; the greatest such score on ties."""
    precision, recall, thresholds = _sklearn().precision_recall_curve(key, score)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    best = f1[:-1].max()  # the last point is "no token", without a threshold
    return float(thresholds[np.flatnonzero(f1[:-1] == best)[-1]])


def figures(key: np.ndarray, score: np.ndarray, threshold: float) -> dict[str, float]:
    """Return AUROC, average precision, and precision, recall, F1 of "score >= threshold", rounded to 4 digits."""
    metrics = _sklearn()
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        key, score >= threshold, average="binary", zero_division=0.0
    )
    found = {
        "auroc": metrics.roc_auc_score(key, score),
        "average_precision": metrics.average_precision_score(key, score),
        "precision": precision,
        "recall": recall,
        "f1": f1,
        "threshold": threshold,
    }
    return {name: round(float(value), 4) for name, value in found.items()}


def compare(positions: Positions, scores: Mapping[str, np.ndarray], part: np.ndarray | None = None) -> dict[str, Any]:
    """Return metrics of each score [N] on the test part, with thresholds chosen on the validation part.

    part: names [N]; None = `positions.part`.

    Adds the evaluators that need no training: entropy, logit_delta, and all_tokens_key (every score equal).
    Returns {"tokens", "base_rate", "evaluators": {name: figures}} for all tokens and, under "agree", for those whose
    reference token is the model's own choice (their thresholds chosen on such tokens too; no evaluators if a model
    agrees so seldom that these hold one class only).
    """
    key, part = positions.key, positions.part if part is None else part
    everything = {**scores, **positions.baselines(), "all_tokens_key": np.zeros(len(positions))}
    results: dict[str, Any] = {}
    for name, chosen in (("all", np.ones(len(positions), dtype=bool)), ("agree", positions.agree)):
        validation, test = chosen & (part == "validation"), chosen & (part == "test")
        if name == "agree" and not all(key[p].any() and not key[p].all() for p in (validation, test)):
            results[name] = {"tokens": int(test.sum()), "base_rate": None, "evaluators": {}}
            continue
        require_both_classes(key[validation], "validation part")
        require_both_classes(key[test], "test part")
        results[name] = {
            "tokens": int(test.sum()),
            "base_rate": round(float(key[test].mean()), 4),
            "evaluators": {
                evaluator: figures(key[test], score[test], best_threshold(key[validation], score[validation]))
                for evaluator, score in everything.items()
            },
        }
    return {**results["all"], "agree": results["agree"]}


def require_both_classes(key: np.ndarray, what: str) -> None:
    """Raise ValueError unless `key` has key tokens and others."""
    if not key.any() or key.all():
        raise ValueError(
            f"the {what} must have key tokens and others, got {int(key.sum())} key of {key.size}; label more documents"
        )


def document_interval(positions: Positions, score: np.ndarray, part: str | np.ndarray) -> tuple[float, float]:
    """Return the `interval` of the AUROC on a part: its name, or tokens int64 [n]."""
    inside = np.flatnonzero(positions.part == part) if isinstance(part, str) else part
    return interval(positions.key[inside], score[inside], np.asarray(positions.arrays["document"])[inside])


def interval(
    key: np.ndarray, score: np.ndarray, documents: np.ndarray, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Return an AUROC's 95 % bootstrap interval over whole documents [n]: their tokens are not independent."""
    names, group = np.unique(documents, return_inverse=True)
    rows = [np.flatnonzero(group == number) for number in range(len(names))]
    generator, aurocs = np.random.default_rng(seed), []
    for _ in range(resamples):
        some = np.concatenate([rows[number] for number in generator.integers(len(rows), size=len(rows))])
        if key[some].any() and not key[some].all():
            aurocs.append(_fast_auroc(key[some], score[some]))
    low, high = np.percentile(aurocs, [2.5, 97.5])
    return round(float(low), 4), round(float(high), 4)


def _fast_auroc(key: np.ndarray, score: np.ndarray) -> float:
    """Return the AUROC in Mann-Whitney form, ties count half; ten times faster in the bootstrap than scikit-learn's."""
    rank = np.unique(score, return_inverse=True)[1]
    counts = np.bincount(rank)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    positives = int(key.sum())
    total = float(mean_rank[rank][key].sum())
    return (total - positives * (positives + 1) / 2) / (positives * (key.size - positives))


def reliability(key: np.ndarray, capacity: np.ndarray, bins: int = BINS) -> dict[str, Any]:
    """Return the reliability diagram of capacity [n] in (0, 1): per bin [mean capacity, share of key tokens, tokens],
    and the expected calibration error, the token-weighted mean difference of the two.
    """
    place = np.minimum((capacity * bins).astype(int), bins - 1)
    rows, error = [], 0.0
    for b in range(bins):
        inside = place == b
        if inside.any():
            mean, share = float(capacity[inside].mean()), float(key[inside].mean())
            rows.append([round(mean, 4), round(share, 4), int(inside.sum())])
            error += abs(mean - share) * inside.mean()
    return {"expected_calibration_error": round(float(error), 4), "bins": rows}
