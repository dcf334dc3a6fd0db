"""Perplexity against its definition, padding included, and the tests that compare two ways of generating."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_model, tiny_tokenizer

from caw.testing import assert_close
from caw_lab.evaluation.metrics.perplexity import compare_accuracy, compare_perplexity, perplexities

TEXTS = ["the sky is blue", "a", "", "light and more light because the air scatters it, which a few words say", "words"]
PROMPTS = ["a small text", "the", "sky", "a small model and its small tokenizer", "b"]


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    tokenizer = tiny_tokenizer(chat=False)
    return tiny_model(len(tokenizer), positions=128), tokenizer


def alone(model: Any, ids: list[int], first: int) -> np.ndarray:
    logits = model(torch.tensor([ids])).logits[0].double().log_softmax(1)
    return np.array([logits[i - 1, ids[i]].item() for i in range(first, len(ids))])


def test_perplexity_is_exp_of_the_mean(pair: tuple[Any, Any]) -> None:
    model, tokenizer = pair
    found = perplexities(model, tokenizer, TEXTS, PROMPTS, batch_tokens=60)
    for text, prompt, result in zip(TEXTS, PROMPTS, found, strict=True):
        ids, before = tokenizer(text)["input_ids"], tokenizer(prompt)["input_ids"]
        assert result.num_tokens == len(ids)
        if not ids:
            assert result.given_prompt is None and result.alone is None
            continue
        assert result.given_prompt is not None
        given = alone(model, before + ids, len(before))
        assert len(given) == len(ids)  # the text's tokens, all of them, and none of the prompt's
        assert_close(math.log(result.given_prompt), -given.mean(), "forward")
        if len(ids) == 1:
            assert result.alone is None  # nothing comes before its only token
        else:
            assert result.alone is not None
            assert_close(math.log(result.alone), -alone(model, ids, 1).mean(), "forward")
    assert perplexities(model, tokenizer, TEXTS[:1])[0].given_prompt is None


def test_a_begin_token_lets_the_first_token_count(pair: tuple[Any, Any]) -> None:
    model, tokenizer = pair[0], tiny_tokenizer(chat=False)
    tokenizer.add_special_tokens({"bos_token": "<|end|>"})
    (result,) = perplexities(model, tokenizer, ["a"])
    assert result.alone is not None
    ids = [tokenizer.bos_token_id, *tokenizer("a")["input_ids"]]
    assert_close(math.log(result.alone), -alone(model, ids, 1).mean(), "forward")


def test_long_prompts_lose_their_beginning(pair: tuple[Any, Any]) -> None:
    model, tokenizer = pair
    prompt = "a small text about a small model " * 30
    (result,) = perplexities(model, tokenizer, ["the sky is blue"], [prompt])
    ids = tokenizer("the sky is blue")["input_ids"]
    before = tokenizer(prompt)["input_ids"][-(128 - len(ids)) :]
    assert result.given_prompt is not None
    assert_close(math.log(result.given_prompt), -alone(model, before + ids, len(before)).mean(), "forward")
    with pytest.raises(ValueError, match="128 positions"):
        perplexities(model, tokenizer, [prompt])
    with pytest.raises(ValueError, match="a prompt for each of 1 texts, got 2"):
        perplexities(model, tokenizer, ["a"], ["b", "c"])


def test_compare_perplexity() -> None:
    rng = np.random.default_rng(1)
    base = {f"q/{i}": float(np.exp(rng.normal(1, 0.7))) for i in range(120)}
    same = compare_perplexity(base, dict(base))
    assert same.n == 120 and same.wilcoxon == 1.0 and same.mann_whitney > 0.99 and same.mcnemar is None
    # a shift far smaller than the spread: seen by the pairs, not by the boxes
    shifted = {k: v * float(np.exp(0.05 + rng.normal(0, 0.02))) for k, v in base.items()}
    found = compare_perplexity(base, shifted)
    assert found.wilcoxon < 1e-10 and found.mann_whitney > 0.2
    assert compare_perplexity(base, {"other": 1.0}).n == 0
    assert math.isnan(compare_perplexity(base, {}).wilcoxon)


def test_compare_accuracy() -> None:
    ids = [f"q/{i}" for i in range(40)]
    plain = {q: float(i < 20) for i, q in enumerate(ids)}
    marked = {q: float(i < 12 or i == 39) for i, q in enumerate(ids)}
    found = compare_accuracy(plain, marked)
    # 8 lost, 1 won: 2 * sum_{k<=1} C(9, k) / 2^9
    assert found.mcnemar == pytest.approx(2 * (1 + 9) / 512)
    assert compare_accuracy(plain, plain).mcnemar == 1.0
    several = {q: (i % 5) / 5 for i, q in enumerate(ids)}
    assert compare_accuracy(plain, several).mcnemar is None and 0 <= compare_accuracy(plain, several).wilcoxon <= 1
