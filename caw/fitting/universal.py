"""Train one evaluator on several models and kinds of text together, and say how it does on a family that it never saw.

Every set of examples is one model's, of one kind of text. Sets count alike, whatever their size. Parts are of whole
documents (`positions.part_of`), the same for every model; held out by family, a network is trained once more without
all sets of a family, and read on its held-out documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from caw.evaluator.features import FeatureSpec
from caw.evaluator.network import Evaluator
from caw.fitting.metrics import auroc, require_both_classes
from caw.fitting.positions import Positions, part_of
from caw.fitting.settings import TrainSettings
from caw.fitting.train import fit, predict

RESAMPLES = 1000


@dataclass(frozen=True)
class Examples:
    """Labelled positions of one model and kind of text.

    model, family, kind: names. features: float32 [n, spec.size]. key: bool [n], whether the position matters.
    documents: names [n] of the documents that they are from.
    """

    model: str
    family: str
    kind: str
    features: torch.Tensor
    key: np.ndarray
    documents: np.ndarray

    @classmethod
    def of_positions(
        cls, model: str, family: str, kind: str, positions: Positions, spec: FeatureSpec, table: torch.Tensor | None
    ) -> Examples:
        """Take all tokens of stored positions, whose label is `Positions.key`; table: see `FeatureSpec.assemble`."""
        every = np.arange(len(positions))
        names = np.array(positions.meta["documents"])[np.asarray(positions.arrays["document"])]
        return cls(model, family, kind, positions.features(spec, every, table), positions.key, names)

    @property
    def part(self) -> np.ndarray:
        """ "train", "validation" or "test" of each, [n]; whole documents."""
        names, place = np.unique(self.documents, return_inverse=True)
        return np.array([part_of(str(name)) for name in names])[place]


def train_universal(
    sets: Sequence[Examples], spec: FeatureSpec, settings: TrainSettings | None = None
) -> tuple[Evaluator, dict[str, Any]]:
    """Train on the train parts of all sets, stop and calibrate on the validation parts, and measure on the test parts.

    Returns the evaluator, which is universal and has no table of token classes, and {"sets": a row for each set}: its
    AUROC with the interval over documents, that of a network trained without its family ("unseen"), examples and share
    of positives. Deterministic. Raises ValueError where a part holds one class only.
    """
    settings = settings or TrainSettings()
    network = _trained(sets, spec, settings)
    families = sorted({each.family for each in sets})
    unseen = {
        family: _trained([each for each in sets if each.family != family], spec, settings)
        for family in families if len(families) > 1
    }  # fmt: skip
    return network, {"sets": [row_of(each, network, unseen.get(each.family)) for each in sets]}


def row_of(each: Examples, network: Evaluator, unseen: Evaluator | None = None) -> dict[str, Any]:
    """Return the figures of one set's test part."""
    test = each.part == "test"
    key, features = each.key[test], each.features[torch.from_numpy(test)]
    row = {
        "model": each.model, "family": each.family, "kind": each.kind, "examples": len(each.key),
        "documents": len(np.unique(each.documents)), "test": int(test.sum()), "share": round(float(key.mean()), 4),
    }  # fmt: skip
    for name, evaluator in (("auroc", network), ("unseen", unseen)):
        if evaluator is not None:
            score = predict(evaluator, features)
            row[name] = round(auroc(key, score), 4)
            row[f"{name}_ci"] = interval(key, score, each.documents[test])
    return row


def interval(key: np.ndarray, score: np.ndarray, documents: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of an AUROC; whole documents are drawn."""
    names, group = np.unique(documents, return_inverse=True)
    rows = [np.flatnonzero(group == number) for number in range(len(names))]
    generator, found = np.random.default_rng(seed), []
    for _ in range(RESAMPLES):
        some = np.concatenate([rows[number] for number in generator.integers(len(rows), size=len(rows))])
        if key[some].any() and not key[some].all():
            found.append(auroc(key[some], score[some]))
    low, high = np.percentile(found, [2.5, 97.5])
    return round(float(low), 4), round(float(high), 4)


def _trained(sets: Sequence[Examples], spec: FeatureSpec, settings: TrainSettings) -> Evaluator:
    data: list[torch.Tensor] = []
    for part in ("train", "validation"):
        features, keys = [], []
        chosen = [np.flatnonzero(each.part == part) for each in sets]
        most = max(len(rows) for rows in chosen)
        for each, rows in zip(sets, chosen, strict=True):
            if len(rows):  # sets count alike: small ones come as often as the largest
                rows = np.tile(rows, max(round(most / len(rows)), 1))
                features.append(each.features[torch.from_numpy(rows)])
                keys.append(each.key[rows])
        key = np.concatenate(keys)
        require_both_classes(key, f"{part} part")
        data += [torch.cat(features), torch.from_numpy(key).float()]
    network, _ = fit(*data, spec, settings, universal=True)  # type: ignore[arg-type]
    return network
