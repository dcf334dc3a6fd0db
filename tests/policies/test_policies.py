"""Policies: the strength of each position, and that no strength ever exceeds what the ladders were built for."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from caw.capacity import CAPACITY_FLOOR
from caw.evaluator import Evaluator
from caw.evaluator.features import FeatureSpec
from caw.policies import CapacityPolicy, EntropyThreshold, FixedStrength, LogitDeltaThreshold, Policy, Signals
from caw.policies.entropy import entropy
from caw.record import Record
from caw.testing import assert_close, margin
from caw.watermarks import EXP, KGW, Position, Unigram

NETWORK = Evaluator(FeatureSpec(), hidden=4)


def signals(logits: torch.Tensor, capacity: torch.Tensor | None = None) -> Signals:
    return Signals(Record.from_logits(logits), logits.float(), capacity)


def flat(choices: int, vocab_size: int = 40) -> list[float]:
    """Logits whose distribution is uniform over `choices` tokens: entropy log(choices)."""
    return [0.0] * choices + [-math.inf] * (vocab_size - choices)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, 7.0])
def test_fixed_strength_is_the_same_everywhere(value: float) -> None:
    policy = FixedStrength(value)
    assert policy.strength(signals(torch.randn(5, 30))).tolist() == [value] * 5
    assert policy.max_strength == value and not policy.looks_ahead


@pytest.mark.parametrize("width", [1, 7, 5003])
def test_entropy_is_in_nats_over_the_whole_vocabulary_and_does_not_depend_on_other_rows(width: int) -> None:
    assert_close(entropy(torch.tensor([flat(1), flat(2), flat(40)])), [0.0, math.log(2), math.log(40)], "float32")
    logits = torch.randn(5, width, generator=torch.Generator().manual_seed(2)) * 4
    logits[1, 1:] = -torch.inf
    alone = [entropy(logits[row : row + 1]) for row in range(5)]
    assert torch.equal(entropy(logits), torch.cat(alone)) and entropy(logits[:0]).shape == (0,)
    probs = logits.double().softmax(-1)
    assert_close(entropy(logits), torch.special.entr(probs).sum(-1), "float32")
    assert_close(entropy(logits.T.contiguous().T), entropy(logits), "float32")


def test_entropy_threshold_marks_above_it_only() -> None:
    """SWEET's rule; the comparison is strict, so entropy 0 stays unmarked at threshold 0."""
    logits = torch.tensor([flat(1), flat(2), flat(3), flat(40)])
    assert EntropyThreshold(nats=1.0, value=2.0).strength(signals(logits)).tolist() == [0.0, 0.0, 2.0, 2.0]
    assert EntropyThreshold(nats=0.0).strength(signals(logits)).tolist() == [0.0, 1.0, 1.0, 1.0]
    assert EntropyThreshold(nats=100).strength(signals(logits)).tolist() == [0.0] * 4


def test_logit_delta_threshold_marks_small_gaps_only() -> None:
    logits = torch.tensor([[5.0, 4.0, 0.0], [1.0, 5.0, 4.75], [5.0, 5.0, 0.0], [5.0, -math.inf, -math.inf]])
    assert LogitDeltaThreshold(gap=1.0, value=3.0).strength(signals(logits)).tolist() == [0.0, 3.0, 3.0, 0.0]
    assert LogitDeltaThreshold(gap=0.0).strength(signals(logits)).tolist() == [0.0] * 4
    assert LogitDeltaThreshold(gap=1.0).strength(signals(torch.zeros(2, 1))).tolist() == [0.0, 0.0]  # one token only


@given(
    theta=st.floats(0, 1, width=32),
    beta=st.just(0.0) | st.floats(0.0009765625, 100, width=32),
    capacity=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9),
)
def test_capacity_policy_is_the_papers_formula(theta: float, beta: float, capacity: list[float]) -> None:
    policy = CapacityPolicy(NETWORK, theta, beta)
    got = policy.strength(signals(torch.randn(len(capacity), 9), torch.tensor(capacity))).tolist()
    for strength, c in zip(got, capacity, strict=True):
        c = min(max(c, 1e-4), 1 - 1e-4)
        exact = 0.0 if theta == 0 else beta * max(0.0, (theta - c) / theta)
        # float32 subtraction next to theta loses relative digits, so the error is relative to beta, not to the strength
        assert abs(strength - exact) <= margin("float32", beta)
        assert 0 <= strength <= policy.max_strength


