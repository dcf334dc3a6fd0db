"""One detector for both families of a Recommended, and one p-value."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detection.test_null import continuous
from scipy import stats

import caw
from caw import prf
from caw.detection import Detector, KeySearch
from caw.detection.family import family_wise, part_of
from caw.detection.html_report import running_evidence
from caw.detection.statistics import fewest_for
from caw.testing import assert_close

FALSE_ALARM = 1e-6
MARK = caw.Recommended(77)


def raced(length: int, seed: int = 0) -> list[int]:
    key, width = MARK.drawn.secret, MARK.drawn.context_width
    rng, ids = np.random.default_rng(seed), [5, 6]
    while len(ids) < length:
        options = rng.integers(0, 50_000, 4)
        words = [prf.token_word(key, prf.absorb_context(key, ids[-width:]), int(token)) for token in options]
        ids.append(int(options[int(np.argmax(words))]))
    return ids


def green(length: int, seed: int = 0) -> list[int]:
    native = MARK.greedy.native
    assert native is not None
    rng, ids = np.random.default_rng(seed), [5]
    while len(ids) < length:
        options = rng.integers(0, 50_000, 8)
        words = [prf.token_word(native.key, prf.absorb_context(native.key, ids[-1:]), int(token)) for token in options]
        ids.append(int(options[int(np.argmin(words))]))
    return ids


def test_a_text_of_either_family_is_found_and_the_result_names_it() -> None:
    race = Detector(None, MARK)(raced(60))
    assert isinstance(race, caw.DetectionResult)
    alone = caw.detect(list(race.token_ids), None, MARK.drawn)
    assert (race.family, race.subkey, race.num_subkeys, race.key_id) == ("exp", None, 1, MARK.key_id)
    assert_close(race.p_value, -math.expm1(2 * math.log1p(-alone.p_value)), "tail")
    assert "corrected p" in race.message and race.message.endswith("marked with exp")
    ids = green(60)
    list_ = caw.detect(ids, None, MARK)
    alone = caw.detect(ids, None, MARK.greedy)
    assert (list_.watermark, list_.family, list_.subkey) == ("recommended", "kgw", None)
    assert_close(list_.p_value, -math.expm1(2 * math.log1p(-alone.p_value)), "tail")
    assert list_.token_scores == alone.token_scores and list_.message.endswith("marked with kgw")
    for result in (race, list_):  # as drawn for people
        assert part_of(MARK, result.family).name == result.family
        assert_close(10 ** -running_evidence(result, Detector(None, MARK))[1][-1], result.p_value, "tail")


def test_the_p_value_is_that_of_all_tests_together() -> None:
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, 50_000, 50).tolist() for _ in range(20)]
    for text, result in zip(texts, caw.detect(texts, None, MARK), strict=True):
        race, list_ = (caw.detect(text, None, part).p_value for part in MARK.parts)
        assert_close(result.p_value, float(family_wise(np.array(min(race, list_)), 2)), "tail")


def test_no_text_is_found_more_often_than_the_level_says() -> None:
    """2 keys, 600 texts each with a key of its own too: never above the level, and not far below it: the race's
    half is exact, the list's conservative. False-alarm rate 1e-6 each."""
    rng = np.random.default_rng(5)
    texts = [rng.integers(0, 50_000, 40).tolist() for _ in range(600)]
    by_key = [Detector(None, caw.Recommended(key))(texts) for key in range(2)]
    fresh = [caw.detect(text, None, caw.Recommended(1000 + i)) for i, text in enumerate(texts)]
    for results in (*by_key, fresh):
        p_values = np.array([result.p_value for result in results])  # type: ignore[union-attr]
        for level in (0.01, 0.1, 0.5):
            found = int((p_values <= level).sum())
            assert stats.binom.sf(found - 1, 600, level) > FALSE_ALARM
            assert stats.binom.cdf(found, 600, level / 2) > FALSE_ALARM, "as rare as under half of the tests"


