"""Token-weight tables: tokens that the policy protects carry no signal and should not dilute the score.

CAW leaves some kinds of tokens unmarked far more often than others. If a token t is green with probability q_t in
marked text and f in unmarked text, its optimal weight is the log-odds log(q_t / (1 - q_t)) - log(f / (1 - f))
(Neyman-Pearson); for races, whose scores have mean 1 unmarked and m_t marked, it is 1 - 1 / m_t. Weights are fixed
before the text is seen and depend only on its token ids, so the null stays exact: given the text, only the key is
random. They must not be estimated from texts marked with the tested key; a table stores its key ids.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from caw.checks import require_int
from caw.detection.ratios import ratio_sums, ratio_tails
from caw.detection.statistics import Tails
from caw.detection.text_weights import MOST, TextWeights, check_own_key, check_weighable
from caw.detection.weighted import weighted_binomial_tail, weighted_gamma_tail
from caw.io.files import write_whole
from caw.io.vocabulary import Vocabulary
from caw.watermarks import Watermark

FOLDER = Path(__file__).with_name("tables")
VERSION = "1"


@dataclass(frozen=True)
class TokenWeights(TextWeights):
    """A weight level 0..15 for each token id; level 0 excludes the token.

    levels: uint8 [V]. default: level of ids beyond the table. provenance: how it was made, for people; its `key_ids`
    name the keys of its texts. name: of a shipped table, or its file; empty if none. vocabulary: what the ids stand
    for; None = unknown.
    """

    levels: np.ndarray
    default: int = 8
    provenance: dict[str, Any] = field(default_factory=dict)
    name: str = field(default="", compare=False)
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        try:
            levels = np.asarray(self.levels)
        except ValueError:  # ragged
            raise ValueError("levels must be integers, one per token id, got a nested list; pass a flat one") from None
        if levels.ndim != 1 or levels.dtype.kind not in "iu" or levels.size == 0:
            raise ValueError(
                f"levels must be integers, one per token id, got {levels.dtype} of {levels.shape}; pass a flat list"
            )
        if int(levels.min()) < 0 or int(levels.max()) > MOST or not levels.any():
            raise ValueError(
                f"levels must be in [0, {MOST}] and not all 0, got {levels.min()} to {levels.max()}; see levels_of"
            )
        object.__setattr__(self, "levels", levels.astype(np.uint8))
        require_int("default", self.default, 0, MOST)
        _check_provenance(self.provenance)

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Return levels int64 of token ids."""
        inside = ids < self.levels.shape[0]
        return np.where(inside, self.levels[np.where(inside, ids, 0)], self.default).astype(np.int64)

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of the levels of all tokens."""
        return hashlib.sha256(bytes([self.default]) + self.levels.tobytes()).hexdigest()

    def check_for(self, watermark: Watermark) -> None:
        """Raise ValueError if the table was estimated under the key to be tested."""
        check_own_key(watermark, self.provenance.get("key_ids", []))
        check_weighable(watermark)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise ValueError if ids of this tokenizer (None = ids are given) stand for other tokens than in the table."""
        if tokenizer is not None and self.vocabulary is not None:
            name = f"the weight table {self.name}" if self.name else "the weight table"
            remedy = "use the table of the model that wrote the texts, or make one with `caw detection-weights --like`"
            self.vocabulary.check(tokenizer, f"{name} was", remedy)

    def text_levels(self, texts: Sequence[np.ndarray], watermark: Watermark) -> list[np.ndarray]:
        return [self.of(text) for text in texts]

    def save(self, path: str | Path) -> None:
        """Write levels, provenance and vocabulary to one .safetensors file."""
        about = {"version": VERSION, "default": str(self.default), "provenance": json.dumps(self.provenance)}
        if self.vocabulary is not None:
            about["vocabulary"] = self.vocabulary.as_text()
        write_whole(path, save({"levels": self.levels}, metadata=about))

    @classmethod
    def load(cls, name_or_path: str | Path) -> "TokenWeights":
        """Load a shipped table ("smollm2-135m") or a file of `save`. TypeError, FileNotFoundError or ValueError."""
        if not isinstance(name_or_path, (str, Path)):
            raise TypeError(
                f"weights must be TokenWeights, a name or a file, got {type(name_or_path).__name__}; leave them out"
            )
        path = FOLDER / f"{name_or_path}.safetensors" if str(name_or_path) in shipped() else Path(name_or_path)
        if not path.is_file():
            known = ", ".join(shipped()) or "none"
            raise FileNotFoundError(
                f"weights must be a shipped table ({known}) or a file, {path} does not exist; check the name"
            )
        try:
            with safe_open(path, "numpy") as file:
                about = file.metadata() or {}
                levels = file.get_tensor("levels")
        except SafetensorError as error:
            raise ValueError(f"{path} must be a weight table ({error}); make it again") from None
        if about.get("version") != VERSION:
            raise ValueError(f"{path} must be of version {VERSION}, got {about.get('version')}; make it again")
        try:
            default, provenance = int(about["default"]), json.loads(about["provenance"])
            vocabulary = Vocabulary.read(about["vocabulary"]) if "vocabulary" in about else None
        except (KeyError, ValueError):
            raise ValueError(
                f"{path} must have a default level and provenance in its metadata; make it again"
            ) from None
        return cls(levels, default, provenance, str(name_or_path), vocabulary)


