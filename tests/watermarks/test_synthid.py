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
from caw.watermarks.synthid import MULTIPLIER, shared_places

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


@pytest.mark.parametrize(("ngram_len", "bias"), [(2, 4.0), (2, 8.0), (5, 8.0)])
def test_texts_with_token_0_equal_transformers(model: Any, ngram_len: int, bias: float) -> None:
    """A missing token is 0 there, so behind a text's first 0 a context may have occurred; once it was marked again."""
    watermark, prompts, expected = SynthID(KEYS, ngram_len=ngram_len), [[5, 6], [7, 7, 3], [40, 41]], []
    config = SynthIDTextWatermarkingConfig(keys=KEYS, ngram_len=ngram_len)
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, watermarking_config=config,
            sequence_bias={(0,): bias},
        )  # fmt: skip
        expected.append(out[0, len(prompt) :].tolist())
    for fixed in (False, True):
        options: dict[str, Any] = {"max_new_tokens": 40, "logit_bias": {0: bias}, "fixed": fixed}
        assert run(model, prompts, watermark, **options).tokens == expected
    assert any(0 in tokens and set(tokens) != {0} for tokens in expected)


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
            keys = (rng.integers(0, 2**40, 10) << 16 | rng.permutation(1 << 16)[:10]).tolist()
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
    bad_tables = ({"sampling_table_size": size} for size in (1, 2, 1023, 2**24 + 1))
    for bad in ({"ngram_len": 1}, {"depth": 0}, {"reading": "sum"}, *bad_tables):
        with pytest.raises(ValueError):
            SynthID("a", **bad)  # type: ignore[arg-type]
    for key, kind in ((4711.5, "float"), (True, "bool"), (torch.tensor(4711), "Tensor")):
        with pytest.raises(TypeError, match=f"^each layer key must be an integer, got {kind} at place 1") as caught:
            SynthID([1, key])
        assert "4711" not in str(caught.value)
    with pytest.raises(ValueError, match="at place 0") as refused:
        SynthID([2**64 + 4711])
    assert str(2**64 + 4711) not in str(refused.value)


# modulo 2^64; two layer keys that far apart differ by 3000 behind the multiplication
FAR = 3000 * pow(MULTIPLIER, -1, 1 << 64) % (1 << 64) - (1 << 63)


@pytest.mark.parametrize(
    ("keys", "size"),
    [([1] * 30, 65536), ([5, 9, 5], 65536), ([5, 9, 5 + 3 * 65536], 65536), ([-1, 65535], 65536), ([7, 7 + 1024], 1024),
     ([7, 7], 3000), ([-(2**63), FAR], 3000), ([FAR, -(2**63)], 3000)],
)  # fmt: skip
def test_layers_of_equal_bits_are_refused(keys: list[int], size: int) -> None:
    """Such keys fired on 22 % of random texts at the level .001. The bits are those of transformers' own processor."""
    processor = SynthIDTextWatermarkLogitsProcessor(
        ngram_len=5, keys=keys, sampling_table_size=size, sampling_table_seed=0, context_history_size=4,
        device=torch.device("cpu"),
    )  # fmt: skip
    g = processor.compute_g_values(torch.randint(0, 5000, (1, 300)))[0]
    assert torch.equal(g[:, 0], g[:, -1])
    with pytest.raises(
        ValueError, match=r"different places, got keys \d and \d \(from 0\) that are equal, or equal mod"
    ):
        SynthID(keys, sampling_table_size=size)
    SynthID([keys[0], keys[-1] + 1], sampling_table_size=size)


@pytest.mark.parametrize("size", [1024, 1500, 6144, 65536])
def test_share_of_equal_places(size: int) -> None:
    """Against counting, over n-grams of random hash."""
    rng = np.random.default_rng(0)
    hashes = torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, 4000))
    inverse, half = pow(MULTIPLIER, -1, 1 << 64), (1 << 63) // size * size
    for apart in (1, size * inverse, half * inverse, (1 << 64) - half * inverse, ((1 << 64) - half) * inverse, 0):
        other = (apart + (1 << 63)) % (1 << 64) - (1 << 63)
        places = [torch.remainder((hashes + key) * MULTIPLIER + 1, size) for key in (0, other)]
        equal = int((places[0] == places[1]).sum())
        assert stats.binomtest(equal, 4000, shared_places(0, other, size)).pvalue > 1e-6


def test_keys_from_text_share_no_places() -> None:
    """At random a list of 30 does with probability 435 / 65536, one of 64 in a table of 1024 nearly always."""
    for size, depth, secrets in ((65536, 30, range(300)), (1024, 64, range(5)), (1500, 64, range(5))):
        for secret in secrets:
            keys = SynthID(secret, depth=depth, sampling_table_size=size).keys
            assert len(set(keys)) == depth
            assert not any(shared_places(a, b, size) for i, a in enumerate(keys) for b in keys[:i])


@pytest.mark.parametrize("size", [1024, 1500])
def test_no_more_ngrams_count_than_the_table_has_places(size: int) -> None:
    """Those of equal place share nearly all bits; where the size is no power of two they once all counted."""
    ids = np.random.default_rng(0).integers(0, 50_000, 3 * size)
    result = caw.detect(ids, None, SynthID(1, ngram_len=2, sampling_table_size=size, reading="mean"))
    assert 0.9 * size < result.num_scored <= size


@pytest.mark.parametrize(("size", "seed"), [(1024, 1), (1500, 3), (65536, 0)])
def test_random_texts_are_found_at_the_promised_rate(size: int, seed: int) -> None:
    """At most a share .01 of unmarked texts (false-alarm rate of this test 1e-6)."""
    rng, found, count = np.random.default_rng(1), 0, 250
    for _ in range(count):
        watermark = SynthID(int(rng.integers(0, 2**62)), depth=10, ngram_len=2, sampling_table_size=size,
                            sampling_table_seed=seed, reading="mean")  # fmt: skip
        found += caw.detect(rng.integers(0, 50_000, 500), None, watermark, fpr=0.01).is_watermarked
    assert stats.binomtest(found, count, 0.01, "greater").pvalue > 1e-6


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
    for slots in (1, 3, 13):  # how many tokens are carried says how many steps it takes, and no more
        assert run(model, prompts, watermark, policy, slots=slots, **options).tokens == tree.tokens
    assert run(model, prompts, watermark, policy, slots=2, fixed=True, **options).tokens == tree.tokens
    plain = run(model, prompts, **options).tokens
    assert run(model, prompts, watermark, CapacityPolicy(evaluator, theta=0.0, beta=2.0), **options).tokens == plain
    assert tree.tokens != plain
