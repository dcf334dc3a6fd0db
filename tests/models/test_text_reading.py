"""A finished text read again: the strengths that decoding had, wherever the policy saw the same distributions."""

from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import spread_evaluator
from tiny import tiny_model, tiny_tokenizer

import caw
from caw.models.text_reading import TextReader
from caw.policies import LogitDeltaThreshold, Policy
from caw.testing import assert_close

MARK = caw.KGW(key="read", delta=2.0)
PROMPTS = ["the sky is blue", "a small text about a small model and its small tokenizer, which knows", "x"]


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    tokenizer = tiny_tokenizer()
    return tiny_model(len(tokenizer)), tokenizer


def written(loaded: tuple[Any, Any], policy: Policy, **options: Any) -> Any:
    return caw.generate(*loaded, PROMPTS, watermark=MARK, policy=policy, max_new_tokens=40, progress=False, **options)


@pytest.mark.parametrize("policy", [
    caw.FixedStrength(0.7), caw.EntropyThreshold(3.0), LogitDeltaThreshold(1.0),
], ids=lambda p: type(p).__name__)  # fmt: skip
def test_strengths_are_those_of_decoding(loaded: tuple[Any, Any], policy: Policy) -> None:
    out = written(loaded, policy)
    for prompt, ids, trace in zip(PROMPTS, out.sequences, out.trace, strict=True):
        found = TextReader(loaded[0], policy, loaded[1](prompt)["input_ids"])(np.array(ids))
        assert found.strength.tolist() == pytest.approx(trace.strength)
        # without a mark the text would be the top tokens'
        assert ((found.rank > 0) == (np.array(trace.choice) > 0)).all() and (found.rank > 0).any()
        assert np.isnan(found.capacity).all() and found.greatest == policy.max_strength


@pytest.mark.parametrize(("previous", "following"), [(1, 1), (2, 0), (0, 1)])
def test_capacities_are_those_of_decoding_where_the_text_has_its_own_token(
    loaded: tuple[Any, Any], previous: int, following: int
) -> None:
    policy = caw.CapacityPolicy(spread_evaluator(loaded[0], previous, following), theta=0.9, beta=1.0)
    out, compared, others = written(loaded, policy), 0, 0
    for prompt, ids, trace in zip(PROMPTS, out.sequences, out.trace, strict=True):
        found = TextReader(loaded[0], policy, loaded[1](prompt)["input_ids"])(np.array(ids))
        # decoding looks ahead along a_0, reading along the token that was chosen
        same = np.isfinite(trace.capacity) & ((np.array(trace.choice) == 0) | (following == 0))
        compared += int(same.sum())
        others += int((np.isfinite(trace.capacity) & ~same).sum())
        assert_close(found.capacity[same], np.array(trace.capacity)[same], "capacity")
        assert_close(found.strength[same], np.array(trace.strength)[same], "capacity")
    assert compared > 30 and (others > 5 or following == 0)


def test_what_is_read_of_a_text_depends_on_no_other(loaded: tuple[Any, Any]) -> None:
    policy = caw.EntropyThreshold(2.0)
    texts = [np.array(ids) for ids in written(loaded, policy).sequences]
    prompt = list(range(60))  # long enough to be kept
    reader = TextReader(loaded[0], policy, prompt)
    first = reader(texts[0])
    for text in texts[1:]:
        reader(text)
    for again in (reader(texts[0]), TextReader(loaded[0], policy, prompt)(texts[0])):
        for name in ("logits", "ids", "logsumexp", "entropy", "strength"):
            assert np.array_equal(getattr(again, name), getattr(first, name))
    assert reader._prefix is not None and reader._prefix.length == 56
    with torch.inference_mode():
        plain = loaded[0](torch.tensor([[*prompt, *texts[0].tolist()]])).logits[0, 59:-1]
    assert_close(first.logits, plain.topk(100).values, "forward")
    assert_close(first.logsumexp, plain.logsumexp(1), "forward")


def test_numbers_that_are_none_are_refused(loaded: tuple[Any, Any]) -> None:
    model = tiny_model(len(loaded[1]))
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="the model's logits must be finite, they are not on this text; use float32"):
        TextReader(model, caw.FixedStrength(), [1, 2])(np.array([3, 4]))
