"""Compiled ladders of many rows, scores and noise against the PyTorch reference: integers equal."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from csrc.test_enumerate_candidates import BUILDERS, compare, position
from hypothesis import given
from hypothesis import strategies as st
from prf_inputs import key_tensor, mixed_keys

from caw import ops, prf
from caw.testing import assert_close
from caw.text_scores import score_tokens_ref
from caw.triton_kernels.sampling_noise_ref import sampling_noise_ref
from caw.watermarks import EXP, Watermark


def tied_rows(size: int) -> torch.Tensor:
    """Scores [size, 17] of few values, so that nearly all rows tie; in a third of them tokens are masked."""
    scores = torch.randn(size, 17).mul(4).round() / 2
    third = scores[: size // 3]
    third[torch.rand(third.shape) < torch.rand(len(third), 1)] = -torch.inf
    third[:, 5] = third[:, 5].nan_to_num(neginf=0.5)  # no row is masked altogether
    return scores


@pytest.mark.parametrize("name", BUILDERS)
def test_thousands_of_tied_and_masked_rows(kernel: Any, name: str) -> None:
    """A few seconds' worth of what test_a_million_rows checks."""
    watermark = BUILDERS[name](delta=2.0)
    compare(kernel, watermark, position(tied_rows(1500), watermark.window), 1.0)


@pytest.mark.gate("ladders")
@pytest.mark.parametrize("name", BUILDERS)
def test_a_million_rows(kernel: Any, name: str) -> None:
    """Six minutes: a million rows of every reweighting ladder, 160 000 of every race."""
    watermark = BUILDERS[name](delta=2.0)
    for _ in range(130 if watermark.rule == "reweight" else 20):
        compare(kernel, watermark, position(tied_rows(8000), watermark.window), 1.0)


@given(
    key=st.integers(0, 2**64 - 1),
    tokens=st.lists(st.integers(-1, 200000), max_size=12),
    name=st.sampled_from(list(BUILDERS)),
)
def test_scores_of_any_key_and_text(key: int, tokens: list[int], name: str) -> None:
    same_scores(replace(BUILDERS[name](), key=key), torch.tensor(tokens, dtype=torch.int64))


def same_scores(watermark: Watermark, ids: torch.Tensor) -> None:
    got, expected = watermark.score_tokens(ids), watermark.scheme.score_ref(ids)
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
    expected = watermark.scheme.score_ref(ids)
    assert torch.equal(native.scores(ids, watermark.window).evidence, expected.evidence)


def test_golden_words_of_vllm() -> None:
    """vLLM 0.33.0's PhiloxPRF(42), context [1, 2, 3, 4], tokens 0..5, as scores -log(1 - u)."""
    uniforms = [0.5361072421, 0.6940827370, 0.2202302665, 0.7877641320, 0.1031837985, 0.1823934168]
    for token, u in enumerate(uniforms):
        values, _ = ops.score_tokens(torch.tensor([1, 2, 3, 4, token]), 4, torch.full((5,), 42), 2, 0)
        assert round(float(-torch.expm1(-values[4])), 10) == u


def test_sampling_noise_has_the_words_of_the_reference() -> None:
    """Equal float32 values, but for logarithms at a rounding boundary: one in 10^6 at the very most."""
    differ = total = 0
    for key, vocab_size in ((0, 1), (1, 3), (2, 64), (3, 4097), (1 - 2**63, 151_936)):
        context = torch.cat([torch.randint(0, 2**32, (3, 2)), torch.randint(0, 5000, (3, 1))], dim=1)
        keys = torch.tensor([key, 7, ~key])
        got, expected = (f(context, keys, vocab_size) for f in (ops.sampling_noise, sampling_noise_ref))
        assert got.dtype == torch.float32 and got.shape == expected.shape
        differ, total = differ + int((got != expected).sum()), total + got.numel()
        assert_close(got, expected, "float32")
    assert differ <= total * 1e-6


def test_refusals_are_one_sentence() -> None:
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
