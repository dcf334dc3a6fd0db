"""Strength that follows the evidence, against decoding by definition with a detector at every token."""

import dataclasses
import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import prompt
from decoding.brute_force import BruteForce, agree
from decoding.mixing import FOREIGN, compare
from decoding.running import make_decoder, run
from decoding.test_step import SAMPLING, WATERMARKS, capacity_policy
from pairwise import pairwise

import caw
from caw.decoding.row_settings import RowSettings
from caw.detection.detector import Detector
from caw.detection.family import alone
from caw.detection.weights import TokenWeights
from caw.policies import Target

PROMPTS = [prompt(9), prompt(1, 2), prompt(4, 1), prompt(6, 3)]
NEW = 14
AT_ONCE = Target(0.9, margin=0)
ALL_MARKS = {**WATERMARKS, **FOREIGN, "dual": caw.EXP(key=5, format="vllm-dual", context_width=2, top_k=12)}


def weights(vocab_size: int) -> TokenWeights:
    levels = np.arange(vocab_size) * 7 % 16
    return TokenWeights(levels * (np.arange(levels.size) % 3 > 0))


@dataclasses.dataclass
class Steered(BruteForce):
    """The definition under a target: a detector reads what was generated so far."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        target = self.policy.target
        self.target, self.detector = target, Detector(None, self.watermark, weights=target.weights)

    def decide(self, prompt: list[int], new: list[int]) -> Any:
        self.factor = self.steered(new)
        return super().decide(prompt, new)

    def steered(self, new: list[int]) -> float:
        result = self.detector.detect_ids([np.array(new, dtype=np.int64)])[0]
        kept = [token for token, score in zip(new, result.token_scores, strict=True) if score is not None]
        levels = (
            [1] * len(kept) if self.target.weights is None else self.target.weights.of(np.array(kept, int)).tolist()
        )
        squares, cubes = sum(x**2 for x in levels), sum(x**3 for x in levels)
        variance = self.watermark.null_moments[1]
        skewness = self.watermark.null_third * cubes / (variance * squares) ** 1.5 if squares else 0.0
        quantile = NormalDist().inv_cdf(1 - self.target.p_value)
        needed = quantile + self.target.margin + (quantile**2 - 1) / 6 * skewness
        return 0.0 if result.z_score >= needed else 1.0

    def _strength(self, logits: torch.Tensor, capacity: float) -> float:
        return super()._strength(logits, capacity) * self.factor

    def _choice(self, scores: Any, warped: Any, new: list[int], original: int) -> Any:
        choose = super()._choice(scores, warped, new, original)

        def worth(strength: float) -> tuple[int, float]:
            token, gap = choose(strength)
            return (token, gap) if token == original or self.gains(new, token) else (original, math.inf)

        return worth

    def gains(self, new: list[int], token: int) -> bool:
        result = self.detector.detect_ids([np.array([*new, token], dtype=np.int64)])[0]
        return result.token_scores[-1] is not None


TARGETS = {
    "never": Target(1e-12),
    "stop": Target(0.05, margin=0.2),
    "weights": Target(0.05, margin=0, weights=weights(200)),
}
POLICIES = {
    "fixed": lambda model, target: caw.FixedStrength(0.8, target),
    "entropy": lambda model, target: caw.EntropyThreshold(3.6, target=target),
    "delta": lambda model, target: caw.LogitDeltaThreshold(0.9, target=target),
    "capacity": lambda model, target: caw.CapacityPolicy(capacity_policy(model).network, 0.9, 1.5, target),
}


@pytest.mark.parametrize("watermark, policy, target, sampling", pairwise(WATERMARKS, POLICIES, TARGETS, SAMPLING))
def test_closed_loop_is_the_definition(llama: Any, watermark: str, policy: str, target: str, sampling: str) -> None:
    chosen = TARGETS[target]
    if chosen.weights is not None:
        chosen = dataclasses.replace(chosen, weights=weights(llama.config.vocab_size))
        if watermark in ("top_k", "scale", "repeating"):  # a level 0 among the candidates of a race is another story
            chosen = dataclasses.replace(chosen, weights=TokenWeights(np.full(llama.config.vocab_size, 3)))
    how = POLICIES[policy](llama, chosen)
    done = run(llama, PROMPTS[:2], WATERMARKS[watermark], how, max_new_tokens=NEW, eos_token_ids=(2,), slots=2,
               **SAMPLING[sampling])  # fmt: skip
    reference = Steered(llama, WATERMARKS[watermark], how, eos=(2,), **SAMPLING[sampling])
    for ids, tokens in zip(PROMPTS, done.tokens, strict=False):
        agree(tokens, reference.decode(ids, NEW), reference, ids, f"{watermark} {policy} {target} {sampling}")


def test_a_target_is_of_all_sub_keys_and_one_of_them_marks(llama: Any) -> None:
    several, one = (
        caw.FixedStrength(1.0, Target(0.3, margin=0)),
        caw.FixedStrength(1.0, Target(alone(0.3, 64), margin=0)),
    )
    texts = [
        run(llama, PROMPTS, mark, policy, max_new_tokens=NEW).tokens
        for mark, policy in ((caw.KGW(1, subkeys=64), several), (caw.KGW(1), one), (caw.KGW(1), several))
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("watermark", ALL_MARKS)
@pytest.mark.parametrize("sampling", SAMPLING)
def test_a_target_that_is_reached_at_once(llama: Any, watermark: str, sampling: str) -> None:
    """The unmarked text; no step looks ahead."""
    policy = caw.CapacityPolicy(capacity_policy(llama).network, 0.9, 1.5, AT_ONCE)
    plain = run(llama, PROMPTS, max_new_tokens=3, **SAMPLING[sampling])
    first = run(llama, PROMPTS, ALL_MARKS[watermark], policy, max_new_tokens=1, **SAMPLING[sampling])
    assert first.tokens == [tokens[:1] for tokens in plain.tokens]
    assert {forwarded for *_, forwarded in first.steps} == {1}


@pytest.mark.parametrize(
    "watermark, fixed", pairwise(["lefthash", "selfhash", "unigram", "top_k", "scale"], [False, True])
)
def test_rows_with_a_target_are_as_if_alone(llama: Any, watermark: str, fixed: bool) -> None:
    expected = compare(llama, WATERMARKS[watermark], POLICIES["capacity"](llama, TARGETS["stop"]), fixed)
    assert not any(expected.traces[3].choice), "a factor of 0 leaves a text unmarked"


@pytest.mark.parametrize("name", ["lefthash", "top_k"])
def test_marking_rests_once_the_text_is_found(llama: Any, name: str) -> None:
    """Every strength is 0 where the ids so far reach the target, and only there."""
    target = Target(0.05, margin=0.1)
    policy, detector = caw.FixedStrength(1.0, target), Detector(None, WATERMARKS[name])
    done = run(llama, PROMPTS, WATERMARKS[name], policy, max_new_tokens=30)
    rested = 0
    for trace in done.traces:
        for i, strength in enumerate(trace.strength):
            z = detector.detect_ids([np.array(trace.tokens[:i], dtype=np.int64)])[0].z_score
            assert strength == 0 or z < 3.0
            rested += strength == 0
        assert max(trace.strength) == 1
    assert 0 < rested < sum(len(trace.strength) for trace in done.traces)


def test_no_target_costs_nothing(llama: Any) -> None:
    decoder = make_decoder(llama, caw.KGW(key=1))
    assert decoder.plan.loop is None and decoder.choosing.texts.evidence is None
    assert make_decoder(llama, None, caw.FixedStrength(target=0.01)).plan.loop is None


def test_what_a_target_does_not_take_is_refused(llama: Any) -> None:
    with pytest.raises(ValueError, match=r"a target needs a watermark without a payload, .* leave target or payload"):
        make_decoder(llama, caw.KGW(key=1, payload=3, payload_bits=4), caw.FixedStrength(1.0, 0.01))
    mark = caw.KGW(key=1)
    known = TokenWeights(np.ones(9, np.int64), provenance={"key_ids": [mark.key_id]})
    with pytest.raises(ValueError, match="estimated from texts of the tested key"):
        make_decoder(llama, mark, caw.FixedStrength(1.0, Target(0.01, weights=known)))
    with pytest.raises(FileNotFoundError, match="weights must be a shipped table"):
        make_decoder(llama, mark, caw.FixedStrength(1.0, Target(0.01, weights="nothing")))


@pytest.mark.parametrize("fixed", [False, True])
def test_a_rows_margin_is_added_to_the_targets(llama: Any, fixed: bool) -> None:
    mark, settings = WATERMARKS["lefthash"], {"max_new_tokens": NEW}
    rows = [RowSettings(max_new_tokens=NEW, margin=margin) for margin in (0.0, 0.5, 1.5, 100.0)]
    done = run(llama, PROMPTS[:1] * 4, mark, caw.FixedStrength(1.0, Target(0.05, margin=0.1)), rows=rows, fixed=fixed,
               batch=4, **settings)  # fmt: skip
    for margin, trace in zip((0.1, 0.6, 1.6, 100.0), done.traces, strict=True):
        alone = run(llama, PROMPTS[:1], mark, caw.FixedStrength(1.0, Target(0.05, margin=margin)), **settings).traces[0]
        assert (trace.tokens, trace.strength) == (alone.tokens, alone.strength)
    resting = [trace.strength.count(0.0) for trace in done.traces]
    assert resting == sorted(resting, reverse=True) and resting[0] > resting[-1] == 0
