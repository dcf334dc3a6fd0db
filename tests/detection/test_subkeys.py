"""EXP with variants: which sub-key marked a text, and a p-value that is corrected for all of them."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

import caw
from caw import prf
from caw.detection import Detector, KeySearch
from caw.detection.family import family_wise
from caw.detection.variants import sums_of
from caw.testing import assert_close
from caw.watermarks import EXP
from caw.watermarks.names import reads_alike, said_of, watermark_from

FALSE_ALARM = 1e-6
MARK = EXP(key=77, strength="scale", variants=64)


def marked(key: int, length: int, seed: int = 0) -> list[int]:
    """Ids whose words under a key are the best of four."""
    rng, ids = np.random.default_rng(seed), [5, 6, 7, 8]
    while len(ids) < length:
        options = rng.integers(0, 50_000, 4)
        words = [prf.token_word(key, prf.absorb_context(key, ids[-4:]), int(token)) for token in options]
        ids.append(int(options[int(np.argmax(words))]))
    return ids


def test_sub_keys_are_derived_and_do_not_depend_on_how_many_there_are() -> None:
    for number in (0, 1, 63):
        expected = hashlib.sha256(b"caw/variant/" + number.to_bytes(2, "big") + (77).to_bytes(8, "big")).digest()[:8]
        assert MARK.variant_key(number) == int.from_bytes(expected, "big")
        assert EXP(key=77, variants=1024).variant_key(number) == MARK.variant_key(number)
    assert EXP(key=77).variant_key(0) == 77, "one variant is the key itself"
    assert MARK.variant(3) == EXP(key=MARK.variant_key(3), strength="scale")
    assert len({MARK.variant_key(number) for number in range(64)}) == 64
    assert str(MARK.variant_key(5)) not in repr(MARK) + repr(MARK.variant(5))


@pytest.mark.parametrize("number", [0, 17, 63])
def test_the_likeliest_variant_is_found_and_corrected_for_all(number: int) -> None:
    ids = marked(MARK.variant_key(number), 60)
    result = Detector(None, MARK)(ids)
    alone = caw.detect(ids, None, MARK.variant(number))
    assert (result.variant, result.num_variants, result.key_id) == (number, 64, MARK.key_id)
    assert_close(result.p_value, -math.expm1(64 * math.log1p(-alone.p_value)), "tail")
    assert (result.score, result.token_scores) == (alone.score, alone.token_scores)
    assert f"corrected p = {result.p_value:.2g}" in result.message and f"variant {number} of 64" in result.message
    assert not caw.detect(ids, None, EXP(key=77)).is_watermarked, "the key itself is none of its variants"


def test_one_scan_gives_the_sums_of_each_variant_by_itself() -> None:
    ids = np.random.default_rng(3).integers(0, 3, 300)
    sums, count = sums_of(MARK, ids, MARK.variant_keys)
    each = [caw.detect(ids.tolist(), None, MARK.variant(number)) for number in range(64)]
    assert {result.num_scored for result in each} == {count} and count < 300
    assert_close(sums, [result.score for result in each], "float64")
    assert Detector(None, MARK)(ids.tolist()).variant == int(np.argmin([result.p_value for result in each]))


@pytest.mark.parametrize("key", [2**64 - 1, "a secret"])
def test_p_values_are_uniform(key: Any) -> None:
    """1,000 random texts under each of two keys, at a false-alarm rate of 1e-6; contexts hardly repeat."""
    rng, detector = np.random.default_rng(5), Detector(None, EXP(key=key, strength="scale", variants=64))
    found = [result.p_value for result in detector.detect_ids(list(rng.integers(0, 50_000, (1000, 30))))]
    assert stats.kstest(found, "uniform").pvalue > FALSE_ALARM
    uncorrected = 1 - (1 - np.array(found)) ** (1 / 64)
    assert stats.kstest(uncorrected, "uniform").pvalue < FALSE_ALARM, "the test can tell"


def test_regions_are_searched_under_each() -> None:
    """A marked part of an unmarked text is found in place."""
    mark = EXP(key=77, strength="scale", variants=4)
    rng = np.random.default_rng(9)
    ids = [*rng.integers(0, 50_000, 150).tolist(), *marked(mark.variant_key(2), 120), *rng.integers(0, 50_000, 80)]
    ids = [int(token) for token in ids]
    result = Detector(None, mark, regions=True)(ids)
    alone = Detector(None, mark.variant(2), fpr=1e-3, regions=True)(ids)
    assert result.is_watermarked and result.variant == 2 and result.regions and alone.regions
    assert_close(result.p_value, float(family_wise(np.float64(alone.p_value), 4)), "tail")
    [region] = result.regions
    assert abs(region.start - 150) < 20 and abs(region.end - 270) < 20
    assert_close(region.p_value, float(family_wise(np.float64(alone.regions[0].p_value), 4)), "tail")


def test_keys_and_variants_are_one_family() -> None:
    marks = {f"key {number}": EXP(key=number, strength="scale", variants=16) for number in range(5)}
    marks["single"] = EXP(key=9, strength="scale")
    ids = marked(marks["key 3"].variant_key(11), 50)
    found = KeySearch(None, marks)(ids)
    alone = caw.detect(ids, None, marks["key 3"].variant(11)).p_value
    assert found.likeliest == "key 3" and found.results["key 3"].variant == 11
    # six tests of which the least is that of 16: 1 - ((1 - p)^16)^6
    assert_close(found.p_value, -math.expm1(96 * math.log1p(-alone)), "tail")
    each = [Detector(None, mark)(ids).p_value for mark in marks.values()]
    assert_close(found.p_values, each, "tail")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": 0}, r"variants must be an integer in \[1, 1024\], got 0"),
        ({"variants": 1025}, r"variants must be an integer in \[1, 1024\], got 1025"),
        ({"variants": 2, "format": "markllm"}, "variants need format 'native', temperature 1 and no payload"),
        ({"variants": 2, "format": "vllm-dual"}, "variants need format 'native'"),
        ({"variants": 2, "temperature": 0.7}, "got variants=2 with temperature=0"),
        ({"variants": 2, "payload": 3, "payload_bits": 4}, "no payload, got variants=2"),
    ],
)
def test_what_variants_do_not_go_with_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EXP(key=1, **change)


def test_what_reads_one_key_is_refused() -> None:
    with pytest.raises(ValueError, match=r"variant must be an integer in \[0, 63\], got 64"):
        MARK.variant_key(64)
    with pytest.raises(ValueError, match="variants are tried in mode 'exact', got mode 'compat' and 64 variants"):
        Detector(None, MARK, mode="compat")
    with pytest.raises(ValueError, match="tokens are scored under one key, got 64 variants of exp; give one of them"):
        next(Detector(None, MARK).score([np.arange(9)]))


def test_a_detector_reads_what_has_as_many_variants_or_fewer() -> None:
    few, many, one = (EXP(key=1, strength="scale", variants=v) for v in (16, 64, 1))
    assert reads_alike(few, many) and reads_alike(many, many) and reads_alike(one, one)
    assert not reads_alike(many, few) and not reads_alike(one, many) and not reads_alike(many, one)
    assert watermark_from(said_of(many), 1) == many


def test_a_text_is_tested_by_a_detector_of_all_its_variants() -> None:
    from caw.detectable.trial import make_trial
    from caw.settings import Settings

    settings, mark = Settings(detectable_at=1e-3), EXP(key=77, strength="scale", variants=64)
    theirs = Detector(lambda text: text, EXP(key=77, strength="scale", variants=16))
    with pytest.raises(ValueError, match="detector must try the 64 variants that mark, got 16; make it with"):
        make_trial(settings, theirs, mark, theirs.tokenizer, 200)
