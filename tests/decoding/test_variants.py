"""Which variant of its key each text is marked with."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from decoding.architectures import prompt, tokenizer
from decoding.running import run
from pairwise import pairwise
from scipy import stats

import caw
from caw.decoding.request import Request, requests_for
from caw.decoding.row_settings import RowSettings
from caw.decoding.sampling import variant_of
from caw.detectable.attempts import seed_of
from caw.detection import Detector

MARK = caw.EXP(key=11, strength="scale", context_width=3, variants=64)
SAMPLED = {"do_sample": True, "temperature": 1.3}


def test_seeds_in_a_row_and_equal_prompts_have_variants_of_their_own() -> None:
    ids = [4, 8, 15]
    first = variant_of(ids, 7, 0, 64)
    assert [variant_of(ids, 7 + i, 0, 64) for i in range(64)] == [(first + i) % 64 for i in range(64)]
    assert len({request.variant(64) for request in requests_for([ids] * 5, [9] * 5, [RowSettings(seed=3)] * 5)}) == 5
    assert Request(ids, 9, RowSettings(seed=2**64 - 1)).variant(1) == 0


def test_prompts_and_drawn_seeds_spread_evenly() -> None:
    """Without a seed of the caller's one is drawn: pairs share a variant with chance 1 / V. False-alarm rate 1e-6."""
    rng = np.random.default_rng(2)
    counts = np.zeros(64)
    for number in range(20_000):
        counts[variant_of([number % 200, 5], int(rng.integers(0, 2**63)), 0, 64)] += 1
    assert stats.chisquare(counts).pvalue > 1e-6
    by_prompt = np.bincount([variant_of([number], 0, 0, 64) for number in range(20_000)], minlength=64)
    assert stats.chisquare(by_prompt).pvalue > 1e-6


