"""Choose theta and beta of the capacity policy for your own prompts.

One unwatermarked pass gives the capacity of every token that the model writes, and so the share of tokens that each
theta protects. The detection rate can only be measured on watermarked texts: a few short runs, chosen by bisection,
because a greater theta (less protection) and a greater beta (a stronger mark) can only make the mark easier to detect.
"""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from caw.capacity import CAPACITY_FLOOR
from caw.decoding.prompts import Prompts, accept_prompts
from caw.decoding.row_settings import RowSettings
from caw.defaults import BETA
from caw.detection import Detector
from caw.detection.power import expected_power
from caw.entrance import GenerationOutput, generate
from caw.evaluator import Evaluator
from caw.io.progress import naming
from caw.models.facts import ModelFacts
from caw.policies import CapacityPolicy
from caw.settings import Settings
from caw.watermarks import Watermark
from caw_lab.training.labels import EncodedText
from caw_lab.training.recording import record_encoded
from caw_lab.training.train import predict

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # protected; the curve, and the thetas that are tried
BETAS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
MOST_RUNS = 5  # the strongest setting, and four halvings of the nine or ten others


@dataclass(frozen=True)
class Point:
    """One setting of theta and beta.

    protected: share of the unwatermarked tokens that keep strength 0. The rest is None unless texts were generated.
    power: expected share of texts found (see `power.expected_power`; somewhat optimistic, because it treats all texts
    as alike). found: share of these texts that are found. score: mean of the tokens that count. changed: share of
    tokens that are not the model's own choice.
    """

    theta: float
    beta: float
    protected: float
    power: float | None = None
    found: float | None = None
    score: float | None = None
    changed: float | None = None


@dataclass
class Tuned:
    """The chosen setting (the strongest one if none reached the requested power), and the curve over theta."""

    chosen: Point
    reached: bool
    curve: list[Point]
    tried: list[Point] = field(default_factory=list)
    prompts: int = 0
    tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Tuner:
    """The parts that all settings share.

    Args:
        model, tokenizer: as `caw.load_model` gives them. prompts: token ids, a list each.
        evaluator: the network behind the policy.
        settings: of every run.
        watermark: needed for power only. fpr, tokens: power is the share of texts of `tokens` tokens found at `fpr`.

    Raises ValueError if the model continues none of the prompts.
    """

    model: Any
    tokenizer: Any
    prompts: Sequence[Sequence[int]]
    evaluator: Evaluator
    settings: Settings
    watermark: Watermark | None = None
    fpr: float = 1e-3
    tokens: int = 200
    runs: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.capacities = self._capacities()

    def _capacities(self) -> np.ndarray:
        """Capacity of every token of the unwatermarked texts, ascending."""
        with naming("texts without a mark"):
            out = self._generate(return_trace=False)
        coded = [
            EncodedText.unlabelled(f"prompt {i}", prompt, new)
            for i, (prompt, new) in enumerate(zip(self.prompts, out.sequences, strict=True))
            if new
        ]
        if not coded:
            raise ValueError("the model wrote nothing for these prompts; give others")
        with tempfile.TemporaryDirectory(prefix="caw-tune-") as folder:
            positions = record_encoded(self.model, coded, Path(folder))
            spec, table = self.evaluator.spec, self.evaluator.token_class
            capacity = predict(self.evaluator, positions.features(spec, np.arange(len(positions)), table))
        return np.sort(np.clip(capacity, CAPACITY_FLOOR, 1 - CAPACITY_FLOOR))

    def _generate(self, **options: Any) -> GenerationOutput:
        return generate(self.model, self.tokenizer, list(self.prompts), **{**asdict(self.settings), **options})

    def protected(self, theta: float) -> float:
        """Return the share of the unwatermarked tokens whose capacity is at least theta."""
        return float(np.mean(self.capacities >= theta))

    def theta_for(self, share: float) -> float:
        """Return the greatest theta, to 4 digits, that protects at least this share of tokens; 1 for share 0."""
        needed = math.ceil(share * len(self.capacities) - 1e-9)
        if needed <= 0:
            return 1.0
        return math.floor(float(self.capacities[-needed]) * 1e4) / 1e4

    def point(self, theta: float, beta: float) -> Point:
        """Return a setting without texts."""
        return Point(theta, beta, round(self.protected(theta), 4))

    def measure(self, theta: float, beta: float) -> Point:
        """Generate with this setting, and measure its detection rate."""
        assert self.watermark is not None
        self.runs += 1
        policy = CapacityPolicy(self.evaluator, theta, beta)
        with naming(f"marked texts, run {self.runs} of at most {MOST_RUNS}, theta {theta:g}, beta {beta:g}"):
            out = self._generate(watermark=self.watermark, policy=policy)
        # a detector sees the text only, and an end token is not part of it
        ended = zip(out.sequences, out.finish_reasons, strict=True)
        texts = [np.array(t, dtype=np.int64) for s, why in ended if (t := s[:-1] if why == "eos" else s)]
        detector = Detector(None, self.watermark, self.fpr)
        scored = list(detector.score(texts))
        counted = sum(int(s.counted.sum()) for s in scored)
        length = sum(len(t) for t in texts)
        score = sum(float(s.values[s.counted].sum()) for s in scored) / max(counted, 1)
        found = [r.p_value <= self.fpr for r in detector.detect_ids(texts)]
        choices = [c for trace in out.trace or [] for c in trace.choice]
        power = expected_power(self.watermark, score, counted * self.tokens / max(length, 1), self.fpr)
        return Point(
            theta, beta, round(self.protected(theta), 4), round(power, 4), round(float(np.mean(found)), 4),
            round(score, 4), round(float(np.mean(np.array(choices) > 0)), 4),
        )  # fmt: skip


