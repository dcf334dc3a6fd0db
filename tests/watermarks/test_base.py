"""What every watermark checks when it is made, and what it never shows."""

import dataclasses
from typing import Any

import pytest

from caw.watermarks import EXP, KGW, Unigram, Watermark

KEY = 0xC0FFEE123456789
ALL = [KGW(key=KEY), KGW(key=KEY, seeding="selfhash"), Unigram(key=KEY), EXP(key=KEY), EXP(key=KEY, strength="scale")]


@pytest.mark.parametrize("watermark", ALL, ids=lambda w: w.name)
def test_the_key_never_shows(watermark: Watermark) -> None:
    for text in (repr(watermark), str(watermark), f"{watermark}", watermark.key_id):
        assert str(KEY) not in text and hex(KEY)[2:] not in text.lower()
    assert "key" not in repr(watermark).replace("subkey", "")
    assert len(watermark.key_id) == 8 and int(watermark.key_id, 16) >= 0


@pytest.mark.parametrize("build", [KGW, Unigram, EXP])
def test_text_keys_do_not_show_either(build: Any) -> None:
    assert "hunter2" not in repr(build(key="hunter2"))
    assert build(key="hunter2").key_id == build(key=b"hunter2").key_id != build(key="hunter3").key_id


@pytest.mark.parametrize("watermark", ALL, ids=lambda w: w.name)
def test_watermarks_are_frozen_and_compare_by_value(watermark: Watermark) -> None:
    assert watermark == dataclasses.replace(watermark)
    assert watermark != dataclasses.replace(watermark, key=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        watermark.key = 1  # type: ignore[misc]


BAD = [
    (lambda: KGW(key=1, gamma=0.0), ValueError, "gamma must be a number in"),
    (lambda: KGW(key=1, gamma=1), ValueError, "gamma must be a number in"),
    (lambda: Unigram(key=1, gamma=float("nan")), ValueError, "gamma must be a number in"),
    (lambda: Unigram(key=1, gamma="0.5"), TypeError, "gamma must be a number in"),  # type: ignore[arg-type]
    (lambda: Unigram(key=1, gamma=1e-9), ValueError, "both lists non-empty"),
    (lambda: KGW(key=1, delta=-0.1), ValueError, "delta must be a number in"),
    (lambda: KGW(key=1, delta=float("inf")), ValueError, "delta must be a number in"),
    (lambda: KGW(key=1, seeding="right"), ValueError, "seeding must be one of lefthash, selfhash"),  # type: ignore[arg-type]
    (lambda: KGW(key=1, context_width=0), ValueError, "context_width must be an integer in"),
    (lambda: KGW(key=1, seeding="selfhash", context_width=1), ValueError, "context_width must be an integer in"),
    (lambda: KGW(key=1, context_width=1.0), TypeError, "context_width must be an integer in"),  # type: ignore[arg-type]
    (lambda: KGW(key=1, format="other"), ValueError, "format must be one of"),
    (lambda: EXP(key=1, top_k=0), ValueError, "top_k must be an integer in"),
    (lambda: EXP(key=1, top_k=101), ValueError, "top_k must be an integer in"),
    (lambda: EXP(key=1, top_k=True), TypeError, "top_k must be an integer in"),
    (lambda: EXP(key=1, strength="k"), ValueError, "strength must be one of top_k, scale"),  # type: ignore[arg-type]
    (lambda: EXP(key=1.0), TypeError, "key must be an int"),  # type: ignore[arg-type]
]


def test_parameters_out_of_range_are_refused_in_one_sentence() -> None:
    for build, error, message in BAD:
        with pytest.raises(error, match=message) as caught:
            build()
        assert "got" in str(caught.value) and "\n" not in str(caught.value)


def test_exp_refuses_strengths_beyond_the_record() -> None:
    EXP(key=1, top_k=50).check_strength(2.0)
    EXP(key=1, top_k=100, strength="scale").check_strength(50.0)
    KGW(key=1).check_strength(50.0)
    with pytest.raises(ValueError, match=r"strength \* top_k must be at most 100, got 2.1 \* 50"):
        EXP(key=1, top_k=50).check_strength(2.1)
