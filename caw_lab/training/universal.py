"""Train one evaluator on several models and kinds of text together, and say how it does on a family that it never saw.

Every set of examples is one model's, of one kind of text. Sets count alike, whatever their size. With many examples it
is a network, measured on whole documents held out (`positions.part_of`, the same for every model); with few it is a
regression on the same inputs, measured by cross-validation over documents. Held out by family, it is trained once more
without all sets of a family, and read on that family's documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from caw.defaults import BETA, THETA
from caw.evaluator.features import FeatureSpec
from caw.evaluator.network import Evaluator
from caw_lab.training.fit_damage import FOLDS, PENALTIES, as_network, regression
from caw_lab.training.metrics import auroc, require_both_classes
from caw_lab.training.positions import Positions, part_of
from caw_lab.training.settings import TrainSettings
from caw_lab.training.train import SCALE_FLOOR, fit, predict

RESAMPLES = 1000
HIDDEN = 16  # of a regression in the form of a network: the narrowest that kernels are compiled for


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

    def only(self, rows: np.ndarray) -> Examples:
        """Return those of a mask bool [n]."""
        some = self.features[torch.from_numpy(rows)]
        return Examples(self.model, self.family, self.kind, some, self.key[rows], self.documents[rows])

    @property
    def part(self) -> np.ndarray:
        """ "train", "validation" or "test" of each, [n]; whole documents."""
        names, place = np.unique(self.documents, return_inverse=True)
        return np.array([part_of(str(name)) for name in names])[place]

    @property
    def fold(self) -> np.ndarray:
        """Fold of each in cross-validation, int64 [n]; whole documents, the same for every model."""
        names, place = np.unique(self.documents, return_inverse=True)
        digests = [hashlib.sha256(f"fold/{name}".encode()).digest() for name in names]
        return np.array([int.from_bytes(digest[:8], "big") % FOLDS for digest in digests])[place]


@dataclass(frozen=True)
class Scored:
    """Scores of a set, by an evaluator that saw other documents of its family ("seen"), and none of it ("unseen")."""

    examples: Examples
    seen: np.ndarray
    unseen: np.ndarray

    def row(self) -> dict[str, Any]:
        """Return the AUROC of both, with intervals over documents."""
        each = self.examples
        row: dict[str, Any] = {
            "model": each.model, "family": each.family, "kind": each.kind, "examples": len(each.key),
            "documents": len(np.unique(each.documents)), "share": round(float(each.key.mean()), 4),
        }  # fmt: skip
        for name, score in (("seen", self.seen), ("unseen", self.unseen)):
            row[name] = round(auroc(each.key, score), 4)
            row[f"{name}_ci"] = interval(each.key, score, each.documents)
        return row


def train_network(
    sets: Sequence[Examples], spec: FeatureSpec, settings: TrainSettings | None = None
) -> tuple[Evaluator, list[Scored]]:
    """Train a network on the train parts of all sets, stop and calibrate on the validation parts, score the test parts.

    Returns the evaluator, which is universal and has no table of token classes. Deterministic. Raises ValueError where
    a part holds one class only, or all sets are of one family.
    """
    families = _families(sets)
    tests = [each.only(each.part == "test") for each in sets]

    def trained(some: Sequence[Examples]) -> Evaluator:
        parts = [_gathered([each.only(each.part == part) for each in some]) for part in ("train", "validation")]
        return fit(*parts[0], *parts[1], spec, settings or TrainSettings(), universal=True)[0]

    network = trained(sets)
    others = {family: trained([each for each in sets if each.family != family]) for family in families}
    return network, [
        Scored(test, predict(network, test.features), predict(others[test.family], test.features)) for test in tests
    ]


def train_line(sets: Sequence[Examples], spec: FeatureSpec) -> tuple[Evaluator, list[Scored], dict[str, Any]]:
    """Fit a regression on all sets; the penalty with the greatest mean AUROC over sets is taken, by cross-validation.

    Returns the evaluator, which is universal and has no table of token classes; cross-validated scores; and {"penalty",
    "auroc": the mean by penalty}. Deterministic. Raises ValueError where all sets are of one family.
    """
    families, found = _families(sets), {}
    for penalty in PENALTIES:
        crossed = [np.zeros(len(each.key)) for each in sets]
        for number in range(FOLDS):
            line = _line([each.only(each.fold != number) for each in sets], spec, penalty)
            for each, scores in zip(sets, crossed, strict=True):
                some = each.fold == number
                scores[some] = predict(line, each.features[torch.from_numpy(some)])
        mean = float(np.mean([auroc(each.key, scores) for each, scores in zip(sets, crossed, strict=True)]))
        found[penalty] = (mean, crossed)
    best = max(found, key=lambda penalty: found[penalty][0])
    others = {
        family: _line([each for each in sets if each.family != family], spec, best) for family in families
    }  # fmt: skip
    scored = [
        Scored(each, scores, predict(others[each.family], each.features))
        for each, scores in zip(sets, found[best][1], strict=True)
    ]
    figures = {"penalty": best, "auroc": {f"{penalty:g}": round(mean, 4) for penalty, (mean, _) in found.items()}}
    return _line(sets, spec, best), scored, figures


@torch.no_grad()
def settle_strength(evaluator: Evaluator, theta: float, beta: float) -> None:
    """Scale and shift the logits, in place, so that the default theta and beta mark about as these would have; the
    order stays.

    Exactly so where the strength becomes 0, and at half of its maximum (or of the default's, if that is less).
    """
    half = min(beta, BETA) / 2
    pairs = [(theta, THETA), (theta * (1 - half / beta), THETA * (1 - half / BETA))]
    (x0, y0), (x1, y1) = (tuple(np.log(c / (1 - c)) for c in pair) for pair in pairs)
    slope = (y0 - y1) / (x0 - x1)
    evaluator.layer3.weight.mul_(float(slope))
    evaluator.layer3.bias.mul_(float(slope)).add_(float(y0 - slope * x0))


def described(scored: Sequence[Scored], **figures: Any) -> dict[str, Any]:
    """Return the figures that are stored with the evaluator."""
    return {**figures, "sets": [each.row() for each in scored]}


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


def _families(sets: Sequence[Examples]) -> list[str]:
    families = sorted({each.family for each in sets})
    if len(families) < 2:
        raise ValueError(
            f"expected models of at least two families, so that one can be held out, got {families}; give others"
        )
    return families


def _line(sets: Sequence[Examples], spec: FeatureSpec, penalty: float) -> Evaluator:
    features, key = _gathered(sets)
    blank = Evaluator(spec, HIDDEN, universal=True)
    blank.mean.copy_(features.mean(0))
    blank.scale.copy_(features.std(0, correction=0).clamp_min(SCALE_FLOOR))
    weight, bias = regression(((features - blank.mean) / blank.scale).double().numpy(), key.numpy() > 0, penalty)
    return as_network(blank, weight, bias, None).eval().requires_grad_(False)


def _gathered(sets: Sequence[Examples]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (features, key); sets count alike: the examples of a small one come several times."""
    most = max(len(each.key) for each in sets)
    rows = [np.tile(np.arange(n), max(round(most / n), 1)) if (n := len(each.key)) else np.arange(0) for each in sets]
    key = np.concatenate([each.key[own] for each, own in zip(sets, rows, strict=True)])
    require_both_classes(key, "examples")
    features = torch.cat([each.features[torch.from_numpy(own)] for each, own in zip(sets, rows, strict=True)])
    return features, torch.from_numpy(key).float()
