"""Unmarked text: p-values are uniform.

The probability in a p-value is over the key. So p-values are exactly uniform when each text meets a key of its own;
and, for one fixed key, when evidence that an earlier text gave is not counted again, because texts that share phrases
share evidence. Both are tested. Discrete p-values are made continuous exactly: P(score > s) + U * P(score = s).
Every test has false-alarm rate 1e-6.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from caw.detection import Detector
from caw.detection.evidence import first_occurrences
from caw.detection.statistics import binomial_tails, tails
from caw.watermarks import EXP, KGW, Unigram, Watermark
from caw.watermarks.green_list import GreenList

FALSE_ALARM = 1e-6
FIXED_KEYS = [0, 2**64 - 1, "a secret"]
BUILDERS: dict[str, Callable[[Any], Watermark]] = {
    "lefthash": lambda key: KGW(key=key),
    "selfhash": lambda key: KGW(key=key, seeding="selfhash", gamma=0.5),
    "unigram": lambda key: Unigram(key=key),
    "exp": lambda key: EXP(key=key),
    "exp1": lambda key: EXP(key=key, context_width=1),
}


def continuous(watermark: Watermark, scores: np.ndarray, counts: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Exactly uniform under the null: the p-value itself for races, its randomised form for green lists."""
    p = tails(watermark, scores, counts).p_values
    if not isinstance(watermark, GreenList):
        return p
    above = binomial_tails(scores + 1, counts, watermark.green_fraction).p_values
    above = np.where(scores >= counts, 0.0, above)
    return above + u * (p - above)


def repetitive_texts(number: int, vocab_size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, vocab_size, rng.integers(20, 150)) for _ in range(number)]


def p_values_of_fresh_keys(
    build: Callable[[Any], Watermark], texts: Sequence[np.ndarray], mode: Any = "exact"
) -> tuple[np.ndarray, np.ndarray]:
    """(continuous, as reported) p-values of texts that each meet a key of their own."""
    rng = np.random.default_rng(6)
    found, reported = [], []
    for text in texts:
        watermark = build(int(rng.integers(0, 2**63)))
        (result,) = Detector(None, watermark, mode=mode).detect_ids([text])
        counted = np.array([result.score]), np.array([result.num_scored])
        found.append(continuous(watermark, *counted, rng.random(1))[0])
        reported.append(result.p_value)
    return np.array(found), np.array(reported)


def p_values_of_one_key(watermark: Watermark, texts: Sequence[np.ndarray]) -> np.ndarray:
    """Continuous p-values of texts that meet one key and count only evidence that no earlier text gave."""
    gap = np.full(watermark.window, -1)
    stream = np.concatenate([part for text in texts for part in (gap, text)])
    scored = watermark.score_tokens(torch.from_numpy(stream))
    evidence, values = scored.evidence.numpy()[stream >= 0], scored.values.numpy()[stream >= 0]
    owner = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    new = first_occurrences(np.zeros_like(owner), evidence, np.ones(len(owner), dtype=bool))
    counts = np.bincount(owner[new], minlength=len(texts))
    scores = np.bincount(owner[new], weights=values[new], minlength=len(texts))
    some = counts > 0
    return continuous(watermark, scores[some], counts[some], np.random.default_rng(7).random(int(some.sum())))


def check_uniform(p: np.ndarray) -> None:
    assert stats.kstest(p, "uniform").pvalue > FALSE_ALARM


def check_rates(reported: np.ndarray) -> None:
    """At most the promised share of unmarked texts is called marked."""
    for fpr in (0.1, 0.01, 1e-3):
        assert stats.binomtest(int((reported <= fpr).sum()), len(reported), fpr, "greater").pvalue > FALSE_ALARM


@pytest.mark.parametrize("name", BUILDERS)
def test_a_key_for_each_text(name: str) -> None:
    p, reported = p_values_of_fresh_keys(BUILDERS[name], repetitive_texts(300, 12))
    check_uniform(p)
    check_rates(reported)


def test_the_test_can_tell_when_evidence_is_counted_again() -> None:
    """The same texts with every token counted: far from uniform, which is why "exact" is the default."""
    p, reported = p_values_of_fresh_keys(BUILDERS["lefthash"], repetitive_texts(300, 4), mode="compat")
    assert stats.kstest(p, "uniform").pvalue < 1e-9
    assert (reported <= 0.01).mean() > 0.05


@pytest.mark.parametrize("key", FIXED_KEYS, ids=str)
@pytest.mark.parametrize("name", BUILDERS)
def test_one_key_for_all_texts(name: str, key: Any) -> None:
    check_uniform(p_values_of_one_key(BUILDERS[name](key), repetitive_texts(300, 3000)))


@pytest.fixture(scope="module")
def human_texts(data_dir: Path, demo_tokenizer: Any) -> list[np.ndarray]:
    with open(data_dir / "gsm8k" / "train.jsonl") as file:
        answers = [json.loads(line)["answer"] for line in file][:2000]
    return [np.array(ids) for ids in demo_tokenizer(answers, add_special_tokens=False)["input_ids"]]


@pytest.fixture(scope="module")
def model_texts() -> list[np.ndarray]:
    return [np.array(ids) for ids in json.loads(Path(__file__).with_name("model_texts.json").read_text())]


@pytest.fixture(params=["human_texts", "model_texts"])
def real_texts(request: pytest.FixtureRequest) -> list[np.ndarray]:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", BUILDERS)
def test_real_text_with_a_key_for_each_text(name: str, real_texts: list[np.ndarray]) -> None:
    p, reported = p_values_of_fresh_keys(BUILDERS[name], real_texts[:1000])
    check_uniform(p)
    check_rates(reported)


@pytest.mark.parametrize("key", FIXED_KEYS, ids=str)
@pytest.mark.parametrize("name", BUILDERS)
def test_real_text_with_one_key_for_all_texts(name: str, key: Any, real_texts: list[np.ndarray]) -> None:
    check_uniform(p_values_of_one_key(BUILDERS[name](key), real_texts))
