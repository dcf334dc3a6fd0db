"""Train one evaluator on several models and kinds of text together, and say how it does on a family that it never saw.

Every set of examples is one model's, of one kind of text. Sets count alike, whatever their size. Whole documents are
held out (`positions.part_of`, the same for every model). Held out by family, it is trained once more without all sets
of a family, and read on that family's documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from caw.evaluator.features import FeatureSpec
from caw.evaluator.network import Evaluator
from caw_lab.training.metrics import auroc, interval, require_both_classes
from caw_lab.training.positions import Positions, part_of
from caw_lab.training.settings import TrainSettings
from caw_lab.training.train import fit, predict


@dataclass(frozen=True)
class Examples:
    """Positions of one model and kind of text: features float32 [n, spec.size], key bool [n], document names [n]."""

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


def _families(sets: Sequence[Examples]) -> list[str]:
    families = sorted({each.family for each in sets})
    if len(families) < 2:
        raise ValueError(
            f"expected models of at least two families, so that one can be held out, got {families}; give others"
        )
    return families


def _gathered(sets: Sequence[Examples]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (features, key); sets count alike: the examples of a small one come several times."""
    most = max(len(each.key) for each in sets)
    rows = [np.tile(np.arange(n), max(round(most / n), 1)) if (n := len(each.key)) else np.arange(0) for each in sets]
    key = np.concatenate([each.key[own] for each, own in zip(sets, rows, strict=True)])
    require_both_classes(key, "examples")
    features = torch.cat([each.features[torch.from_numpy(own)] for each, own in zip(sets, rows, strict=True)])
    return features, torch.from_numpy(key).float()