def test_no_two_of_three_seeds_give_one_text(llama: Any) -> None:
    """100 prompts; under one variant the texts of all seeds are the same until a context repeats."""
    prompts = [[1 + number % 90, 3 + number // 90, 7] for number in range(100)]
    by_seed = [run(llama, prompts, MARK, seed=seed, max_new_tokens=12, **SAMPLED).tokens for seed in (5, 6, 7)]
    for texts in zip(*by_seed, strict=True):
        assert len({tuple(text) for text in texts}) == 3
    one = dataclasses.replace(MARK, variants=1)
    same = [run(llama, prompts[:20], one, seed=seed, max_new_tokens=12, **SAMPLED).tokens for seed in (5, 6)]
    assert sum(a == b for a, b in zip(*same, strict=True)) > 15


def test_texts_without_seeds_are_equal_as_often_as_variants_are(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two texts of a prompt are one where both drew the same of V = 4 variants: 1 in 4 of 400 pairs, by a binomial test
    of false-alarm rate 1e-6. They are too short for a context to repeat, and else alike once in about 10^8."""
    draws = random.Random(5)
    monkeypatch.setattr("caw.decoding.request.secrets.randbits", draws.getrandbits)
    mark, prompts = dataclasses.replace(MARK, variants=4), [[1 + n % 90, 3 + n // 90, 7] for n in range(400)]
    drawn: dict[str, Any] = {"seed": None, "max_new_tokens": 6, **SAMPLED}
    first, second = (run(llama, prompts, mark, **drawn).tokens for _ in range(2))
    alike = sum(a == b for a, b in zip(first, second, strict=True))
    assert stats.binomtest(alike, len(prompts), 1 / 4).pvalue > 1e-6
    assert min(stats.binomtest(alike, len(prompts), share).pvalue for share in (1 / 2, 1 / 16)) < 1e-6, "it can tell"


@pytest.mark.parametrize("strength", ["scale", "top_k"])
@pytest.mark.parametrize("kernels", [None, "reference"])
def test_a_text_is_that_of_its_sub_key(llama: Any, strength: Any, kernels: str | None) -> None:
    """By kernels and by references, with keys of rows beside it."""
    from caw import ops

    mark = dataclasses.replace(MARK, strength=strength)
    prompts, own = [prompt(9), prompt(1, 2), prompt(9)], [None, "other", None]
    rows = [RowSettings(max_new_tokens=12, seed=4, key=key, **SAMPLED) for key in own]
    chosen = ops.references() if kernels else None
    done = run(llama, prompts, mark, rows=rows, kernels=chosen)
    for place, (ids, key, row) in enumerate(zip(prompts, own, rows, strict=True)):
        keyed = mark if key is None else mark.with_key(key)
        number = variant_of(ids, 4, int(place == 2), 64)
        alone = dataclasses.replace(row, key=keyed.variant_key(number))
        plain = dataclasses.replace(mark, variants=1)
        given = [prompt(9)] * 2 if place == 2 else [ids]  # the same stream of draws
        single = run(llama, given, plain, rows=[alone] * len(given), kernels=chosen).tokens[-1]
        assert done.tokens[place] == single
    assert run(llama, prompts, mark, rows=rows, fixed=True).tokens == done.tokens


def test_attempts_at_a_text_are_its_variants() -> None:
    """A test that no text passes: as many attempts as variants, or as asked for, each another text, and no target."""
    from caw.detectable.efforts import Effort, efforts, steered
    from caw.settings import Settings

    for variants, asked, made in ((1, 4, 1), (2, 4, 2), (64, 4, 4)):
        mark = dataclasses.replace(MARK, variants=variants)
        settings = Settings(detectable_at=1e-3, max_attempts=asked)
        assert efforts(mark, caw.FixedStrength(), settings) == [Effort(1.0, 0.0)] * made
    policy = caw.FixedStrength()
    assert steered(policy, Detector(None, MARK)) is policy


@pytest.mark.parametrize(
    "variants, attempts, seed", pairwise([2, 3, 5, 16, 53, 64, 1000, 1024], [1, 2, 4, 7], [0, 1, 12345, 2**64 - 1])
)
def test_attempts_at_texts_of_consecutive_seeds_take_different_variants(
    variants: int, attempts: int, seed: int
) -> None:
    """Of 64 variants the fourth attempt took the first one of the choice before; of 3, 5, 9, ... two attempts at one
    text took the same."""
    attempts = min(attempts, variants)
    texts = range(variants // attempts)
    seeds = [[seed_of(seed, number, attempts, variants) + text for number in range(attempts)] for text in texts]
    assert len({each % variants for of_text in seeds for each in of_text}) == attempts * len(texts)
    assert seeds[0][0] == seed and all(0 <= each < 2**64 for each in seeds[0])


def test_choices_that_are_all_tried_again_differ(llama: Any) -> None:
    """A server's `n` choices under `detectable_at`: of three answers that were not found, two were the same text."""
    out = caw.generate(
        llama, tokenizer(), [prompt(9)] * 16, watermark=caw.Recommended(5), do_sample=True, top_k=2, seed=3,
        max_new_tokens=16, detectable_at=1e-9, max_attempts=4, progress=False,
    )  # fmt: skip
    assert [receipt.attempts for receipt in out.receipts or []] == [4] * 16
    assert len({receipt.variant for receipt in out.receipts or []}) == 16
    assert len({tuple(ids) for ids in out.sequences}) == 16


@pytest.mark.parametrize("watermark", [caw.Recommended(5, variants=16), caw.EXP(5, strength="scale", variants=16)])
def test_a_retried_text_is_found_under_a_later_sub_key(llama: Any, watermark: Any) -> None:
    """With the two likeliest tokens to choose from and 24 tokens, some texts are found and others not."""
    options: dict[str, Any] = {
        "watermark": watermark, "do_sample": True, "top_k": 2, "max_new_tokens": 24, "detectable_at": 2e-3,
        "progress": False,
    }  # fmt: skip
    ids, race = prompt(9), watermark.drawn if isinstance(watermark, caw.Recommended) else watermark
    retried = 0
    for seed in range(12):
        once = caw.generate(llama, tokenizer(), [ids], seed=seed, max_attempts=1, **options)
        out = caw.generate(llama, tokenizer(), [ids], seed=seed, max_attempts=6, **options)
        [first], [receipt] = once.receipts or [], out.receipts or []
        assert first is not None and receipt is not None
        assert (first.variant, receipt.variants) == (variant_of(ids, seed, 0, 16), 16)
        if first.detected or not receipt.detected:
            assert first.detected is (receipt.attempts == 1)
            continue
        retried += 1
        last = seed_of(seed, receipt.attempts - 1, 6, 16)
        assert receipt.attempts > 1 and receipt.variant == variant_of(ids, last, 0, 16) != first.variant
        under = dataclasses.replace(race, key=race.variant_key(receipt.variant), variants=1)
        own = caw.generate(
            llama, tokenizer(), [ids], watermark=under, do_sample=True, top_k=2, seed=last, max_new_tokens=24,
            progress=False,
        )  # fmt: skip
        assert own.sequences == out.sequences, "the text is that of this sub-key"
        result = caw.detect(out.texts[0], tokenizer(), watermark, fpr=2e-3)
        assert result.is_watermarked and result.variant == receipt.variant
        assert result.p_value == receipt.p_value < first.p_value
    assert retried >= 2
