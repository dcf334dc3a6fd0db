"""Several watermarks at once: Holm's correction and who matched."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from detection.test_many_keys import marked
from scipy import stats

from caw.detection import Detector
from caw.detection.key_list import detect_any
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, Unigram


def test_the_right_watermark_is_named() -> None:
    detectors = {
        "ours": Detector(None, KGW(key=1)),
        "old": Detector(None, KGW(key=2)),
        "hf": Detector(None, KGW(key=3, format="transformers", vocab_size=500)),
        "race": Detector(None, EXP(key=1)),
        "list": Detector(None, Unigram(key=1)),
    }
    for name, key in (("ours", 1), ("old", 2)):
        result = detect_any(marked(KGW(key=key)), detectors)
        assert result.matches == (name,) and result.is_watermarked
        assert_close(result.p_values[name], 5 * result.results[name].p_value, "float64")
        assert result.message.startswith(f"watermarked with {name} at a false-positive rate of 0.001 (5 watermarks")
    both = detect_any([marked(KGW(key=1)), list(range(60))], detectors)
    assert [r.matches for r in both] == [("ours",), ()]
    assert both[1].message.startswith("no watermark found")
    with pytest.raises(ValueError, match="at least one watermark"):
        detect_any([1, 2], {})
    for wrong, kind in (({"a": KGW(key=1)}, "KGW"), ([Detector(None, KGW(key=1))], "list"), (KGW(key=1), "KGW")):
        with pytest.raises(TypeError, match=f"must be a mapping of names to Detectors, got {kind}; make each"):
            detect_any([1, 2], wrong)  # type: ignore[arg-type]
    for fpr in (0.0, 1.0, float("nan"), -1e-3):
        with pytest.raises(ValueError, match="fpr must be"):
            detect_any([1, 2], {"ours": Detector(None, KGW(key=1))}, fpr=fpr)


def test_family_wise_error_rate() -> None:
    """Fresh keys: at most the promised share of unmarked texts is called marked by any of four keys."""
    rng = np.random.default_rng(1)
    false_alarms = 0
    for _ in range(300):
        keys = rng.integers(0, 2**62, 4).tolist()
        kinds = itertools.cycle([KGW, Unigram, EXP])
        detectors = {str(k): Detector(None, kind(key=k)) for k, kind in zip(keys, kinds, strict=False)}
        false_alarms += detect_any(rng.integers(0, 50, 80).tolist(), detectors, fpr=0.05).is_watermarked
    assert stats.binomtest(false_alarms, 300, 0.05, "greater").pvalue > 1e-6