def test_capacity_is_importance() -> None:
    """High capacity = important = protected; the clamp keeps the greatest strength just below beta."""
    policy = CapacityPolicy(NETWORK, theta=0.5, beta=2.0)
    got = policy.strength(signals(torch.randn(4, 9), torch.tensor([0.9, 0.5, 0.25, 0.0])))
    assert got[:2].tolist() == [0.0, 0.0]
    assert_close(got[2:], [1.0, 2.0 * (0.5 - CAPACITY_FLOOR) / 0.5], "float32")
    assert policy.looks_ahead and policy.max_strength == float(got[3])


@pytest.mark.parametrize(("previous", "following"), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)])
def test_it_looks_ahead_if_its_evaluator_reads_what_follows(previous: int, following: int) -> None:
    policy = CapacityPolicy(Evaluator(FeatureSpec(previous, following), hidden=4))
    assert policy.reads_capacity and policy.looks_ahead == (following > 0)
    assert not FixedStrength(1.0).looks_ahead and not FixedStrength(1.0).reads_capacity


def test_capacity_policy_takes_an_evaluator_or_says_what_it_found() -> None:
    assert CapacityPolicy(NETWORK).network is NETWORK
    with pytest.raises(FileNotFoundError, match="evaluator must be"):
        CapacityPolicy("no-such-model")


POLICIES: list[Policy] = [
    FixedStrength(1.3),
    EntropyThreshold(0.8, 1.3),
    LogitDeltaThreshold(0.7, 1.3),
    CapacityPolicy(NETWORK, 0.7, 1.3),
]
WATERMARKS = [KGW(key=1), KGW(key=1, seeding="selfhash"), Unigram(key=1), EXP(key=1), EXP(key=1, strength="scale")]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("watermark", WATERMARKS, ids=lambda w: f"{w.name}-{w.rule}")
def test_any_policy_works_with_any_watermark(policy: Policy, watermark: Any) -> None:
    """Strengths stay within the ladder built for the policy's greatest strength, and both ends are met."""
    logits = torch.randn(200, 60) * torch.linspace(0.1, 8, 200)[:, None]
    given_signals = signals(logits, torch.linspace(0, 1, 200))
    record = given_signals.current
    context = torch.zeros(200, watermark.window, dtype=torch.int64)
    watermark.check_strength(policy.max_strength)
    ladder = watermark.ladder(Position(record, record.values, logits, context), policy.max_strength)
    strength = policy.strength(given_signals)
    assert strength.shape == (200,) and strength.dtype == torch.float32
    assert float(strength.min()) >= 0 and float(strength.max()) <= policy.max_strength
    choice = ladder.select(strength)
    assert bool((choice < ladder.counts).all()) and bool((choice[strength == 0] == 0).all())
    assert bool((choice > 0).any()) and bool((choice == 0).any())


BAD = [
    (lambda: FixedStrength(-1), ValueError, "strength must be a number in"),
    (lambda: FixedStrength("1"), TypeError, "strength must be a number in"),  # type: ignore[arg-type]
    (lambda: FixedStrength(101), ValueError, "strength must be a number in"),
    (lambda: EntropyThreshold(-0.1), ValueError, "nats must be a number in"),
    (lambda: EntropyThreshold(1.0, float("nan")), ValueError, "strength must be a number in"),
    (lambda: LogitDeltaThreshold(-1), ValueError, "gap must be a number in"),
    (lambda: LogitDeltaThreshold(True), TypeError, "gap must be a number in"),
    (lambda: CapacityPolicy(NETWORK, theta=1.01), ValueError, "theta must be a number in"),
    (lambda: CapacityPolicy(NETWORK, theta=-0.01), ValueError, "theta must be a number in"),
    (lambda: CapacityPolicy(NETWORK, beta=-1), ValueError, "beta must be a number in"),
    (lambda: CapacityPolicy(NETWORK, beta=float("inf")), ValueError, "beta must be a number in"),
]


def test_parameters_out_of_range_are_refused_in_one_sentence() -> None:
    for build, error, message in BAD:
        with pytest.raises(error, match=message) as caught:
            build()
        assert "got" in str(caught.value) and "\n" not in str(caught.value)
