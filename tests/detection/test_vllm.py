"""EXP's native format is vLLM's: its detector and ours give the same numbers for the same tokens."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from caw.detection import detect
from caw.testing import assert_close
from caw.watermarks import EXP

GOLDEN = json.loads(Path(__file__).with_name("golden_vllm.json").read_text())["texts"]


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
    rows = json.loads(Path(__file__).with_name("golden_vllm_dual.json").read_text())["texts"]
    for row in rows:
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
