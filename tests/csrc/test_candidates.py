"""Compiled ladders, scores and noise against the PyTorch reference: integers equal, on many thousands of cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prf_inputs import key_tensor, mixed_keys

from caw import ops, prf
from caw.ladder import Ladder
from caw.ops_ref.score_tokens_ref import score_tokens_ref
from caw.record import Record
from caw.testing import assert_close
from caw.triton_kernels.enumerate_candidates_ref import enumerate_candidates_ref
from caw.triton_kernels.sampling_noise_ref import sampling_noise_ref
from caw.watermarks import EXP, KGW, Position, Unigram, Watermark

BUILDERS: dict[str, Any] = {
    "lefthash": lambda **k: KGW(key=11, **k),
    "lefthash5": lambda **k: KGW(key=2**64 - 1, context_width=5, **k),
    "selfhash": lambda **k: KGW(key="text", seeding="selfhash", **k),
    "selfhash8": lambda **k: KGW(key=0, seeding="selfhash", context_width=8, **k),
    "unigram": lambda **k: Unigram(key=2**63, **k),
    "top_k": lambda **k: EXP(key=42, top_k=20),
    "top_k wide": lambda **k: EXP(key=2**63 + 5, top_k=100, context_width=9),
    "scale": lambda **k: EXP(key=43, strength="scale", context_width=1),
}


def position(scores: torch.Tensor, window: int, noise: torch.Tensor | None = None) -> Position:
    """Each row of scores [B, V] as a position; with noise, the record is that of the perturbed row."""
    whole = scores if noise is None else scores + noise
    record = Record.from_logits(whole)
    context = torch.randint(-1, 70000, (len(scores), window))
    return Position(record, scores.gather(1, record.ids.clamp_min(0)), whole, context)


def compare(watermark: Watermark, at: Position, greatest: float) -> None:
    """Equal candidates, counts and needs of every rung; columns beyond repeat candidate 0."""
    expected, got = watermark.ladder(at, greatest), watermark.native_ladder(at, greatest)
    assert torch.equal(got.counts, expected.counts)
    assert (got.rule, got.full) == (expected.rule, expected.full)
    width = int(expected.counts.max()) if len(expected.counts) else 0
    assert torch.equal(got.candidates[:, :width], expected.candidates[:, :width])
    beyond = torch.arange(got.candidates.shape[1])[None] >= got.counts[:, None]
    assert torch.equal(got.candidates[beyond], got.candidates[:, :1].expand_as(got.candidates)[beyond])
    reached = ~beyond[:, :width]
    same_needs(got, expected, reached, width)


def same_needs(got: Ladder, expected: Ladder, reached: torch.Tensor, width: int) -> None:
    a, b = got.needs[:, :width][reached], expected.needs[:, :width][reached]
    if got.rule == "scale":  # breakpoints come from float64 logarithms of two libraries, rounded to float32
        assert_close(a, b, "float32")
    else:
        assert torch.equal(a.nan_to_num(nan=0.25), b.nan_to_num(nan=0.25))


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("greatest", [0.0, 0.35, 1.0, 2.5])
def test_ladders_of_random_logits(name: str, greatest: float) -> None:
    for vocab_size in (1, 2, 37, 100, 101, 1009):
        watermark = BUILDERS[name](delta=3.3)
        if watermark.rule == "top_k":
            greatest = min(greatest, 1.0)
        for kind in range(3):
            scores = torch.randn(65, vocab_size) * 3
            if kind == 1:
                scores = scores.bfloat16().float()  # many exact ties
            if kind == 2:
                scores = torch.randint(-3, 4, (65, vocab_size)).float()
            compare(watermark, position(scores, watermark.window), greatest)


@pytest.mark.parametrize("name", BUILDERS)
def test_ladders_of_sampled_positions_and_masked_vocabularies(name: str) -> None:
    watermark = BUILDERS[name](delta=4.0, gamma=0.1)
    scores = torch.randn(33, 700) * 2
    noise = -torch.log(-torch.log(torch.rand(33, 700)))
    compare(watermark, position(scores, watermark.window, noise), 1.0)
    scores[:11, ::3] = -torch.inf
    scores[11:22, 1:] = -torch.inf
    scores[22:, 20:] = -torch.inf
    compare(watermark, position(scores, watermark.window, noise), 1.0)


@pytest.mark.parametrize("name", ["lefthash", "selfhash", "unigram"])
def test_rows_whose_green_tokens_lie_beyond_the_record(name: str) -> None:
    watermark = BUILDERS[name](gamma=0.004, delta=30.0)
    scores = torch.randn(64, 3001)
    at = position(scores, watermark.window)
    assert int((~watermark.green_tokens(at.context, at.record.ids).any(dim=1)).sum()) > 10
    compare(watermark, at, 1.0)
    ties = torch.randint(-1, 2, (64, 3001)).float() / 8
    compare(watermark, position(ties, watermark.window), 1.0)


def tied_rows(size: int) -> torch.Tensor:
    """Scores [size, 17] of few values, so that nearly all rows tie; in a third of them tokens are masked."""
    scores = torch.randn(size, 17).mul(4).round() / 2
    third = scores[: size // 3]
    third[torch.rand(third.shape) < torch.rand(len(third), 1)] = -torch.inf
    third[:, 5] = third[:, 5].nan_to_num(neginf=0.5)  # no row is masked altogether
    return scores


@pytest.mark.parametrize("name", BUILDERS)
def test_thousands_of_tied_and_masked_rows(name: str) -> None:
    """A few seconds' worth of what test_a_million_rows checks."""
    watermark = BUILDERS[name](delta=2.0)
    compare(watermark, position(tied_rows(6000), watermark.window), 1.0)


