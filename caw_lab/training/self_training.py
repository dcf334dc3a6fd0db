"""`caw train-evaluator --self`: train an evaluator without labels, from a model's name to saved weights.

The model continues prompts. Random keys swap tokens as a watermark would (`swaps.py`). A swap is positive if its harm
is in the highest decile. The network reads the records around its position, which do not depend on the key; everything
from there on is the same as in any evaluator's training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from caw.evaluator.features import FeatureSpec
from caw.evaluator.network import Evaluator
from caw.io.progress import doing, silent
from caw.requirements import require
from caw_lab.training import own_texts
from caw_lab.training.metrics import auroc, document_interval, gain_interval
from caw_lab.training.pipeline import checked_output, specs_given, split_of, train_best, write_evaluator
from caw_lab.training.positions import Positions
from caw_lab.training.settings import OwnTexts, Reading, TrainSettings
from caw_lab.training.stored_swaps import settings_of, stored_swaps
from caw_lab.training.swaps import SwapSettings
from caw_lab.training.train import predict

POSITIVE = 0.1  # share of the swaps that are positive: those of the greatest harm
SHARES = (0.1, 0.2, 0.3, 0.5)  # of places protected, for the figures


def train_on_own_texts(
    reading: Reading,
    texts: OwnTexts,
    output_path: str | Path,
    spec: FeatureSpec | Sequence[FeatureSpec] | None = None,
    settings: TrainSettings | None = None,
    swaps: SwapSettings | None = None,
    *,
    command: str = "",
    progress: bool = True,
) -> dict[str, Any]:
    """Train an evaluator on the effect of swapped tokens, and write OUTPUT.safetensors with OUTPUT.json next to it.

    Args:
        reading: the model; template and prefix mean nothing here. Its folder keeps texts and swaps too.
        texts: what the model continues. swaps: which swaps are measured.
        spec, settings, command: see `pipeline.train_evaluator`.

    Capacity is the probability that a swap is positive if positive and other positions were equally frequent: 0.5 is an
    average position. Returns what the JSON holds. Raises FileNotFoundError or ValueError in one sentence.
    """
    require("scikit-learn", "training evaluators")
    output, swaps = checked_output(output_path), swaps or SwapSettings()
    specs = specs_given(spec, line_ends=True)
    with stored_swaps(reading, texts, swaps, progress=progress) as (positions, harm):
        positions, bound = label_swaps(positions, harm)
        with silent(not progress):
            evaluator, measured = train_best(positions, specs, settings, reading.model)
            with doing("measuring on held-out prompts", announced=True):
                measured |= figures_of(positions, harm, evaluator)
        even_odds(evaluator, float(positions.key.mean()))
        about = {
            "trained_on": "harm of swaps that random keys make in the model's own texts",
            "capacity": "at even odds; figures of calibration and thresholds are of what it was before",
            "data": {
                "files": [Path(path).name for path in own_texts.sources(texts)],
                "sha256": positions.meta["texts_sha256"],
                "licence": own_texts.licences(texts),
                "documents": len(positions.meta["documents"]),
                "written_tokens": positions.meta["written_tokens"],
                "swaps": len(positions),
                "harm": {"highest decile from": round(bound, 4), "mean": round(float(harm.mean()), 4)},
                "settings": settings_of(swaps),
                "split": split_of(positions, "whole prompts, by the sha256 of their text"),
            },
        }
        return write_evaluator(evaluator, output, positions, about, measured, command, reading.model)


def label_swaps(positions: Positions, harm: np.ndarray) -> tuple[Positions, float]:
    """Label swaps with a harm in the train part's highest decile key; also return that decile's bound in nats."""
    train = positions.part == "train"
    if not train.any():
        raise ValueError("expected swaps of at least one prompt to train on, got none; give more prompts")
    bound = float(np.quantile(harm[train], 1 - POSITIVE))
    return positions.only(np.arange(len(positions)), harm > bound), bound


def figures_of(positions: Positions, harm: np.ndarray, evaluator: Evaluator) -> dict[str, Any]:
    """Return metrics on the test part in addition to those of `metrics.compare`: intervals over prompts, and remaining
    harm.

    "harm_left": share of all harm that is left when this share of the swaps is forbidden, those of the highest score.
    """
    capacity = predict(evaluator, positions.features(evaluator.spec, np.arange(len(positions)), evaluator.token_class))
    test, train = positions.part == "test", positions.part == "train"
    entropy = positions.baselines()["entropy"]
    if auroc(positions.key[train], entropy[train]) < 0.5:
        entropy = -entropy  # whichever way it tells more
    left = {}
    for name, score in (("capacity", capacity), ("entropy", entropy), ("harm itself", harm)):
        falling = harm[test][np.argsort(-score[test], kind="stable")]
        total = float(falling.sum())
        left[name] = {f"{s:g}": round(float(falling[round(s * len(falling)) :].sum()) / total, 4) for s in SHARES}
    return {
        "entropy_auroc": round(auroc(positions.key[test], entropy[test]), 4),
        "entropy_auroc_ci": document_interval(positions, entropy, "test"),
        "gain_over_entropy_ci": gain_interval(positions, capacity, entropy, "test"),
        "harm_left": left,
    }


@torch.no_grad()
def even_odds(evaluator: Evaluator, base_rate: float) -> None:
    """Shift the logits, in place, to equal numbers of positives and others; the order stays.

    One swap in ten is positive, so calibrated capacities would hardly reach any usual theta.
    """
    evaluator.layer3.bias -= float(np.log(base_rate / (1 - base_rate)))