def tune(tuner: Tuner, *, share: float | None = None, power: float | None = None, beta: float = BETA) -> Tuned:
    """Return the setting with the requested share of protected tokens, or the requested power, or both.

    share alone gives theta, without watermarked texts. power alone gives the most protection (least theta) that reaches
    it at this beta. With both, theta comes from the share, and beta is the least that reaches the power. It takes at
    most five runs over the prompts, and the unwatermarked one.

    Raises ValueError for shares outside [0, 1], powers outside (0, 1), and neither given.
    """
    if share is None and power is None:
        raise ValueError("a share of protected tokens or a power is required, got neither; give one")
    if share is not None and not 0 <= share <= 1:
        raise ValueError(f"the share of protected tokens must be in [0, 1], got {share}; give e.g. 0.6")
    if power is not None and not 0 < power < 1:
        raise ValueError(f"the power must be between 0 and 1, got {power}; give e.g. 0.95")
    curve = [tuner.point(theta, beta) for theta in (*map(tuner.theta_for, SHARES), 1.0)]
    about = {"prompts": len(tuner.prompts), "tokens": len(tuner.capacities)}
    if power is None:
        assert share is not None
        return Tuned(tuner.point(tuner.theta_for(share), beta), True, curve, **about)  # type: ignore[arg-type]
    assert tuner.watermark is not None, "power requires a watermark"
    if share is not None:
        theta = tuner.theta_for(share)
        settings = [(theta, b) for b in BETAS if _allowed(tuner, theta, b)]
    else:
        settings = [(theta, beta) for theta in sorted({p.theta for p in curve if p.theta > 0})]
    tried = _bisect(tuner, settings, power)
    good = [p for p in tried if p.power is not None and p.power >= power]
    chosen = min(good, key=lambda p: (p.theta, p.beta)) if good else tried[0]
    by_theta = {(p.theta, p.beta): p for p in tried}
    curve = [by_theta.get((p.theta, p.beta), p) for p in curve]
    return Tuned(chosen, bool(good), curve, tried, **about)


def _bisect(tuner: Tuner, settings: Sequence[tuple[float, float]], power: float) -> list[Point]:
    """Return the settings tried: first the strongest (last), then by halving towards the weakest that is sufficient."""
    tried = [tuner.measure(*settings[-1])]
    low, high = 0, len(settings) - 1  # the answer is in [low, high] if the strongest is enough
    while low < high and (tried[0].power or 0.0) >= power:
        middle = (low + high) // 2
        tried.append(tuner.measure(*settings[middle]))
        if (tried[-1].power or 0.0) >= power:
            high = middle
        else:
            low = middle + 1
    return tried


def _allowed(tuner: Tuner, theta: float, beta: float) -> bool:
    assert tuner.watermark is not None
    try:
        tuner.watermark.check_strength(CapacityPolicy(tuner.evaluator, theta, beta).max_strength)
    except ValueError:
        return False
    return True


def encode(model: Any, tokenizer: Any, prompts: Prompts, *, chat: bool = False) -> list[list[int]]:
    """Return token ids of prompts, as `caw.generate` encodes them. TypeError or ValueError for one that it refuses."""
    accepted = accept_prompts(tokenizer, prompts, ModelFacts.of(model, tokenizer), RowSettings(), chat=chat)
    for remark in accepted.refused:
        raise (remark.error or ValueError)(str(remark))
    return [list(ids) for ids in accepted.ids]
