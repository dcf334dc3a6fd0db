"""Attempts at texts that are drawn by a race: each has a seed, and so a beginning, of its own."""

import dataclasses
from itertools import combinations
from typing import Any

import pytest
from decoding.architectures import build, prompt, tokenizer
from pairwise import pairwise
from scipy import stats

import caw
from caw.detectable.attempts import seed_of
from caw.detection import Detector

MARK = caw.EXP(key=5, strength="scale")


@pytest.fixture(scope="module")
def model() -> Any:
    return build("llama")


@pytest.mark.parametrize("seed, attempts", pairwise([0, 1, 12345, 2**64 - 1], [1, 4, 7, 1000]))
def test_attempts_have_seeds_of_their_own(seed: int, attempts: int) -> None:
    """And meet no seed of the choices beside them."""
    seeds = [(seed_of(seed, number) + text) % 2**64 for number in range(attempts) for text in range(64)]
    assert seeds[0] == seed and all(0 <= each < 2**64 for each in seeds) and len(set(seeds)) == len(seeds)


def test_a_race_has_as_many_attempts_as_asked_for_where_it_begins_freely() -> None:
    """Without a free beginning there is one text; no target either way."""
    from caw.detectable.efforts import Effort, efforts, steered
    from caw.settings import Settings

    policy, settings = caw.FixedStrength(), Settings(detectable_at=1e-3, max_attempts=4, do_sample=True)
    for free, made in ((None, 4), (0.5, 4), (0, 1)):
        mark = dataclasses.replace(MARK, free=free)
        assert efforts(mark, policy, settings) == [Effort(1.0, 0.0)] * made
        assert len(efforts(mark, policy, dataclasses.replace(settings, do_sample=False))) == 1
    assert steered(policy, Detector(None, MARK)) is policy


def test_choices_that_are_all_tried_again_differ(model: Any) -> None:
    """A server's `n` choices under `detectable_at`: no more pairs alike than e^-free, at a false-alarm rate of 1e-6."""
    out = caw.generate(
        model, tokenizer(), [prompt(9)] * 16, watermark=caw.Recommended(5), do_sample=True, top_k=2, seed=3,
        max_new_tokens=16, detectable_at=1e-9, max_attempts=4, progress=False,
    )  # fmt: skip
    assert [receipt.attempts for receipt in out.receipts or []] == [4] * 16
    alike = sum(one == other for one, other in combinations(out.sequences, 2))
    assert stats.binomtest(alike, 120, 1 / 64, alternative="greater").pvalue > 1e-6


@pytest.mark.parametrize("watermark", [caw.Recommended(5), MARK], ids=lambda mark: mark.name)
def test_a_retried_text_is_that_of_a_later_seed(model: Any, watermark: Any) -> None:
    """With the two likeliest tokens to choose from and 60 tokens, some texts are found and others not."""
    options: dict[str, Any] = {
        "watermark": watermark, "do_sample": True, "top_k": 2, "max_new_tokens": 60, "progress": False,
    }  # fmt: skip
    tested: dict[str, Any] = {**options, "detectable_at": 1e-2}
    retried = 0
    for seed in range(12):
        once = caw.generate(model, tokenizer(), [prompt(9)], seed=seed, max_attempts=1, **tested)
        out = caw.generate(model, tokenizer(), [prompt(9)], seed=seed, max_attempts=6, **tested)
        [first], [receipt] = once.receipts or [], out.receipts or []
        assert first is not None and receipt is not None
        assert first.subkey is None and receipt.family == ("exp" if watermark.name == "recommended" else None)
        if first.detected or not receipt.detected:
            assert first.detected is (receipt.attempts == 1)
            continue
        retried += 1
        last = seed_of(seed, receipt.attempts - 1)
        own = caw.generate(model, tokenizer(), [prompt(9)], seed=last, **options)
        assert receipt.attempts > 1 and own.sequences == out.sequences != once.sequences
        result = caw.detect(out.texts[0], tokenizer(), watermark, fpr=1e-2)
        assert result.is_watermarked and result.p_value == receipt.p_value < first.p_value
    assert retried >= 2
