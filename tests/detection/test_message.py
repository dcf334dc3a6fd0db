"""The sentence of a result: it follows the decision, and says what a reader would otherwise wonder about."""

from typing import Any

import numpy as np

from caw.detection import Detector
from caw.detection.message import repeats_mostly, sentence
from caw.watermarks import EXP, KGW, Unigram

RATE = " at a false-positive rate of 0.001 "


def test_a_search_says_what_the_whole_text_says_alone() -> None:
    def said(p: float, alone: float) -> str:
        return sentence(200, 180, p, 1e-3, needed=6, alone=alone)

    assert said(1e-8, 1e-5) == f"watermarked{RATE}(corrected p = 1e-08, 180 of 200 tokens count)"
    assert said(1.8e-8, 0.039) == (
        f"watermarked in a part{RATE}(corrected p = 1.8e-08, 180 of 200 tokens count); the whole text alone would not "
        "pass (p = 0.039)"
    )
    assert said(0.0016, 0.0008) == (
        f"no watermark found{RATE}(corrected p = 0.0016, 180 of 200 tokens count); the whole text alone would pass "
        "(p = 0.0008), but not with the correction for searching its parts"
    )
    assert said(0.5, 0.25) == f"no watermark found{RATE}(corrected p = 0.50, 180 of 200 tokens count)"
    assert "p < 1e-300" in said(0.0, 0.0) and "= <" not in said(0.0, 0.0)


def test_repetition_is_said_where_evidence_is_lost_to_it() -> None:
    text = [7, 8, 9, 10, 11, 12] * 33
    for watermark, counts in ((KGW(key=1), 7), (EXP(key=1), 10), (Unigram(key=1), 6)):
        result: Any = Detector(None, watermark)(text)
        assert result.mostly_repetition and result.num_scored == counts and result.num_repeated == 198 - counts
        assert f"mostly repetition: {198 - counts} of its 198 tokens repeat earlier text" in result.message
        assert "too short" not in result.message
    few: Any = Detector(None, KGW(key=1), fpr=1e-5)(text)
    assert few.message.startswith("the text is mostly repetition") and "requires 9 that count" in few.message
    plain: Any = Detector(None, KGW(key=1))(np.random.default_rng(0).integers(0, 5000, 200).tolist())
    assert not plain.mostly_repetition and plain.num_repeated == 0 and "repetition" not in plain.message
    # what another system counts again is not lost
    compat: Any = Detector(None, KGW(key=1), mode="compat")(text)
    assert not compat.mostly_repetition and compat.num_scored == 198


def test_ordinary_text_is_no_repetition() -> None:
    assert not repeats_mostly(2459, round(0.698 * 2459), window=1) and not repeats_mostly(2459, 2203, window=0)
    assert repeats_mostly(200, 188, window=1) and repeats_mostly(200, 188, window=0)
