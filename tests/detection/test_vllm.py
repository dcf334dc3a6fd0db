"""The marks of vLLM and SGLang: their detectors and ours give the same numbers for the same tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from caw.detection import detect
from caw.testing import assert_close
from caw.watermarks import EXP, KGW


def golden(name: str) -> list[dict[str, Any]]:
    return json.loads(Path(__file__).with_name(f"golden_{name}.json").read_text())["texts"]  # type: ignore[no-any-return]


GOLDEN = golden("vllm")


@pytest.mark.parametrize("mode", ["exact", "compat"])
def test_frozen_results_of_vllms_detector(mode: str) -> None:
    """Made by vllm.v1.watermarking.GumbelWatermarkDetector of vLLM 0.33.0: random, repetitive and marked texts."""
    assert any(row["p_value"] < 1e-50 for row in GOLDEN) and any(row["num_scored"] < len(row["ids"]) for row in GOLDEN)
    assert 2 in {row["width"] for row in GOLDEN}, "the race of a Recommended"
    for row in GOLDEN:
        result = detect(row["ids"], None, EXP(key=row["key"], context_width=row["width"]), mode=mode)
        assert result.num_scored == row["num_scored"]
        assert_close(result.score, row["score"], "float64")
        assert_close(result.p_value, row["p_value"], "tail")


def test_frozen_results_of_vllms_dual_key_detector() -> None:
    """Made by its DualKeyGumbelWatermarkDetector; p-values there are those of a gamma of equal mean and variance."""
    for row in golden("vllm_dual"):
        watermark = EXP(key=row["key"], context_width=row["width"], format="vllm-dual", alpha=row["alpha"])
        result = detect(row["ids"], None, watermark, mode="compat")
        assert result.num_scored == row["num_scored"]
        assert_close(result.score, row["score"], "float64")
        assert_close(result.p_value, row["p_value"], "weighted")
        if row["alpha"] in (0.0, 0.5):  # there the gamma is no approximation
            assert_close(detect(row["ids"], None, watermark).p_value, row["p_value"], "weighted")


def test_dual_key_races_with_either_key_and_is_read() -> None:
    """A share of alpha of the contexts races with B's words, the others with A's; the marked text is found."""
    import torch

    from caw import prf

    watermark = EXP(key=7, format="vllm-dual", alpha=0.3, context_width=2)
    contexts, tokens = torch.randint(0, 999, (3000, 2)), torch.arange(20).expand(3000, -1)
    words = watermark.scheme.words(contexts, tokens)
    with_a, with_b = ((words == prf.context_words(k, contexts, tokens)).all(dim=1) for k in watermark.scheme.keys[:2])
    assert torch.equal(with_a, ~with_b)
    assert stats.binomtest(int(with_b.sum()), 3000, 0.3).pvalue > 1e-6
    ids = [1, 2]
    while len(ids) < 80:
        options = torch.arange(len(ids) * 20, len(ids) * 20 + 20)
        best = watermark.scheme.words(torch.tensor([ids[-2:]]), options[None])[0].argmax()
        ids.append(int(options[best]))
    assert detect(ids, None, watermark).p_value < 1e-9
    assert not detect(ids, None, EXP(key=8, format="vllm-dual", alpha=0.3, context_width=2)).is_watermarked


def test_dual_key_p_values_are_uniform() -> None:
    rng, found = np.random.default_rng(3), []
    for _ in range(100):
        watermark = EXP(key=int(rng.integers(0, 2**62)), format="vllm-dual", alpha=0.2)
        found.append(detect(rng.integers(0, 30, 60).tolist(), None, watermark).p_value)
    assert stats.kstest(found, "uniform").pvalue > 1e-6


def test_green_tokens_of_vllms_sbw() -> None:
    """Its own main's lists; contexts that reach before the text are left out, which vLLM fills with -1."""
    for row in golden("vllm_sbw"):
        mark = KGW(row["key"], row["gamma"], 2.0, row["scheme"], 1, row["width"], "sbw", vocab_size=50000)
        values = mark.score_tokens(np.array(row["ids"])).values[row["width"] :]
        assert "".join(str(int(value)) for value in values) == row["greens"], row


@pytest.mark.parametrize("row", golden("sglang"))
def test_frozen_results_of_sglangs_detector(row: dict[str, Any]) -> None:
    """Marked and random texts under one key and under two; whoever holds one of two sees that key's share alone."""
    a, b = int(row["key"], 16), row["key_b"] and int(row["key_b"], 16)
    options = {"format": "sglang", "context_width": row["width"], "alpha": 1 - row["p"]}
    watermark = EXP([a, b] if b else a, **options)
    for mode in ("exact", "compat"):
        result = detect(row["ids"], None, watermark, mode=mode)
        assert result.num_scored == row["num_scored"]
        assert_close(result.score, row["score"], "float64")
        assert_close(result.p_value, row["p_value"], "tail")
    assert (
        row["p_value"] > 0.1 or detect(row["ids"], None, EXP(a, **options)).p_value > (1 if b else 0) * row["p_value"]
    )


@pytest.mark.parametrize("key", [9, [9, 10]])
def test_sglangs_races_mark_what_their_detector_reads(key: Any) -> None:
    """The likeliest of 20 tokens by noise alone, behind two tokens of a prompt."""
    import torch

    watermark, ids = EXP(key, format="sglang", context_width=2, alpha=0.4), [3, 5]
    while len(ids) < 60:
        options = torch.arange(len(ids) * 20, len(ids) * 20 + 20)[None]
        ids.append(int(options[0, watermark.scheme.noise(torch.tensor([ids[-2:]]), options)[0].argmax()]))
    assert detect(ids, None, watermark).p_value < 1e-9 < detect(ids, None, watermark.with_key([10, 9])).p_value
    assert watermark.foreign and not watermark.scheme.marks(torch.tensor([[-1, 5]]))
    with pytest.raises(
        ValueError, match="key must be one key, or two with format 'sglang', got 2 with format 'native'"
    ):
        EXP([1, 2])
