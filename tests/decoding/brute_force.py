"""Decoding by definition, the whole text through the plain model each step; each decision comes with its margin."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from caw import prf
from caw.policies import CapacityPolicy, EntropyThreshold, FixedStrength, LogitDeltaThreshold
from caw.testing import tolerance
from caw.watermarks import EXP, KGW, Unigram, keys

RECORD = 100
Choice = Callable[[Any], tuple[int, float]]
STRENGTH_STEP = 1e-4  # how far the strength may move without changing a decision that is called clear


# comparisons so far and those that differed within their margin; shown at the end of a test run
COMPARED: list[str] = []
DIFFERED: list[str] = []


@dataclass
class Decision:
    """token, the original token it competes with, its capacity (NaN if not asked) and strength, and the margin."""

    token: int
    original: int
    strength: float
    capacity: float
    margin: float


@dataclass
class BruteForce:
    """One way to decode; `decide` gives the next token of a prompt and what was generated so far."""

    model: Any
    watermark: Any = None
    policy: Any = None
    eos: tuple[int, ...] = ()
    min_new_tokens: int = 0
    mark_eos: bool = True
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Any = None
    seed: int = 0
    row_factor: float = 1.0  # of the policy's strengths
    _rows: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.policy = self.policy or FixedStrength(1.0)

    def decode(self, prompt: list[int], max_new_tokens: int) -> list[int]:
        return [decision.token for decision in self.decisions(prompt, max_new_tokens)]

    def decisions(self, prompt: list[int], max_new_tokens: int) -> list[Decision]:
        made: list[Decision] = []
        while len(made) < max_new_tokens and not (made and made[-1].token in self.eos):
            made.append(self.decide(prompt, [each.token for each in made]))
        return made

    @torch.inference_mode()
    def decide(self, prompt: list[int], new: list[int]) -> Decision:
        rows = self._logits(prompt + new)
        plain = rows[-1]
        warped = self._warp(self._penalised(plain, prompt, new), len(new))
        scores = warped + self._noise(prompt, len(new), plain.shape[0]) if self.do_sample else warped
        original = int(scores.argmax())  # the first of equal ones
        capacity = self._capacity(prompt + new, original)
        strength = self.row_factor * self._strength(plain, capacity)
        choose = self._choice(scores.numpy(), warped.numpy(), new, original)
        if not self.mark_eos and {choose(s)[0] for s in self._strengths()} & set(self.eos):
            choose = lambda s: (original, math.inf)  # noqa: E731
        token, gap = choose(strength)
        steps = (max(0.0, strength - STRENGTH_STEP), strength + STRENGTH_STEP)
        clear = strength == 0 or isinstance(self.policy, FixedStrength) or all(choose(s)[0] == token for s in steps)
        top = scores.topk(2).values
        margin = min(gap, float(top[0] - top[1]), self._threshold_margin(plain)) if clear else 0.0
        return Decision(token, original, strength, capacity, margin / float(plain.square().mean().sqrt()))

    def _logits(self, ids: list[int]) -> torch.Tensor:
        """float32 [T, V] of every position of one text; the look-ahead of one step is often the next step's text."""
        if tuple(ids) not in self._rows:
            found = self.model(torch.tensor([ids]), use_cache=False).logits[0].float()
            self._rows = {**dict(list(self._rows.items())[-1:]), tuple(ids): found}
        return self._rows[tuple(ids)]

    def _penalised(self, logits: torch.Tensor, prompt: list[int], new: list[int]) -> torch.Tensor:
        """Token by token, as the formula on docs/choosing.md says."""
        scores = logits.clone()
        for token, bias in dict(self.logit_bias or {}).items():
            scores[token] += bias
        for token in {*prompt, *new}:
            scores[token] *= self.repetition_penalty if scores[token] < 0 else 1 / self.repetition_penalty
        for token in set(new):
            scores[token] -= self.frequency_penalty * new.count(token) + self.presence_penalty
        return scores

    def _warp(self, logits: torch.Tensor, generated: int) -> torch.Tensor:
        scores = logits.clone()
        if generated < self.min_new_tokens:
            scores[list(self.eos)] = -torch.inf
        if not self.do_sample:
            return scores
        scores = scores / self.temperature
        if 0 < self.top_k < scores.shape[0]:
            scores[scores < scores.sort(descending=True).values[self.top_k - 1]] = -torch.inf
        if self.top_p < 1:
            ascending = scores.sort()
            unlikely = ascending.values.softmax(0).cumsum(0) <= 1 - self.top_p
            unlikely[-1] = False
            scores[ascending.indices[unlikely]] = -torch.inf
        probs = scores.softmax(0)
        scores[probs < self.min_p * probs.max()] = -torch.inf
        return scores

    def _noise(self, prompt: list[int], generated: int, vocab_size: int) -> torch.Tensor:
        digest = hashlib.sha256(repr((0, tuple(prompt))).encode()).digest()
        stream = [int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")]
        key = keys.derive_key(self.seed, b"caw/sample")
        words = prf.token_word(key, prf.absorb_context(key, [*stream, generated]), np.arange(vocab_size))
        return torch.from_numpy(-np.log(-np.log((words + 0.5) / 2.0**32))).float()

    def _capacity(self, ids: list[int], original: int) -> float:
        if not isinstance(self.policy, CapacityPolicy):
            return math.nan
        spec = self.policy.network.spec
        rows = self._logits([*ids, original])
        here = len(ids) - 1
        parts, masses = [], []
        for position in range(here - spec.previous, here + spec.next + 1):
            probs, mass = torch.zeros(spec.k), torch.zeros(spec.classes)
            if position >= 0:
                kept, ids_kept = (x[: spec.k] for x in rows[position].softmax(0).sort(descending=True, stable=True))
                probs[: len(kept)] = kept
                for p, token in zip(kept, ids_kept.tolist(), strict=True):
                    if spec.classes:
                        mass[int(self.policy.network.token_class[token])] += p
            masses.append(mass.clamp_min(1e-4).log())
            logs = probs.clamp_min(1e-10).log()
            gaps = torch.cat([logs[:1], logs[0] - logs[1:]])
            parts.append({"raw": probs, "log": logs, "gap": gaps}[spec.transform])
        return float(self.policy.network(torch.cat([*parts, *masses])[None]))

    def _strength(self, logits: torch.Tensor, capacity: float) -> float:
        policy = self.policy
        if isinstance(policy, FixedStrength):
            return policy.value
        if isinstance(policy, EntropyThreshold):
            return policy.value if _entropy(logits) > policy.nats else 0.0
        if isinstance(policy, LogitDeltaThreshold):
            return policy.value if _gap(logits) < policy.gap else 0.0
        clamped = min(max(capacity, 1e-4), 1 - 1e-4)
        return policy.beta * max(0.0, (policy.theta - clamped) / policy.theta) if policy.theta else 0.0

    def _strengths(self) -> list[float]:
        """Strengths of which every candidate of the policy takes one; for "scale" nearly every one."""
        steps = 50
        if isinstance(self.watermark, EXP):  # ranks join 1 / top_k apart
            each = 4 if self.watermark.strength == "top_k" else 100
            steps = math.ceil(self.policy.max_strength) * self.watermark.top_k * each
        return (self.row_factor * np.linspace(0, self.policy.max_strength, steps + 1)).tolist()

    def _threshold_margin(self, logits: torch.Tensor) -> float:
        if isinstance(self.policy, EntropyThreshold):
            return abs(_entropy(logits) - self.policy.nats)
        if isinstance(self.policy, LogitDeltaThreshold):
            return abs(_gap(logits) - self.policy.gap)
        return math.inf

    # Choices: of each strength (token, gap between it and the next best) --------------------------------------------

    def _choice(self, scores: np.ndarray, warped: np.ndarray, new: list[int], original: int) -> Choice:
        if self.watermark is None or self._repeats(new):
            return lambda strength: (original, math.inf)
        chosen = self._race(scores, warped, new) if isinstance(self.watermark, EXP) else self._biased(scores, new)
        return lambda strength: chosen(np.float32(strength)) if np.float32(strength) else (original, math.inf)

    def _biased(self, scores: np.ndarray, new: list[int]) -> Choice:
        green, delta = self._green(new, scores.size), np.float32(self.watermark.delta)
        return lambda strength: _best(scores + np.where(green, np.float32(strength * delta), np.float32(0)))

    def _race(self, scores: np.ndarray, warped: np.ndarray, new: list[int]) -> Choice:
        wm = self.watermark
        order = np.lexsort((np.arange(scores.size), -scores))[:RECORD]
        order = order[scores[order] > -np.inf]
        words = prf.token_word(wm.secret, prf.absorb_context(wm.secret, _last(new, wm.context_width)), order)
        uniform = ((words >> 8) + 1) / (2.0**24 + 1)
        gumbel = -np.log(-np.log(uniform.astype(np.float32).astype(np.float64)))
        race = warped[order].astype(np.float64) + gumbel
        if wm.strength == "scale":
            start = scores[order].astype(np.float64)
            whole = self._whole_race(warped, new)
            races = not self.policy.looks_ahead
            return lambda s: _best(whole) if s == 1 and races else _best(start + float(s) * (race - start), order)
        joins = np.arange(1, 2 * order.size, 2, dtype=np.float32)  # 2 rank - 1

        def cut_off(strength: Any) -> tuple[int, float]:
            racing = max(1, int((2 * strength * np.float32(wm.top_k) > joins).sum()))
            token, gap = _best(race[:racing], order[:racing])
            if racing < order.size:  # who is in the race depends on the order at the cut
                gap = min(gap, float(scores[order[racing - 1]] - scores[order[racing]]))
            return token, gap

        return cut_off

    def _whole_race(self, warped: np.ndarray, new: list[int]) -> np.ndarray:
        """Race values of the whole vocabulary, float64 [V]; -inf = out."""
        tokens = np.arange(warped.size)
        word = _word(self.watermark.secret, _last(new, self.watermark.context_width), tokens)
        uniform = (((word >> 8) + 1) / (2.0**24 + 1)).astype(np.float32).astype(np.float64)
        return warped.astype(np.float64) - np.log(-np.log(uniform))

    def _repeats(self, new: list[int]) -> bool:
        wm = self.watermark
        if not (isinstance(wm, EXP) and wm.deduplicate):
            return False
        contexts = [tuple(_last(new[:i], wm.context_width)) for i in range(len(new) + 1)]
        return contexts[-1] in contexts[:-1]

    def _green(self, new: list[int], vocab_size: int) -> np.ndarray:
        wm = self.watermark
        tokens = np.arange(vocab_size)
        limit = int(wm.gamma * 2**24)
        if isinstance(wm, Unigram):
            return (_word(keys.derive_key(wm.secret, b"caw/unigram"), [], tokens) >> 8) < limit
        assert isinstance(wm, KGW)
        key = keys.derive_key(wm.secret, b"caw/kgw")
        if wm.seeding == "lefthash":
            return (_word(key, _last(new, wm.context_width), tokens) >> 8) < limit
        pairs = [_word(key, [x], tokens) for x in _last(new, wm.context_width - 1)]
        return (_word(key, [np.min(pairs, axis=0), tokens], tokens) >> 8) < limit


def agree(actual: list[int], expected: list[int], decisions: BruteForce, prompt: list[int], what: str) -> int:
    """Assert that tokens are equal, or differ first at a decision within its margin; return how many such cases."""
    COMPARED.append(what)
    if actual == expected:
        return 0
    at = next((i for i, (a, e) in enumerate(zip(actual, expected, strict=False)) if a != e), -1)
    assert at >= 0, f"{what}: one list ends before the other: {actual} {expected}"
    decision = decisions.decide(prompt, expected[:at])
    limit = tolerance("margin/decision").peak
    assert decision.margin < limit, f"{what}: token {at} is {actual[at]}, expected {expected[at]}; {decision}"
    DIFFERED.append(f"{what}: differs at token {at} ({actual[at]} for {expected[at]}), margin {decision.margin:.2e}")
    return 1


def _word(key: int, context: list[Any], tokens: np.ndarray) -> np.ndarray:
    return prf.token_word(key, prf.absorb_context(key, context), tokens)


def _last(new: list[int], width: int) -> list[int]:
    return ([-1] * width + new)[len(new) :]


def _best(values: np.ndarray, ids: np.ndarray | None = None) -> tuple[int, float]:
    """(the id of the greatest value, ties to the smaller id; distance to the next)."""
    ids = np.arange(values.size) if ids is None else ids
    best = values.max()
    token = int(ids[values == best].min())
    others = values[ids != token]
    return token, float(best - others.max()) if others.size else math.inf


def _entropy(logits: torch.Tensor) -> float:
    p = logits.double().softmax(0)
    return float(-(p * p.clamp_min(1e-300).log()).sum())


def _gap(logits: torch.Tensor) -> float:
    top = logits.topk(2).values
    return float(top[0] - top[1])
