"""Warpers as in transformers, and the noise that makes an argmax a sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from caw.triton_kernels import prf_ref as prf
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM

from caw.decoding.request import requests_for
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.decoding.sampling import DOMAIN, GumbelNoise, noise_key
from caw.decoding.state import DecodeState
from caw.decoding.warping import make_warper
from caw.watermarks import keys

ROWS, VOCAB = 5, 53
CPU = torch.device("cpu")


def warp(logits: torch.Tensor, **settings: Any) -> torch.Tensor:
    return warp_rows(logits, [RowSettings(do_sample=True, **settings)] * len(logits))


def warp_rows(logits: torch.Tensor, rows: list[RowSettings]) -> torch.Tensor:
    """Each row of the logits [B, V] by settings of its own."""
    limits = RowLimits.of(rows, ())
    state = DecodeState.empty(len(rows), logits.shape[1], 0, 0, 1, logits.device)
    state.rows.start(torch.arange(len(rows)), rows, [()] * len(rows), [None] * len(rows))
    warper = make_warper(limits)
    return logits if warper is None else warper(logits.clone(), state)


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-6])
@pytest.mark.parametrize("top_k", [0, 1, 7, VOCAB, VOCAB + 9])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_warpers_are_those_that_generate_would_use(temperature: float, top_k: int, top_p: float) -> None:
    """The same list in the same order as transformers builds for these settings, ties included."""
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, hidden_size=4, intermediate_size=4, num_hidden_layers=1,
                                         num_attention_heads=1))  # fmt: skip
    config = model.generation_config
    config.update(do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p)
    processors = model._get_logits_processor(config, input_ids_seq_length=1, device="cpu")
    logits = torch.randn(ROWS, VOCAB).round(decimals=1)
    logits[:, 10:20] = -torch.inf
    expected = processors(torch.zeros(ROWS, 1, dtype=torch.int64), logits.clone())
    assert torch.equal(warp(logits, temperature=temperature, top_k=top_k, top_p=top_p), expected)


def test_no_warper_where_nothing_would_change() -> None:
    assert make_warper(RowLimits.of([RowSettings(do_sample=True)], ())) is None
    assert make_warper(RowLimits.of([RowSettings(temperature=0.5, top_k=3, top_p=0.5)], ())) is None, "greedy"


def test_rows_are_warped_as_if_alone() -> None:
    """Bit for bit, ties at the borders included; rows that do not sample stay as they are."""
    kinds = [{}, {"temperature": 0.7}, {"top_k": 1}, {"top_k": 7, "temperature": 1.3}, {"top_p": 0.9}, {"top_p": 1e-6},
             {"temperature": 0.5, "top_k": VOCAB + 9, "top_p": 0.3}, {"top_k": 12, "top_p": 0.8}]  # fmt: skip
    rows = [RowSettings(do_sample=samples, **kind) for samples in (True, False) for kind in kinds]
    logits = torch.randn(len(rows), VOCAB).round(decimals=1)
    logits[:, 10:20] = -torch.inf
    logits[:, 30] = -200.0  # a probability of 0
    together = warp_rows(logits, rows)
    for own, row, settings in zip(logits, together, rows, strict=True):
        assert torch.equal(row, warp_rows(own[None], [settings])[0])
        assert settings.do_sample or torch.equal(row, own)
    assert together.isneginf().sum() > logits.isneginf().sum()


def gumbel_noise(seed: int, streams: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Draws of one seed for all rows."""
    return GumbelNoise.on(CPU)(torch.full_like(positions, noise_key(seed)), streams, positions, vocab_size)


def test_noise_is_a_function_of_seed_stream_position_and_token() -> None:
    """Word by word in plain integers: PRF under the key derived for the sampler, never the watermark's."""
    streams, positions = torch.tensor([[1, 2], [3, 2**32 - 1]]), torch.tensor([0, 5])
    noise = gumbel_noise(7, streams, positions, VOCAB)
    key = keys.derive_key(7, DOMAIN)
    for row, context in enumerate([[1, 2, 0], [3, 2**32 - 1, 5]]):
        for token in range(VOCAB):
            word = prf.token_word(key, prf.absorb_context(key, context), token)
            expected = np.float32(-math.log(-math.log((word + 0.5) / 2**32)))
            assert abs(noise[row, token].item() - expected) <= abs(np.spacing(expected))
    assert noise.dtype == torch.float32


def test_noise_is_gumbel() -> None:
    """Kolmogorov-Smirnov on 40 000 draws and no correlation between neighbours; false alarms: 1 in 10 000."""
    streams = torch.randint(0, 2**32, (40, 2))
    noise = gumbel_noise(1, streams, torch.arange(40), 1000)
    assert stats.kstest(noise.flatten().numpy(), stats.gumbel_r.cdf).pvalue > 1e-4
    for a, b in ((noise[:, :-1], noise[:, 1:]), (noise[:-1], noise[1:])):
        assert stats.spearmanr(a.flatten(), b.flatten()).pvalue > 1e-4


def test_noise_of_extreme_words_is_finite() -> None:
    u = (torch.tensor([0.0, 2.0**32 - 1], dtype=torch.float64) + 0.5) / 2**32
    assert (-torch.log(-torch.log(u))).float().isfinite().all()


def test_argmax_of_noisy_logits_follows_softmax() -> None:
    """Chi-square over 20 000 streams; false alarms: 1 in 10 000."""
    draws, logits = 20_000, torch.tensor([1.0, 0.0, -1.0, 2.0, -torch.inf, 0.5])
    streams = torch.arange(draws)[:, None].expand(-1, 2)
    noise = gumbel_noise(3, streams, torch.zeros(draws, dtype=torch.int64), 6)
    observed = torch.bincount((logits + noise).argmax(dim=1), minlength=6)
    assert observed[4] == 0
    expected = logits.softmax(0) * draws
    kept = [0, 1, 2, 3, 5]
    assert stats.chisquare(observed[kept].numpy(), expected[kept].double().numpy(), sum_check=False).pvalue > 1e-4


def test_streams_depend_on_the_prompt_and_its_repetition() -> None:
    a, b = [1, 2, 3], [12, 3]

    def stream_ids(prompts: list[list[int]]) -> list[tuple[int, int]]:
        rows = [RowSettings()] * len(prompts)
        return [request.stream for request in requests_for(prompts, [9] * len(prompts), rows)]

    assert stream_ids([a, b]) == stream_ids([b, a])[::-1]
    first, second, third = stream_ids([a, a, a])
    assert len({first, second, third}) == 3
    assert stream_ids([a]) == [first]
    assert stream_ids([b, a, a])[1:] == [first, second]
    assert all(0 <= word < 2**32 for stream in stream_ids([a, b]) for word in stream)
    assert stream_ids([[1, 23]]) != stream_ids([[12, 3]])
    other = requests_for([a, a], [9, 9], [RowSettings(), RowSettings(seed=1)])
    assert [request.occurrence for request in other] == [0, 0], "only equal requests count"
