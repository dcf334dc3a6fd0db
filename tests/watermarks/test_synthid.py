"""SynthID-Text against transformers' processor: bits, masks, generation; and its p-values under the null."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from decoding.running import run
from scipy import stats
from tiny import tiny_model
from transformers import SynthIDTextWatermarkingConfig, SynthIDTextWatermarkLogitsProcessor

import caw
from caw.policies import FixedStrength
from caw.record import Record
from caw.testing import assert_close
from caw.watermarks import Position, SynthID

VOCABULARY = 97
KEYS = [654, 400, 836, 123, 340, 443, 597, 160, 57, 2**40 + 5, 7, 8]


def processor_of(watermark: SynthID) -> Any:
    return SynthIDTextWatermarkLogitsProcessor(
        ngram_len=watermark.ngram_len, keys=list(watermark.keys), sampling_table_size=watermark.sampling_table_size,
        sampling_table_seed=watermark.sampling_table_seed, context_history_size=1024, device=torch.device("cpu"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    model = tiny_model(VOCABULARY)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


@pytest.mark.parametrize("ngram_len", [2, 5])
@pytest.mark.parametrize("keys", [KEYS, "a secret"])
def test_generation_equals_transformers_token_for_token(model: Any, ngram_len: int, keys: Any) -> None:
    watermark = SynthID(keys, ngram_len=ngram_len)
    config = SynthIDTextWatermarkingConfig(keys=list(watermark.keys), ngram_len=ngram_len)
    prompts = [[5, 6], [7, 7, 3], [11, 3, 96, 0, 2], [40, 41]]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, watermarking_config=config
        )
        expected.append(out[0, len(prompt) :].tolist())
    assert run(model, prompts, watermark, max_new_tokens=40).tokens == expected
    assert expected != run(model, prompts, max_new_tokens=40).tokens


@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0, 2.0])
def test_strength_is_the_number_of_layers(strength: float) -> None:
    """What the ladder chooses is what a processor with that many keys and the same noise chooses."""
    watermark = SynthID(KEYS)
    layers = min(len(KEYS), int(np.floor(np.float32(strength) * len(KEYS) + 0.5)))
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        warped = torch.randn(4, 300, generator=generator) * 2
        warped[:, 50:60] = -torch.inf
        noise = -torch.log(-torch.log(torch.rand(4, 300, generator=generator).clamp_min(1e-9)))
        scores = warped + noise
        context = torch.randint(-1, 300, (4, 4), generator=generator)
        record = Record.from_logits(scores)
        ladder = watermark.ladder(Position(record, warped.gather(1, record.ids), scores, context, warped), strength)
        chosen = ladder.candidates.gather(1, ladder.select(torch.full((4,), strength))[:, None])[:, 0]
        if not layers:
            assert torch.equal(chosen, scores.argmax(dim=1))
            continue
        processor = processor_of(SynthID(KEYS[:layers]))
        tokens = torch.arange(300).expand(4, -1)
        keys, _ = processor._compute_keys(context.clamp_min(0), tokens)
        marked = processor.update_scores(warped, processor.sample_g_values(keys))
        assert torch.equal(chosen, (marked + noise).argmax(dim=1))


@pytest.mark.parametrize("reading", ["mean", "weighted"])
def test_reading_equals_transformers_bits_and_masks(reading: Any) -> None:
    watermark = SynthID(KEYS, reading=reading)
    ids = torch.randint(0, 6, (120,))
    processor = processor_of(watermark)
    g = processor.compute_g_values(ids[None])[0].double()
    mask = processor.compute_context_repetition_mask(ids[None])[0].bool()
    weights = torch.ones(len(KEYS)) if reading == "mean" else torch.linspace(10, 1, len(KEYS))
    weights = weights.double() * len(KEYS) / weights.double().sum()
    expected = ((g * weights).mean(dim=1) * mask).sum() / mask.sum()
    result = caw.detect(ids.tolist(), None, watermark, mode="compat")
    assert result.num_scored == int(mask.sum())
    assert_close(result.score / result.num_scored, float(expected), "float32")
    assert [s is not None for s in result.token_scores] == [False] * 4 + mask.tolist()


def test_p_values() -> None:
    watermark = SynthID(KEYS, reading="mean")
    ids = np.random.default_rng(0).integers(0, 500, 80).tolist()
    result = caw.detect(ids, None, watermark)
    bits = round(result.score * len(KEYS))
    expected = stats.binom.sf(bits - 1, result.num_scored * len(KEYS), watermark.bit_fraction)
    assert_close(result.p_value, expected, "tail")
    weighted = caw.detect(ids, None, SynthID(KEYS))
    rng, watermark = np.random.default_rng(5), SynthID(KEYS)
    draws = rng.binomial(weighted.num_scored, watermark.bit_fraction, (100_000, len(KEYS))) @ watermark.layer_weights
    at_least = int((draws >= round(weighted.score * watermark.layer_weights.sum())).sum())
    assert stats.binomtest(at_least, len(draws), weighted.p_value).pvalue > 1e-6


@pytest.mark.slow
def test_p_values_of_fresh_keys_are_uniform() -> None:
    rng = np.random.default_rng(1)
    for reading in ("mean", "weighted"):
        found = []
        for _ in range(200):
            keys = rng.integers(0, 2**62, 10).tolist()
            found.append(caw.detect(rng.integers(0, 40, 60).tolist(), None, SynthID(keys, reading=reading)).p_value)
        assert stats.kstest(found, "uniform").pvalue > 1e-6


def test_marked_text_is_found(model: Any) -> None:
    watermark = SynthID("secret")
    (marked,) = run(model, [[5, 6]], watermark, max_new_tokens=80, do_sample=True).tokens
    (half,) = run(model, [[5, 6]], watermark, FixedStrength(0.2), max_new_tokens=80, do_sample=True).tokens
    assert caw.detect(marked, None, watermark).p_value < 1e-6
    assert caw.detect(marked, None, watermark).p_value < caw.detect(half, None, watermark).p_value
    assert not caw.detect(marked, None, SynthID("other")).is_watermarked


def test_keys_stay_secret_and_bad_parameters_are_refused() -> None:
    watermark = SynthID(KEYS)
    assert "654" not in repr(watermark) and watermark.depth == len(KEYS) and len(watermark.key_id) == 8
    assert SynthID("a").keys != SynthID("b").keys and SynthID("a").keys == SynthID("a").keys
    for bad in ({"ngram_len": 1}, {"depth": 0}, {"reading": "sum"}, {"sampling_table_size": 1}):
        with pytest.raises(ValueError):
            SynthID("a", **bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        SynthID([1, "x"])  # type: ignore[list-item]


@pytest.mark.slow
def test_demo_model_token_for_token(demo: tuple[Any, Any]) -> None:
    model, tokenizer = demo
    watermark = SynthID(KEYS[:9])
    config = SynthIDTextWatermarkingConfig(keys=KEYS[:9], ngram_len=5)
    prompt = tokenizer("Tell me about the history of tea.")["input_ids"]
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False, watermarking_config=config
    )[0, len(prompt) :].tolist()
    new = caw.generate(model, tokenizer, [prompt], watermark=watermark, max_new_tokens=30).sequences[0]
    assert new == out[: len(new)] and len(new) > 5


@pytest.mark.parametrize("do_sample", [False, True])
def test_look_ahead_with_an_evaluator(model: Any, do_sample: bool) -> None:
    """CAW over tournament layers: every branching writes the same text, theta 0 the model's own."""
    from caw.evaluator import Evaluator, FeatureSpec
    from caw.policies import CapacityPolicy

    torch.manual_seed(1)
    evaluator = Evaluator(FeatureSpec(), hidden=8)
    watermark, prompts = SynthID(KEYS), [[5, 6], [7, 7, 3], [11, 3, 96, 0, 2]]
    policy = CapacityPolicy(evaluator, theta=0.9, beta=2.0)
    options: dict[str, Any] = {"max_new_tokens": 30, "do_sample": do_sample, "seed": 3}
    tree = run(model, prompts, watermark, policy, **options)
    assert tree.changed > 5
    for branching in ("sequential", "batch"):
        assert run(model, prompts, watermark, policy, branching=branching, **options).tokens == tree.tokens
    plain = run(model, prompts, **options).tokens
    assert run(model, prompts, watermark, CapacityPolicy(evaluator, theta=0.0, beta=2.0), **options).tokens == plain
    assert tree.tokens != plain
