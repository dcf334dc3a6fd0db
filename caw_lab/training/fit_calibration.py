"""Fit the calibration of `ReaderWeights` for unknown prompts, on texts marked with other keys."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from caw.detection.calibration import Calibration, most_level, signal_features
from caw.detection.detector import Detector
from caw.io.progress import Bar
from caw.models import ReaderWeights
from caw.requirements import require
from caw.watermarks import Watermark
from caw.watermarks.green_list import GreenList

INVERSE_PENALTY = 0.1  # of scikit-learn's logistic regression; the features are few, and ten times more changes nothing
PENALTY = 1e-3  # of its gamma regression


def fit_calibration(
    texts: Mapping[Watermark, Sequence[Any]],
    weights: ReaderWeights,
    provenance: dict[str, Any] | None = None,
    *,
    progress: bool = True,
) -> Calibration:
    """Fit the correction of a reader's distributions for texts with unknown prompts.

    Args:
        texts: strings or id lists by the watermark they are marked with; watermarks of one kind, with different keys,
            none of which will be tested.
        weights: the reader, with the policy that marked the texts and no prompt.
        provenance: further information about its origin to store in the calibration.
        progress: show a bar if stderr is a terminal.

    Deterministic. Raises ImportError without scikit-learn; ValueError for a reader that knows a prompt or has a
    calibration, for watermarks that differ in more than the key, and where nothing counts or is marked.
    """
    require("scikit-learn", "learning a calibration")
    first = next(iter(texts), None)
    if first is None or len({(type(w), w.full, w.null_moments, w.rule) for w in texts}) != 1:
        raise ValueError(
            "expected marked texts of one watermark that differ in the key alone, got others; make one each"
        )
    if weights.prompt is not None or weights.calibration is not None:
        raise ValueError("the reader must have no prompt and no calibration, got one; leave it out")
    features, values = [], []
    with Bar(sum(map(len, texts.values())), "reading texts", "texts", enabled=progress, announced=True) as advance:
        for watermark, items in texts.items():
            detector = Detector(weights.tokenizer, watermark)
            weights.check_for(watermark)
            for scored in detector.score(detector.ids_of(items)):
                if scored.counted.any():
                    found = signal_features(weights.reading(scored.ids), watermark, weights.kinds)
                    features.append(found[scored.counted])
                    values.append(scored.values[scored.counted])
                advance()
    if not features:
        raise ValueError("expected marked texts with tokens that count, got none; give longer ones")
    return _fitted(np.concatenate(features), np.concatenate(values), list(texts), provenance or {})


def _fitted(
    features: np.ndarray, values: np.ndarray, watermarks: Sequence[Watermark], provenance: dict[str, Any]
) -> Calibration:
    from sklearn.linear_model import GammaRegressor, LogisticRegression

    first = watermarks[0]
    mean, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)  # a feature that never changes says nothing
    green = isinstance(first, GreenList)
    if green and len(set(values.tolist())) < 2:
        raise ValueError("expected green and other tokens, got one kind; give more texts")
    model = (
        LogisticRegression(C=INVERSE_PENALTY, max_iter=1000) if green else GammaRegressor(alpha=PENALTY, max_iter=1000)
    )
    model.fit((features - mean) / scale, values > 0.5 if green else np.maximum(values, 1e-6))
    made = Calibration(
        watermark=first.name,
        null_mean=first.null_moments[0],
        mean=tuple(mean),
        scale=tuple(scale),
        coefficients=tuple(np.ravel(model.coef_)),
        intercept=float(np.ravel(model.intercept_)[0]),
        most=1e9,
        key_ids=tuple(sorted(w.key_id for w in watermarks)),
        provenance={"tokens": len(values), "mean_score": round(float(values.mean()), 6), **provenance},
    )
    most = most_level(first, made.signal(features))
    return Calibration(**{**vars(made), "most": most})
