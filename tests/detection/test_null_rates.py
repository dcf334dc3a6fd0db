"""Measured false-positive rates of one key."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from caw.detection import Detector
from caw.detection.null_rates import _once, null_report, plot_qq, rates_of
from caw.detection.weights import TokenWeights
from caw.policies.recommended import Recommended
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, SynthID, Unigram


def texts(count: int, vocab_size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, vocab_size, rng.integers(20, 80)) for _ in range(count)]


def test_rates_and_clopper_pearson_intervals() -> None:
    rows = rates_of(np.array([0.5] * 95 + [0.05] * 3 + [0.005, 0.00005]))
    assert [r.found for r in rows] == [5, 2, 1, 1]
    assert_close([rows[0].low, rows[0].high], [stats.beta.ppf(0.025, 5, 96), stats.beta.ppf(0.975, 6, 95)], "tail")
    assert rows[0].holds and rows[1].holds and not rates_of(np.full(50, 1e-9))[3].holds


@pytest.mark.parametrize("watermark", [
    KGW(key=1), EXP(key=1, context_width=1), SynthID("k", ngram_len=3, reading="mean"), KGW(key=1, subkeys=5),
    Unigram(key=1, subkeys=3), Recommended(key=1),
], ids=lambda w: f"{w.name}-{w.family}")  # fmt: skip
def test_evidence_counted_once_in_the_corpus_is_uniform_for_one_key(watermark: KGW) -> None:
    report = null_report(texts(400, 2000), Detector(None, watermark))
    assert report.texts == 400 and report.once_texts <= 400
    assert report.uniform_p > 1e-6 and all(r.holds for r in report.once)
    assert report.p_values.shape == (400,) and "p_values" not in report.as_dict()


def test_a_family_of_keys_is_the_likeliest_of_them_corrected() -> None:
    """Of the first text all evidence is new, so that `once` has the p-value that the detector gives it."""
    for mark in (KGW(key=1, subkeys=5), Recommended(key=1)):
        for text in texts(5, 2000):
            p, same = _once([text], Detector(None, mark), np.random.default_rng(0))
            assert_close(p, [Detector(None, mark)(text.tolist()).p_value], "tail")
            assert len(same) == 1
    p, same = _once([np.arange(3), np.arange(3)], Detector(None, Recommended(key=1)), np.random.default_rng(0))
    assert len(p) == 1  # no race in three tokens, and the second text has nothing new for the green list


@pytest.mark.parametrize("options", [{"mode": "compat"}, {"mid_p": True}])
def test_evidence_once_is_the_exact_test_whatever_the_mode(options: dict[str, Any]) -> None:
    """Few words, so that counting evidence again would be far from uniform."""
    plain = null_report(texts(300, 12), Detector(None, KGW(key=1)))
    other = null_report(texts(300, 12), Detector(None, KGW(key=1), **options))
    assert other.once == plain.once and other.uniform_p == plain.uniform_p and other.rates != plain.rates


@pytest.mark.parametrize("watermark", [KGW(key=1), EXP(key=1, context_width=1)], ids=lambda w: w.name)
def test_evidence_once_has_the_weights_of_the_test(watermark: Any) -> None:
    weights = TokenWeights(np.random.default_rng(0).integers(0, 4, 2000))
    weighted = null_report(texts(150, 2000), Detector(None, watermark, weights=weights))
    plain = null_report(texts(150, 2000), Detector(None, watermark))
    assert weighted.once != plain.once and weighted.uniform_p > 1e-6
    corpus = texts(150, 2000)
    (first,) = Detector(None, watermark, weights=weights).detect_ids(corpus[:1])
    only = null_report(corpus[:1], Detector(None, watermark, weights=weights))
    assert [r.found for r in only.once] == [int(first.p_value <= r.level) for r in only.once]


def test_payloads_are_refused() -> None:
    for watermark in (KGW(key=1, payload_bits=4), EXP(key=1, payload=3, payload_bits=4)):
        with pytest.raises(ValueError, match="regions, weights and null reports do not support payloads"):
            null_report(texts(3, 50), Detector(None, watermark))


def test_shared_phrases_show() -> None:
    """Texts of few words: one key's p-values are far from uniform text by text, which is what the report is for."""
    found = [null_report(texts(200, 9), Detector(None, KGW(key=k))).rates[0].found for k in range(8)]
    # were texts independent, keys would differ by chance alone
    table = np.array([found, [200 - f for f in found]])
    assert stats.chi2_contingency(table).pvalue < 1e-9


def test_texts_without_evidence_are_told_apart() -> None:
    short = [np.array([], dtype=np.int64), np.array([0]), np.array([5])]
    watermark = KGW(key=1, format="transformers", vocab_size=500)  # a first token has no context
    report = null_report([*texts(80, 500), *short], Detector(None, watermark))
    alone = null_report(texts(80, 500), Detector(None, watermark))
    assert (report.texts, report.without_evidence, alone.without_evidence) == (83, 3, 0)
    assert report.rates_with_evidence == alone.rates_with_evidence == alone.rates
    assert [r.found for r in report.rates] == [r.found for r in alone.rates] and report.rates != alone.rates
    nothing = null_report(short, Detector(None, watermark))
    assert [(r.found, r.rate, r.low, r.high) for r in nothing.rates_with_evidence] == [(0, 0.0, 0.0, 1.0)] * 4


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    plot_qq([null_report(texts(50, 500), Detector(None, KGW(key=k))) for k in (1, 2)], tmp_path / "qq.png")
    assert (tmp_path / "qq.png").read_bytes()[:4] == b"\x89PNG"


def test_no_texts() -> None:
    with pytest.raises(ValueError, match="unmarked texts are required, got none"):
        null_report([], Detector(None, KGW(key=1)))