def test_p_values_of_real_unmarked_texts_are_what_theory_says() -> None:
    """Each text under a key derived from one of three: the race's p, and both families' made continuous."""
    texts = texts_of(json.loads((Path(__file__).parent / "model_texts.json").read_text()))
    rng = np.random.default_rng(8)
    races, both, told = [], [], []
    for key in ("a", "b", "c"):
        for number, text in enumerate(texts):
            mark = caw.Recommended(f"{key} {number}")
            race, green_ = (caw.detect(text, None, part) for part in mark.parts)
            score, count = np.array([green_.score]), np.array([green_.num_scored])
            p_list = continuous(mark.greedy, score, count, rng.random(1))[0]
            races.append(race.p_value)
            both.append(float(family_wise(np.array(min(race.p_value, p_list)), 2)))
            told.append(caw.detect(text, None, mark).p_value)
    assert len(both) == 3 * len(texts) > 100
    for p_values in (races, both):
        assert stats.kstest(p_values, "uniform").pvalue > FALSE_ALARM
    for level in (0.01, 0.1, 0.5):
        found = int((np.array(told) <= level).sum())
        assert stats.binom.sf(found - 1, len(told), level) > FALSE_ALARM
        assert stats.binom.cdf(found, len(told), -math.expm1(0.5 * math.log1p(-level))) > FALSE_ALARM


def texts_of(value: Any) -> list[list[int]]:
    if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in texts_of(part)]


def test_many_keys_are_one_family_with_both_kinds_of_each() -> None:
    marks = {"a": MARK, "b": caw.Recommended(5), "c": caw.KGW(1), "d": caw.EXP(9), "e": caw.KGW(1, subkeys=4)}
    rng = np.random.default_rng(4)
    for ids in (green(60), raced(60), rng.integers(0, 50_000, 40).tolist()):
        result = KeySearch(None, marks)(ids)
        singly = [caw.detect(ids, None, mark).p_value for mark in marks.values()]
        for got, wanted in zip(result.p_values, singly, strict=True):  # type: ignore[union-attr]
            assert_close(float(got), wanted, "tail")
    found = KeySearch(None, marks)(green(60))
    assert found.matches == ("a",) and found.results["a"].family == "kgw"  # type: ignore[union-attr]


def test_regions_are_those_of_the_family_found_and_corrected_for_both() -> None:
    rng = np.random.default_rng(6)
    ids = [*rng.integers(0, 50_000, 150).tolist(), *green(80), *rng.integers(0, 50_000, 100).tolist()]
    result, alone = (caw.detect(ids, None, mark, regions=True) for mark in (MARK, MARK.greedy))
    assert result.family == "kgw" and len(result.regions) == 1
    assert_close(result.p_value, float(family_wise(np.array(alone.p_value), 2)), "tail")
    assert_close(result.regions[0].p_value, float(family_wise(np.array(alone.regions[0].p_value), 2)), "tail")


def test_short_texts_are_undecided_only_if_neither_family_could_be_found() -> None:
    assert fewest_for(MARK, 1e-3) == 1, "one token may have any score in a race"
    assert caw.detect([[]], None, MARK)[0].is_undecided
    assert (
        not caw.detect([3, 4], None, MARK).is_undecided
        and "no watermark found" in caw.detect([3, 4], None, MARK).message
    )


@pytest.mark.parametrize(("options", "said"), [
    ({"mode": "compat"}, "sub-keys are tried in mode 'exact', got mode 'compat' and exp and kgw;"),
    ({"weights": "nothing"}, "weights"),
])  # fmt: skip
def test_what_reads_one_family_alone_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        Detector(None, MARK, **options)


def test_the_whole_text_beside_its_regions_is_corrected_as_alone() -> None:
    """One of two tests must not pass for the whole text."""
    mark, rng = caw.Recommended(7), np.random.default_rng(5)
    for _ in range(4):
        ids = rng.integers(0, 5000, 60)
        alone = Detector(None, mark, 1e-3).detect_ids([ids])[0]
        searched = Detector(None, mark, 1e-3, regions=True).detect_ids([ids])[0]
        assert searched.text_p_value is not None and searched.text_p_value >= alone.p_value * (1 - 1e-9)