@pytest.mark.gate("ladders")
@pytest.mark.parametrize("name", BUILDERS)
def test_a_million_rows(name: str) -> None:
    """Six minutes: a million rows of every reweighting ladder, 160 000 of every race."""
    watermark = BUILDERS[name](delta=2.0)
    for _ in range(130 if watermark.rule == "reweight" else 20):
        compare(watermark, position(tied_rows(8000), watermark.window), 1.0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", BUILDERS)
def test_nan_and_infinite_logits_do_not_crash(name: str, bad: float) -> None:
    """NaN sorts first in a record, so it is the original token; nothing overtakes it, as in the reference."""
    watermark = BUILDERS[name](gamma=0.05, delta=2.0)
    scores = torch.randn(16, 300)
    scores[torch.arange(16), torch.randint(0, 300, (16,))] = bad
    at = position(scores, watermark.window)
    got = watermark.native_ladder(at, 1.0)
    assert torch.equal(got.candidates[:, 0], at.record.ids[:, 0])
    assert bool(((got.counts >= 1) & (got.counts <= got.candidates.shape[1])).all())
    if watermark.rule == "reweight":
        compare(watermark, at, 1.0)


@pytest.mark.parametrize("name", BUILDERS)
def test_empty_batch(name: str) -> None:
    watermark = BUILDERS[name]()
    got = watermark.native_ladder(position(torch.empty(0, 200), watermark.window), 1.0)
    assert got.counts.shape == (0,) and got.candidates.shape[0] == 0


@given(
    key=st.integers(0, 2**64 - 1),
    tokens=st.lists(st.integers(-1, 200000), max_size=12),
    name=st.sampled_from(["lefthash", "lefthash5", "selfhash", "selfhash8", "unigram", "top_k", "top_k wide", "scale"]),
)
def test_scores_of_any_key_and_text(key: int, tokens: list[int], name: str) -> None:
    same_scores(replace(BUILDERS[name](), key=key), torch.tensor(tokens, dtype=torch.int64))


def same_scores(watermark: Watermark, ids: torch.Tensor) -> None:
    got, expected = watermark.score_tokens(ids), watermark.score_tokens_ref(ids)
    assert torch.equal(got.evidence, expected.evidence)
    assert torch.equal(got.scored, expected.scored)
    if watermark.null == "binomial":
        assert torch.equal(got.values, expected.values)
    else:
        assert_close(got.values, expected.values, "float64")


@pytest.mark.parametrize("name", BUILDERS)
def test_scores_under_keys_of_their_own(name: str) -> None:
    """Each token scores as in the text alone under its key, whatever keys stand before and behind; runs of all lengths,
    across the pieces of 512 that the kernel takes at a time."""
    watermark = BUILDERS[name]()
    native = watermark.native
    assert native is not None
    ids = torch.randint(-1, 150_000, (1500,))
    lengths = torch.tensor([1, 1, 2, 600, 5, 1, 400, 490])
    secrets = key_tensor(mixed_keys(native.key, 3))
    keys = secrets[torch.tensor([0, 1, 2, 0, 2, 1, 1, 2])].repeat_interleave(lengths)
    got = ops.score_tokens(ids, watermark.window, keys, native.scheme, native.threshold)
    for fill in (score_tokens_ref, ops.score_tokens):
        alone = [
            fill(ids, watermark.window, torch.full_like(ids, int(k)), native.scheme, native.threshold) for k in secrets
        ]
        for column, (values, seeds) in enumerate(alone):
            at = keys == secrets[column]
            assert_close(got[0][at], values[at], "float64")
            assert torch.equal(got[1][at] if seeds.numel() else got[1], seeds[at] if seeds.numel() else seeds)
    expected = watermark.score_tokens_ref(ids)
    assert torch.equal(watermark.score_keyed(ids, torch.full_like(ids, native.signed_key)).evidence, expected.evidence)


@pytest.mark.parametrize("name", BUILDERS)
def test_scores_of_a_million_tokens(name: str) -> None:
    n = 200_000 if "selfhash" not in name else 50_000
    same_scores(BUILDERS[name](), torch.randint(-1, 150_000, (n,)))


def test_golden_words_of_vllm() -> None:
    """vLLM 0.33.0's PhiloxPRF(42), context [1, 2, 3, 4], tokens 0..5, as scores -log(1 - u)."""
    uniforms = [0.5361072421, 0.6940827370, 0.2202302665, 0.7877641320, 0.1031837985, 0.1823934168]
    for token, u in enumerate(uniforms):
        values, _ = ops.score_tokens(torch.tensor([1, 2, 3, 4, token]), 4, torch.full((5,), 42), 2, 0)
        assert round(float(-torch.expm1(-values[4])), 10) == u


def test_sampling_noise_has_the_words_of_the_reference() -> None:
    """Equal float32 values, but for logarithms at a rounding boundary: one in 10^6 at the very most."""
    differ = total = 0
    for key, vocab_size in ((0, 1), (1, 3), (2, 64), (3, 4097), (1 - 2**63, 151_936), (5, 128_257)):
        context = torch.cat([torch.randint(0, 2**32, (3, 2)), torch.randint(0, 5000, (3, 1))], dim=1)
        keys = torch.tensor([key, 7, ~key])
        got, expected = (f(context, keys, vocab_size) for f in (ops.sampling_noise, sampling_noise_ref))
        assert got.dtype == torch.float32 and got.shape == expected.shape
        differ, total = differ + int((got != expected).sum()), total + got.numel()
        assert_close(got, expected, "float32")
    assert differ <= total * 1e-6


@pytest.mark.parametrize("name", BUILDERS)
def test_rows_of_other_keys(name: str) -> None:
    """Each row's ladder is that of its key alone, by the reference too."""
    watermark = BUILDERS[name]()
    native, at = watermark.native, position(torch.randn(6, 900), watermark.window)
    assert native is not None
    keys = key_tensor(mixed_keys(native.key, 6))
    tensors = [at.record.values, at.record.ids, at.race_values, at.scores, at.context, keys]
    numbers = (native.scheme, native.threshold, watermark.full, 1.0)
    together = ops.enumerate_candidates(*tensors, *numbers)
    for row in range(6):
        own = [t[row : row + 1] for t in tensors]
        for mixed, single in zip(together, ops.enumerate_candidates(*own, *numbers), strict=True):
            assert torch.equal(mixed[row], single[0])
    by_reference = enumerate_candidates_ref(*tensors, *numbers)
    assert torch.equal(together[0], by_reference[0])
    assert torch.equal(together[2], by_reference[2])
    assert torch.equal(
        together[0][:1], ops.enumerate_candidates(*[t[:1] for t in tensors[:5]], key_tensor([native.key]), *numbers)[0]
    )


def test_noise_of_rows_with_other_keys() -> None:
    context, keys = torch.randint(0, 2**32, (4, 3)), key_tensor(mixed_keys(3, 4))
    together = ops.sampling_noise(context, keys, 5000)
    for row in range(4):
        assert torch.equal(together[row], ops.sampling_noise(context[row : row + 1], keys[row : row + 1], 5000)[0])
    with pytest.raises(RuntimeError, match=r"key must have shape \[4\], got \[3\]"):
        ops.sampling_noise(context, keys[:3], 5000)


def test_refusals_are_one_sentence() -> None:
    at = position(torch.randn(2, 50), 1)
    record = at.record
    call = [record.values, record.ids, at.race_values, at.scores, at.context, key_tensor([1, 2]), 0, 100, 1.0, 1.0]
    for index, bad, message in (
        (0, record.values.double(), "values must be float32"),
        (1, record.ids[:, :5], r"ids must have shape \[2, 100\], got \[2, 5\]"),
        (3, at.scores[:1], r"scores must have shape \[B, V\], got \[1, 50\]"),
        (4, at.context.int(), "context must be int64"),
        (5, key_tensor([1]), r"key must have shape \[2\], got \[1\]"),
        (5, torch.zeros(2), "key must be int64"),
        (6, 9, "scheme must be 0, 1, 2 or 3, got 9"),
        (7, -1, r"threshold must be in \[0, 2\*\*24\], got -1"),
    ):
        wrong = [*call[:index], bad, *call[index + 1 :]]
        with pytest.raises(RuntimeError, match=message):
            ops.enumerate_candidates(*wrong)
    with pytest.raises(RuntimeError, match="selfhash needs a context"):
        ops.enumerate_candidates(*call[:4], at.context[:, :0], key_tensor([1, 2]), 1, 100, 1.0, 1.0)
    with pytest.raises(RuntimeError, match=r"window must be in \[0, 64\], got 65"):
        ops.score_tokens(torch.arange(3), 65, torch.ones(3, dtype=torch.int64), 0, 5)
    with pytest.raises(RuntimeError, match=r"key must have shape \[3\], got \[2\]"):
        ops.score_tokens(torch.arange(3), 1, torch.ones(2, dtype=torch.int64), 0, 5)


def test_signed_keys_are_the_same_bits() -> None:
    for key in (0, 1, 2**63 - 1, 2**63, 2**64 - 1):
        native = EXP(key=key).native
        assert native is not None and np.int64(native.signed_key).view(np.uint64) == np.uint64(key)
    assert "key" not in repr(EXP(key=7).native)
    assert prf.green_threshold(0.25) == 1 << 22
