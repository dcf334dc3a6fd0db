"""`caw.generate` with a Recommended: the family of its texts, its policies, and what it says."""

from __future__ import annotations

from typing import Any

import pytest
from decoding.architectures import build
from flat_evaluator import flat_evaluator
from generating import PROMPTS, generate

import caw
from caw.policies.recommended import policy_for

MARK = caw.Recommended(5, variants=16, evaluator=flat_evaluator())
DRAWN = {"do_sample": True, "temperature": 1.3, "seed": 3}


@pytest.fixture(scope="module")
def model() -> Any:
    return build("llama")


def test_drawn_texts_are_the_races_and_greedy_ones_the_lists(model: Any) -> None:
    drawn = generate(model, watermark=MARK, max_new_tokens=30, **DRAWN)
    assert drawn.sequences == generate(model, watermark=MARK.drawn, max_new_tokens=30, **DRAWN).sequences
    greedy = generate(model, watermark=MARK, max_new_tokens=30)
    policy = policy_for(MARK, "", do_sample=False)
    assert isinstance(policy, caw.CapacityPolicy) and policy.evaluator == MARK.evaluator
    assert greedy.sequences == generate(model, watermark=MARK.greedy, policy=policy, max_new_tokens=30).sequences
    assert greedy.sequences != generate(model, max_new_tokens=30).sequences


@pytest.mark.parametrize(("sampling", "family"), [({}, "kgw"), (DRAWN, "exp")])
def test_tests_are_by_the_detector_of_both(model: Any, sampling: dict[str, Any], family: str) -> None:
    out = generate(model, watermark=MARK, max_new_tokens=100, detectable_at=1e-2, **sampling)
    assert out.receipts is not None
    for receipt, text in zip(out.receipts, out.texts, strict=True):
        assert receipt is not None and (receipt.watermark, receipt.key_id) == ("recommended", MARK.key_id)
        if receipt.detected:
            assert receipt.family == family and (receipt.variant is None) is (family == "kgw")
        assert ("target" in receipt.policy) is (family == "kgw") and text
    assert any(receipt.detected for receipt in out.receipts if receipt)


def test_what_it_decides_is_not_asked_of_others(model: Any) -> None:
    with pytest.raises(ValueError, match="a Recommended brings its own policies, got FixedStrength as well"):
        generate(model, watermark=MARK, policy=caw.FixedStrength(1.0))
    with pytest.raises(ValueError, match="a race at full strength has one strength, so best_of must be 1"):
        generate(model, watermark=MARK, detectable_at=1e-2, best_of=2, max_attempts=4, **DRAWN)


@pytest.mark.parametrize(
    "cut", [{"top_k": 1}, {"temperature": 0.01}, {"top_p": 0.01}, {"min_p": 1.0}], ids=lambda cut: next(iter(cut))
)
def test_sampling_of_one_token_is_greedy(model: Any, cut: dict[str, Any]) -> None:
    """A race would have nothing to choose among: such texts left unmarked, and without a word."""
    greedy = generate(model, watermark=MARK, max_new_tokens=30).sequences
    assert generate(model, watermark=MARK, max_new_tokens=30, do_sample=True, **cut).sequences == greedy
    near = {"top_k": 2, "temperature": 0.011, "top_p": 0.011, "min_p": 0.99}
    kept = {name: near[name] for name in cut}
    raced = generate(model, watermark=MARK, max_new_tokens=30, do_sample=True, **kept).sequences
    alone = generate(model, watermark=MARK.drawn, max_new_tokens=30, do_sample=True, **kept).sequences
    assert raced == alone, "what is left of a choice is the race's"


# Seeds that nobody gives ------------------------------------------------------------------------------------------


def test_without_a_seed_each_text_draws_one(model: Any) -> None:
    """Pairs share a variant with chance 1 / V: of 12 equal prompts in two calls no two texts are alike by chance alone
    (false-alarm rate of 64 variants and texts that differ anyway: below 1e-6)."""
    race = caw.EXP(5, strength="scale", variants=1024)
    made = [
        tuple(ids)
        for _ in range(2)
        for ids in generate(model, PROMPTS * 2, watermark=race, max_new_tokens=30, **{**DRAWN, "seed": None}).sequences
    ]
    assert len(set(made)) > len(made) - 3
    plain = [generate(model, do_sample=True, seed=None, max_new_tokens=30).sequences for _ in range(2)]
    assert plain[0] != plain[1]
    assert generate(model, seed=None).sequences == generate(model).sequences, "greedy texts draw nothing"


# What cannot be combined: one sentence each -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: caw.EXP(1, variants=0), "variants must be an integer in \\[1, 1024\\], got 0"),
        (lambda: caw.EXP(1, variants=1025), "variants must be an integer in \\[1, 1024\\], got 1025"),
        (lambda: caw.EXP(1, variants=4, payload=1, payload_bits=2), "variants need .* no payload"),
    ],
)
def test_variants_out_of_range_and_payloads_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_a_target_and_a_detector_of_fewer_variants_are_refused(model: Any) -> None:
    race = caw.EXP(1, strength="scale", variants=16)
    with pytest.raises(ValueError, match="so it takes no target, got one in FixedStrength"):
        generate(model, watermark=race, policy=caw.FixedStrength(1.0, target=1e-3), **DRAWN)
    few = caw.detection.Detector(None, caw.Recommended(5, variants=4))
    with pytest.raises(ValueError, match="detector must try the 17 variants that mark, got 5"):
        generate(model, watermark=MARK, detectable_at=1e-2, max_new_tokens=60, detector=few, **DRAWN)
