"""`caw.generate` with a Recommended: the family of its texts, its policies, and what it says."""

import warnings
from typing import Any

import pytest
from decoding.architectures import build
from flat_evaluator import flat_evaluator
from generating import generate

import caw
from caw.settings import Sampling

MARK = caw.Recommended(5, evaluator=flat_evaluator())
DRAWN = {"do_sample": True, "temperature": 1.3, "seed": 3}


@pytest.fixture(scope="module")
def model() -> Any:
    return build("llama")


def test_drawn_texts_are_the_races_and_greedy_ones_the_lists(model: Any) -> None:
    drawn = generate(model, watermark=MARK, max_new_tokens=30, **DRAWN)
    assert drawn.sequences == generate(model, watermark=MARK.drawn, max_new_tokens=30, **DRAWN).sequences
    greedy = generate(model, watermark=MARK, max_new_tokens=30)
    _, policy = MARK.of(Sampling())
    assert isinstance(policy, caw.CapacityPolicy) and policy.evaluator == MARK.evaluator
    assert greedy.sequences == generate(model, watermark=MARK.greedy, policy=policy, max_new_tokens=30).sequences
    assert greedy.sequences != generate(model, max_new_tokens=30).sequences


@pytest.mark.parametrize(("sampling", "family"), [
    ({}, "kgw"), (DRAWN, "exp"), ({**DRAWN, "temperature": 0.2}, "kgw"), ({**DRAWN, "temperature": 0.0101}, "kgw"),
])  # fmt: skip
def test_tests_are_by_the_detector_of_both(model: Any, sampling: dict[str, Any], family: str) -> None:
    out = generate(model, watermark=MARK, max_new_tokens=100, detectable_at=1e-2, **sampling)
    assert out.receipts is not None
    for receipt, text in zip(out.receipts, out.texts, strict=True):
        assert receipt is not None and (receipt.watermark, receipt.key_id) == ("recommended", MARK.key_id)
        assert (receipt.family, receipt.subkey, receipt.subkeys) == (family, None, None)
        assert ("target" in receipt.policy) is (family == "kgw") and text
    assert any(receipt.detected for receipt in out.receipts if receipt)


@pytest.mark.parametrize(
    "cut", [{"top_k": 1}, {"temperature": 0.01}, {"top_p": 0.01}, {"min_p": 1.0}], ids=lambda cut: next(iter(cut))
)
def test_sampling_of_one_token_is_greedy(model: Any, cut: dict[str, Any]) -> None:
    greedy = generate(model, watermark=MARK, max_new_tokens=30).sequences
    assert generate(model, watermark=MARK, max_new_tokens=30, do_sample=True, **cut).sequences == greedy
    near = {"top_k": 2, "temperature": 0.3, "top_p": 0.011, "min_p": 0.99}
    kept = {name: near[name] for name in cut}
    raced = generate(model, watermark=MARK, max_new_tokens=30, do_sample=True, **kept).sequences
    alone = generate(model, watermark=MARK.drawn, max_new_tokens=30, do_sample=True, **kept).sequences
    assert raced == alone, "what is left of a choice is the race's"


@pytest.mark.parametrize("temperature", [0.05, 0.29])
def test_texts_drawn_too_cool_for_a_race_are_the_lists_and_still_drawn(model: Any, temperature: float) -> None:
    drawn = {**DRAWN, "temperature": temperature}
    made = generate(model, watermark=MARK, max_new_tokens=100, **drawn)
    tokens = made.sequences
    assert tokens != generate(model, max_new_tokens=100, **drawn).sequences, "they are marked"
    assert tokens != generate(model, watermark=MARK, max_new_tokens=100, **{**drawn, "seed": 4}).sequences, "and drawn"
    assert all(result.family == "kgw" and result.is_watermarked for result in caw.detect(tokens, None, MARK))  # type: ignore[union-attr]


def test_the_bonus_of_the_lists_is_not_divided_by_the_temperature(model: Any) -> None:
    """As it is in a greedy text: divided by 1 / 4, four times the bonus."""
    drawn = {**DRAWN, "temperature": 0.25, "max_new_tokens": 30}
    lists, policy = caw.KGW(5, delta=4 * MARK.greedy.delta), MARK.of(Sampling()).policy
    made = generate(model, watermark=MARK, **drawn).sequences
    assert made == generate(model, watermark=lists, policy=policy, **drawn).sequences
    assert made != generate(model, watermark=MARK.greedy, policy=policy, **drawn).sequences


def test_a_greedy_call_of_a_full_race_is_told_that_it_draws(model: Any) -> None:
    race = caw.EXP(1, strength="scale", free=0)
    with pytest.warns(UserWarning, match="draws each token by the key's noise, as at temperature 1, got do_sample=Fal"):
        greedy = generate(model, watermark=race).sequences
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert generate(model, watermark=race, do_sample=True).sequences == greedy, "which is what it says"
        generate(model, watermark=caw.EXP(1))
        generate(model, watermark=race, policy=caw.FixedStrength(0.5))


def test_a_target_and_a_detector_of_fewer_sub_keys_are_refused(model: Any) -> None:
    race, lists = caw.EXP(1, strength="scale"), caw.KGW(5, subkeys=16)
    with pytest.raises(ValueError, match="so it takes no target, got one in FixedStrength"):
        generate(model, watermark=race, policy=caw.FixedStrength(1.0, target=1e-3), **DRAWN)
    few = caw.detection.Detector(None, caw.KGW(5, subkeys=4))
    with pytest.raises(ValueError, match="detector must try the 16 sub-keys of the watermark that marks, got 4"):
        generate(model, watermark=lists, detectable_at=1e-2, max_new_tokens=60, detector=few)