def _check_provenance(provenance: Any) -> None:
    """Raise unless it can be stored and names the table's keys in a readable form."""
    keys = provenance.get("key_ids", []) if isinstance(provenance, dict) else None
    if not isinstance(keys, (list, tuple)) or not all(isinstance(key, str) for key in keys):
        raise TypeError(
            f"provenance must be a dict whose 'key_ids' is a list of texts, got {type(provenance).__name__}"
            f"{' with others' if isinstance(provenance, dict) else ''}; name the keys, or leave it out"
        )
    try:
        json.dumps(provenance)
    except (TypeError, ValueError) as error:
        raise TypeError(f"provenance must be JSON-serializable ({error}); leave other objects out") from None


def shipped() -> list[str]:
    return sorted(p.stem for p in FOLDER.glob("*.safetensors"))


def level_tails(
    weights: TextWeights,
    watermark: Watermark,
    values: np.ndarray,
    levels: np.ndarray,
    owner: np.ndarray,
    counted: np.ndarray,
    texts: int,
    more: float = 0.0,
) -> tuple[np.ndarray, Tails]:
    """Return (weighted scores, tails), float64 [texts], of per-token [N] arguments. more: added to green scores."""
    if weights.ratios:
        return ratio_tails(values, levels, owner, counted, texts)
    values, levels, owner = values[counted], levels[counted], owner[counted]
    scores = np.bincount(owner, weights=values * levels, minlength=texts) + more
    trials = np.bincount(owner * (MOST + 1) + levels, minlength=texts * (MOST + 1)).reshape(texts, MOST + 1)
    steps = np.arange(MOST + 1)
    fraction = watermark.null_moments[0] if watermark.null == "binomial" else None
    mean, variance = (1.0, 1.0) if fraction is None else (fraction, fraction * (1 - fraction))
    spread = np.sqrt(variance * (trials * steps**2).sum(axis=1))
    z = (scores - mean * (trials * steps).sum(axis=1)) / np.where(spread > 0, spread, 1)
    if fraction is None:
        p = [weighted_gamma_tail(s, steps, n) for s, n in zip(scores.tolist(), trials, strict=True)]
    else:
        p = [weighted_binomial_tail(round(s), steps, n, fraction) for s, n in zip(scores.tolist(), trials, strict=True)]
    return scores, Tails(z, np.array(p, dtype=np.float64))


def level_sum(weights: TextWeights, values: np.ndarray, levels: np.ndarray, counted: np.ndarray) -> float:
    """Return the weighted score of one text, up to what is the same under every key; per token [N]."""
    if weights.ratios:
        return float(ratio_sums(values, levels, np.zeros_like(levels), counted, 1)[0][0])
    return float((values * levels)[counted].sum())


def levels_of(information: np.ndarray) -> np.ndarray:
    """Convert weights (non-negative numbers [V]) to levels 0..15 with the greatest at 15, uint8 [V]."""
    top = float(information.max())
    if not top > 0:
        raise ValueError("no token carries information: expected marked texts that score higher than unmarked ones")
    return np.rint(np.clip(information, 0, None) / top * MOST).astype(np.uint8)
