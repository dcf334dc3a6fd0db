"""A text tested together with its parts: one p-value decides, and the marked parts are where they are."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import caw
from caw.detection import Detector, detect_any, locate, null_report
from caw.detection.regions import search
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, SynthID, Watermark


def marked_ids(watermark: Watermark, count: int, rng: np.random.Generator, share: float = 0.5) -> list[int]:
    assert isinstance(watermark, KGW)
    import torch

    lists = watermark.green_vocabulary(torch.arange(500)[:, None], 500).numpy()
    ids = [int(rng.integers(500))]
    while len(ids) < count:
        choice = np.flatnonzero(lists[ids[-1]]) if rng.random() < share else np.arange(500)
        ids.append(int(rng.choice(choice)))
    return ids


def random_ids(count: int, rng: np.random.Generator) -> list[int]:
    return [int(i) for i in rng.integers(0, 500, count)]


def test_a_part_decides_and_everything_follows_it() -> None:
    """What broke: "no watermark found, p = .039", and below it a marked part with p = 1.8e-08."""
    watermark, rng = KGW(key=9), np.random.default_rng(1)
    ids = random_ids(1900, rng) + marked_ids(watermark, 80, rng) + random_ids(1400, rng)
    alone: Any = caw.detect(ids, None, watermark)
    result: Any = caw.detect(ids, None, watermark, regions=True)
    assert not alone.is_watermarked and alone.regions is None and alone.text_p_value is None
    assert result.is_watermarked and result.p_value < 1e-5 and result.text_p_value == alone.p_value
    (region,) = result.regions
    assert region.p_value == result.p_value and abs(region.start - 1900) < 25 and abs(region.end - 1980) < 25
    assert result.message.startswith("watermarked in a part at")
    assert "; the whole text alone would not pass" in result.message
    assert tuple(locate(ids, Detector(None, watermark))) == result.regions


def test_a_text_marked_all_over_costs_a_factor_of_two() -> None:
    watermark, rng = KGW(key=9), np.random.default_rng(2)
    ids = marked_ids(watermark, 500, rng, 0.3)
    alone: Any = caw.detect(ids, None, watermark)
    result: Any = caw.detect(ids, None, watermark, regions=True)
    assert result.p_value <= 2 * alone.p_value < 1e-6
    assert sum(r.end - r.start for r in result.regions) > 400
    # between p and 2 p the whole text alone passes, and the family does not
    weak = marked_ids(watermark, 200, np.random.default_rng(31), 0.1)
    level = Detector(None, watermark, regions=True)
    edge: Any = replace(level, fpr=0.4)(weak)
    between: Any = replace(level, fpr=(edge.p_value + edge.text_p_value) / 2)(weak)
    assert edge.text_p_value < between.fpr < between.p_value == 2 * edge.text_p_value
    assert not between.is_watermarked and between.regions == () and "the whole text alone would pass" in between.message


def test_several_watermarks_share_the_rate() -> None:
    watermark, rng = KGW(key=9), np.random.default_rng(1)
    ids = random_ids(900, rng) + marked_ids(watermark, 120, rng) + random_ids(400, rng)
    detectors = {name: Detector(None, KGW(key=k), regions=True) for name, k in (("ours", 9), ("old", 8), ("new", 7))}
    result: Any = detect_any(ids, detectors)
    single: Any = detectors["ours"](ids)
    assert result.matches == ("ours",)
    assert_close(result.p_values["ours"], 3 * single.p_value, "float64")
    (region,) = result.results["ours"].regions
    assert_close(region.p_value, 3 * single.p_value, "float64")
    assert result.results["old"].regions == ()
    # one that passes by itself only is not called marked anywhere
    between: Any = detect_any(ids, detectors, fpr=2 * single.p_value)
    ours = between.results["ours"]
    assert not between.is_watermarked and not ours.is_watermarked and ours.regions == ()
    assert ours.message.startswith("no watermark found") and "corrected for 3 watermarks" in ours.message


def test_short_texts_have_the_whole_level() -> None:
    green = np.ones(16)
    result = search(green, green.astype(bool), KGW(key=1), 1e-3)
    assert result.tests == 1 and result.p_value == 0.25**16 and [(r.start, r.end) for r in result.regions] == [(0, 16)]
    nothing = search(np.zeros(0), np.zeros(0, dtype=bool), KGW(key=1), 1e-3)
    assert (nothing.p_value, nothing.tests, nothing.regions) == (1.0, 1, ())


def test_null_reports_and_bad_options() -> None:
    rng = np.random.default_rng(0)
    texts = [random_ids(60, rng) for _ in range(20)]
    detector = Detector(None, EXP(key=1), regions=True)
    assert null_report(texts, detector).p_values.tolist() == [r.p_value for r in detector(texts)]  # type: ignore[union-attr]
    for options in ({"mode": "compat"}, {"mid_p": True}, {"weights": "smollm2-135m"}):
        with pytest.raises(ValueError, match="regions require mode 'exact'"):
            Detector(None, KGW(key=1), regions=True, **options)  # type: ignore[arg-type]
    assert Detector(None, SynthID(5, depth=4), regions=True)([[1, 2, 3]])[0].regions == ()  # type: ignore[index,union-attr]
