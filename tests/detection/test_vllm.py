"""EXP's native format is vLLM's: its detector and ours give the same numbers for the same tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from caw.detection import detect
from caw.testing import assert_close
from caw.watermarks import EXP

GOLDEN = json.loads(Path(__file__).with_name("golden_vllm.json").read_text())["texts"]


@pytest.mark.parametrize("mode", ["exact", "compat"])
def test_frozen_results_of_vllms_detector(mode: str) -> None:
    """Made by vllm.v1.watermarking.GumbelWatermarkDetector of vLLM 0.33.0: random, repetitive and marked texts."""
    assert any(row["p_value"] < 1e-50 for row in GOLDEN) and any(row["num_scored"] < len(row["ids"]) for row in GOLDEN)
    for row in GOLDEN:
        result = detect(row["ids"], None, EXP(key=row["key"], context_width=row["width"]), mode=mode)
        assert result.num_scored == row["num_scored"]
        assert_close(result.score, row["score"], "float64")
        assert_close(result.p_value, row["p_value"], "tail")


def test_published_golden_numbers() -> None:
    result = detect(list(range(100, 300)), None, EXP(key=42, context_width=4))
    assert result.num_scored == 200
    assert_close(result.score, 193.3462001199262, "float64")
    assert_close(result.p_value, 0.6744292401039945, "tail")


def test_an_installed_vllm_agrees() -> None:
    reason = "needs vLLM 0.33 or later (pip install vllm) to ask its own detector"
    vllm = pytest.importorskip("vllm.v1.watermarking.gumbel", reason=reason, exc_type=ImportError)
    rng = np.random.default_rng(0)
    for length in (0, 1, 50, 400):
        ids = rng.integers(0, 30, length).tolist()
        theirs = vllm.GumbelWatermarkDetector(key=12345, context_width=4).detect(ids)
        ours = detect([ids], None, EXP(key=12345))[0]
        assert ours.num_scored == theirs.num_scored_tokens
        assert_close(ours.score, theirs.score, "float64")
        assert_close(ours.p_value, theirs.p_value, "tail")
