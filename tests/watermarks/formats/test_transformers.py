"""format="transformers": what transformers' own processor writes and its own detector reads, token for token."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from decoding.running import run
from pairwise import pairwise
from tiny import tiny_model
from transformers import WatermarkDetector, WatermarkingConfig, WatermarkLogitsProcessor

import caw
from caw.testing import assert_close
from caw.watermarks import KGW
from caw.watermarks.formats.seeding import key_times

VOCABULARY = 97
SCHEMES = [("lefthash", 1), ("lefthash", 3), ("selfhash", 1), ("selfhash", 2), ("selfhash", 4)]
DEFAULT_KEY = 15485863


def config_of(watermark: KGW) -> Any:
    return WatermarkingConfig(
        greenlist_ratio=watermark.gamma,
        bias=watermark.delta,
        hashing_key=watermark.secret,
        seeding_scheme=watermark.seeding,
        context_width=watermark.context_width,
    )


def processor_of(watermark: KGW, vocab_size: int) -> Any:
    return WatermarkLogitsProcessor(vocab_size=vocab_size, device="cpu", **config_of(watermark).to_dict())


@pytest.fixture(scope="module")
def model() -> Any:
    model = tiny_model(VOCABULARY)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def theirs(model: Any, prompt: list[int], watermark: KGW, count: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        watermarking_config=config_of(watermark),
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    "scheme, key, branching", pairwise(SCHEMES, [DEFAULT_KEY, 7, 2**40 + 12345], ["tree", "sequential"])
)
def test_generation_equals_transformers_token_for_token(
    model: Any, scheme: tuple[str, int], key: int, branching: Any
) -> None:
    """A prompt of one token is shorter than some widths: nothing is marked until there is enough context."""
    seeding, width = scheme
    watermark = KGW(key=key, delta=3.0, gamma=0.3, seeding=seeding, context_width=width, format="transformers")
    prompts = [[5], [7, 7], [11, 3, 96, 0, 2], list(range(20))]
    out = run(model, prompts, watermark, max_new_tokens=20, branching=branching).tokens
    expected = [theirs(model, prompt, watermark, 20) for prompt in prompts]
    assert out == expected
    plain = run(model, prompts, max_new_tokens=20).tokens
    assert sum(a != b for a, b in zip(expected, plain, strict=True)) >= 2, "the watermark must change something"


@pytest.mark.parametrize("seeding, width", SCHEMES)
def test_their_detector_reads_our_text_and_counts_what_we_count(model: Any, seeding: str, width: int) -> None:
    watermark = KGW(key=99, delta=8.0, gamma=0.25, seeding=seeding, context_width=width, format="transformers")
    (ids,) = run(model, [[3, 1, 4, 1, 5]], watermark, max_new_tokens=120).tokens
    config = copy.deepcopy(model.config)
    config.bos_token_id = VOCABULARY  # a text that begins with theirs would lose its first token
    found = WatermarkDetector(config, "cpu", config_of(watermark))(torch.tensor([ids]), return_dict=True)
    ours = caw.detect(ids, None, watermark.with_vocabulary(VOCABULARY), mode="compat")
    assert ours.num_scored == found.num_tokens_scored[0] and ours.score == found.num_green_tokens[0]
    assert_close(ours.z_score, found.z_score[0], "float64")
    assert bool(found.prediction[0]) and ours.z_score > 3
    if abs(WatermarkDetector._compute_pval(None, np.array([1.0]))[0] - 0.15865525393145707) < 1e-12:  # not in 5.17
        assert_close(ours.p_value, found.p_value[0], "tail")
    exact = caw.detect(ids, None, watermark.with_vocabulary(VOCABULARY))
    assert exact.num_scored <= ours.num_scored and exact.is_watermarked


@pytest.mark.parametrize("seeding, width", SCHEMES)
def test_lists_and_marked_logits_equal_their_processor(seeding: str, width: int) -> None:
    """Large token ids make products that wrap int64, so that negative ones win the minimum."""
    vocab_size = 2003
    watermark = KGW(
        key=2**61 + 3 if seeding == "lefthash" else 2**55 + 1, gamma=0.4, seeding=seeding, context_width=width,
        format="transformers", vocab_size=vocab_size,
    )  # fmt: skip
    processor = processor_of(watermark, vocab_size)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, vocab_size, (6, 6), generator=generator)
    ours = watermark.green_vocabulary(rows[:, 6 - watermark.window :], vocab_size)
    for row, mask in zip(rows, ours, strict=True):
        if seeding == "lefthash":
            expected = torch.zeros(vocab_size, dtype=torch.bool)
            expected[processor._get_greenlist_ids(row)] = True
        else:
            tokens = range(0, vocab_size, 97)
            expected = mask.clone()
            for token in tokens:
                whole = torch.cat([row, torch.tensor([token])])
                expected[token] = bool(token in processor._get_greenlist_ids(whole))
        assert torch.equal(mask, expected)


def test_selfhash_under_sampling_tests_the_likeliest_tokens_before_the_noise() -> None:
    """The processor sees the warped logits; the draw comes after it."""
    from caw.record import Record
    from caw.watermarks import Position

    vocab_size = 512
    watermark = KGW(key=5, delta=2.0, seeding="selfhash", context_width=3, format="transformers", vocab_size=vocab_size)
    processor = processor_of(watermark, vocab_size)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        warped = torch.randn(3, vocab_size, generator=generator) * 2
        noise = -torch.log(-torch.log(torch.rand(3, vocab_size, generator=generator).clamp_min(1e-9)))
        context = torch.randint(0, vocab_size, (3, 3), generator=generator)
        record = Record.from_logits(warped + noise)
        race = warped.gather(1, record.ids)
        ladder = watermark.ladder(Position(record, race, warped + noise, context, warped), 1.0)
        chosen = ladder.candidates.gather(1, ladder.select(torch.ones(3))[:, None])[:, 0]
        marked = processor(context, warped.clone())
        assert torch.equal(chosen, (marked + noise).argmax(dim=1))


@pytest.mark.parametrize("key", [1, 15_485_863, 2**32 - 1, 2**40 + 12345, 2**62 + 2**31 + 7, 2**63 - 1])
def test_products_are_those_of_unbounded_integers(key: int) -> None:
    """Products of more than 64 bits too, which they reduce modulo 2^64 - 1."""
    values = [0, 1, 2, 3, 151_935, 2**31 - 1, 2**32, 2**33 + 5, 2**36 - 1]
    for modulus in (2**64 - 1, None):
        found = key_times(key, torch.tensor([values]), max(values) + 1, modulus)
        expected = [key * v % (modulus or 1 << 200) & 0xFFFFFFFF for v in values]
        assert found.tolist() == [expected]
    # the greatest remainder, which stands for 0
    assert key_times((2**64 - 1) // 5, torch.tensor([5]), 6).tolist() == [0]


def test_lists_of_token_zero_belong_to_every_key_and_are_no_evidence() -> None:
    """lefthash seeds with key * 0; the exact mode leaves such tokens out, the compatible one counts them."""
    ids = [0, 5, 0, 6, 7]
    by_key = [KGW(key=k, format="transformers", vocab_size=1000) for k in (3, 4)]
    lists = [w.green_vocabulary(torch.tensor([[0]]), 1000) for w in by_key]
    assert torch.equal(*lists)
    exact, compat = (caw.detect(ids, None, by_key[0], mode=m) for m in ("exact", "compat"))
    assert [s is not None for s in exact.token_scores] == [False, False, True, False, True]
    assert [s is not None for s in compat.token_scores] == [False, True, True, True, True]


def test_short_texts_have_no_evidence() -> None:
    watermark = KGW(key=3, seeding="selfhash", context_width=4, format="transformers", vocab_size=50)
    for length, counted in itertools.product(range(6), ["exact", "compat"]):
        result = caw.detect([list(range(1, length + 1))], None, watermark, mode=counted)[0]
        assert result.num_scored == max(0, length - 3)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"seeding": "minhash"}, "seeding of format 'transformers' must be one of lefthash, selfhash, got 'minhash'"),
    ({"key": 2**63}, r"requires a key below 2\*\*63"),
    ({"key": 2**32}, "low 32 bits"),
    ({"vocab_size": 1}, "vocab_size must be an integer in"),
    ({"vocab_size": 3, "gamma": 0.1}, "must leave both lists of 3 tokens non-empty"),
    ({"format": "huggingface"}, "format must be one of native, transformers"),
]


@pytest.mark.parametrize("change, message", BAD)
def test_bad_parameters(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KGW(**{"key": 3, "format": "transformers", **change})


def test_reading_needs_the_size_of_the_vocabulary() -> None:
    with pytest.raises(ValueError, match="requires vocab_size, the size of the model's logits, got None"):
        caw.detect([1, 2, 3], None, KGW(key=3, format="transformers"))


def test_context_aware_marking_in_this_format(model: Any) -> None:
    """CAW with the lists of transformers: all branchings alike, theta 0 the model's own text, its detector reads it."""
    from caw.evaluator import Evaluator, FeatureSpec
    from caw.policies import CapacityPolicy

    torch.manual_seed(2)
    evaluator = Evaluator(FeatureSpec(), hidden=8)
    for seeding, width in (SCHEMES[0], SCHEMES[-1]):
        watermark = KGW(key=9, delta=6.0, seeding=seeding, context_width=width, format="transformers")
        prompts, policy = [[5, 6, 7, 8], [11, 3, 96, 0, 2]], CapacityPolicy(evaluator, theta=0.9, beta=2.0)
        tree = run(model, prompts, watermark, policy, max_new_tokens=60)
        for branching in ("sequential", "batch"):
            assert run(model, prompts, watermark, policy, max_new_tokens=60, branching=branching).tokens == tree.tokens
        unmarked = run(model, prompts, watermark, CapacityPolicy(evaluator, theta=0.0), max_new_tokens=60)
        assert unmarked.tokens == run(model, prompts, max_new_tokens=60).tokens
        config = copy.deepcopy(model.config)
        config.bos_token_id = VOCABULARY
        detector = WatermarkDetector(config, "cpu", config_of(watermark))
        for ids in tree.tokens:
            found = detector(torch.tensor([ids]), return_dict=True)
            ours = caw.detect(ids, None, watermark.with_vocabulary(VOCABULARY), mode="compat")
            assert_close(ours.z_score, found.z_score[0], "float64")
            assert ours.z_score > 2
