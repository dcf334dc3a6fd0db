"""Calibration of weights from a model that does not know the prompt, learned from texts marked with other keys.

Such a reader is surprised by tokens that did not surprise the writer, so the probabilities derived from its
distributions are wrong. A regression on them, on the token's class, its importance and its position predicts what was
green (logistic) or the scores (gamma, log link), under keys that will not be tested.
`caw_lab.training.fit_calibration` fits it.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from caw.detection.expected_signal import Reading, expected_signal, weight_of
from caw.detection.text_weights import check_own_key
from caw.detection.weight_estimates import KINDS
from caw.io.files import write_text
from caw.watermarks import Watermark
from caw.watermarks.green_list import GreenList

VERSION = 1
LEAST_LOG_P = -15.0  # of a token, nats: what is beyond is one and the same surprise
MOST_GAP = 12.0
NUMBERS = (
    "weight", "weight given the token", "top", "log rank", "gap", "log p", "entropy", "p of the top", "log place",
    "capacity", "strength", "top x entropy", "top x log p", "top x weight", "top x strength", "top x capacity",
    "runner-up x strength", "runner-up x capacity", "runner-up x entropy", "runner-up x log place",
    "runner-up x log p", "runner-up x weight", "runner-up x place",
)  # fmt: skip
NAMES = (*NUMBERS, *(f"is {kind}" for kind in KINDS))


def signal_features(reading: Reading, watermark: Watermark, kinds: np.ndarray) -> np.ndarray:
    """Return a calibration's inputs, float64 [n, len(NAMES)]; kinds: int64 [V], see `weight_estimates.token_kinds`."""
    rank, place = reading.rank, np.arange(len(reading.tokens))
    own = reading.logits[place, np.minimum(rank, reading.ids.shape[1] - 1)] - reading.logsumexp
    log_p = np.where(rank < reading.ids.shape[1], np.maximum(own, LEAST_LOG_P), LEAST_LOG_P)
    weight, given = (weight_of(expected_signal(reading, watermark, knows), watermark) for knows in (False, True))
    top, runner_up = (rank == 0) * 1.0, (rank > 0) * 1.0
    capacity, log_place = np.nan_to_num(reading.capacity, nan=0.5), np.log1p(place)
    strength, entropy = reading.strength, reading.entropy
    numbers = [
        weight, given, top, np.log1p(rank), np.minimum(reading.gap, MOST_GAP), log_p, entropy,
        np.exp(reading.logits[:, 0] - reading.logsumexp), log_place, capacity, strength,
        top * entropy, top * log_p, top * weight, top * strength, top * capacity,
        runner_up * strength, runner_up * capacity, runner_up * entropy, runner_up * log_place,
        runner_up * log_p, runner_up * weight, runner_up * np.minimum(place, 100) / 100,
    ]  # fmt: skip
    of_token = kinds[np.minimum(reading.tokens, len(kinds) - 1)]
    return np.column_stack([*numbers, *(of_token == kind for kind in range(len(KINDS)))]).astype(np.float64)


@dataclass(frozen=True)
class Calibration:
    """A regression on `signal_features`.

    watermark: "kgw", "unigram" or "exp", of the training texts; null_mean: their mean unmarked score. mean, scale,
    coefficients: of each feature in NAMES; intercept. most: the signal of level 15. key_ids: keys of the texts.
    provenance: how it was made, for people.

    Raises TypeError or ValueError for invalid numbers.
    """

    watermark: str
    null_mean: float
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    coefficients: tuple[float, ...]
    intercept: float
    most: float
    key_ids: tuple[str, ...]
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("mean", "scale", "coefficients"):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) != len(NAMES) or not np.isfinite(values).all():
                raise ValueError(
                    f"a calibration's {name} must be {len(NAMES)} finite numbers, got {len(values)}; fit it again"
                )
            object.__setattr__(self, name, values)
        object.__setattr__(self, "key_ids", tuple(str(key) for key in self.key_ids))
        if min(self.scale) <= 0 or not np.isfinite([self.intercept, self.most]).all() or self.most <= self.null_mean:
            raise ValueError(
                "a calibration's scales must be positive and its greatest signal above the null's; fit it again"
            )

    def check_for(self, watermark: Watermark) -> None:
        """Raise ValueError if it was learned under the key to be tested, or from another kind of watermark."""
        check_own_key(watermark, self.key_ids)
        if watermark.name != self.watermark or abs(watermark.null_moments[0] - self.null_mean) > 1e-6:
            raise ValueError(
                f"the calibration is for {self.watermark} with mean unmarked score {self.null_mean:g}, got "
                f"{watermark.name} with {watermark.null_moments[0]:g}; fit one on such texts"
            )

    def signal(self, features: np.ndarray) -> np.ndarray:
        """Return the probability of green or the mean score, float64 [n], of features float64 [n, len(NAMES)]."""
        linear = (features - np.array(self.mean)) / np.array(self.scale) @ np.array(self.coefficients) + self.intercept
        return np.asarray(np.exp(linear) if self.null_mean == 1 else special.expit(linear))

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of its numbers."""
        numbers = {name: value for name, value in asdict(self).items() if name != "provenance"}
        return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        about = {"version": VERSION, "features": NAMES, **asdict(self)}
        write_text(Path(path), json.dumps(about, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Calibration":
        """Read a file written by `save`. FileNotFoundError, or ValueError in one sentence."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(
                f"calibration must be a file made by fit_calibration, {path} does not exist; check the path"
            )
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            if about.pop("version") != VERSION or tuple(about.pop("features")) != NAMES:
                raise ValueError("features of another version")
            return cls(**about)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} must be a calibration of this version ({error}); fit it again") from None


def most_level(watermark: Watermark, signals: np.ndarray) -> float:
    """Return the signal of level 15: rarely exceeded, and above the null's."""
    null, top = watermark.null_moments[0], float(np.quantile(signals, 0.999))
    return max(top, null + 0.01 * (1 - null if isinstance(watermark, GreenList) else 1.0))
