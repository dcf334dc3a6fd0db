"""Readings of a text: tested together, corrected for their number, and one alone where there is nothing to undo."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from caw.detection import Detector, KeySearch, detect, detect_any, null_report
from caw.detection.readings import AS_GIVEN, PLAIN, REPAIRED
from caw.watermarks import EXP, KGW, Watermark

WORDS = [f"{a}{b}{c}" for a in "bcdfg" for b in "aeiou" for c in "lmnrst"]


class Words:
    def __call__(self, texts: Any, return_offsets_mapping: bool = False, **options: Any) -> dict[str, Any]:
        import re

        single = isinstance(texts, str)
        found = [list(re.finditer(r" ?[a-z]+|[^a-z]", text)) for text in ([texts] if single else texts)]
        ids = [[self.number(m[0]) for m in each] for each in found]
        if not return_offsets_mapping:
            return {"input_ids": ids}
        spans = [[m.span() for m in each] for each in found]
        return {"input_ids": ids[0], "offset_mapping": spans[0]}

    @staticmethod
    def number(word: str) -> int:
        bare = word.strip()
        return 1000 + WORDS.index(bare) if bare in WORDS else sum(map(ord, word)) % 900


def marked(watermark: Watermark, length: int, strength: float = 1.0, seed: int = 0) -> str:
    """Words that the watermark would have chosen, each of three drawn; unmarked with strength 0."""
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    for _ in range(length):
        tries = [1000 + int(i) for i in rng.integers(len(WORDS), size=3)]
        if rng.random() < strength:
            scores = [next(Detector(None, watermark).score([np.array([*ids[-6:], t])])).values[-1] for t in tries]
            ids.append(tries[int(np.argmax(scores))])
        else:
            ids.append(tries[0])
    return " ".join(WORDS[i - 1000] for i in ids)


def damage(text: str) -> str:
    return text.replace(" ", " \u200b")


@pytest.mark.parametrize(
    "watermark", [KGW(key=5), EXP(key=5), KGW(key=5, seeding="selfhash")], ids=["kgw", "exp", "selfhash"]
)
def test_a_damaged_text_is_found_and_the_message_says_what_it_holds(watermark: Watermark) -> None:
    # it was "no watermark found" without a hint (p .83 where 1.6e-5), with characters that nobody sees
    text = marked(watermark, 80)
    whole, found = detect(text, Words(), watermark), detect(damage(text), Words(), watermark)
    assert whole.is_watermarked and whole.num_readings == 1 and whole.reading == AS_GIVEN and whole.undone == ()
    assert found.p_value == 2 * whole.p_value and found.token_ids == whole.token_ids and found.score == whole.score
    assert (found.reading, found.num_readings) == (REPAIRED, 2)
    assert found.undone == ("79 invisible characters (zero width space)",)
    assert found.given_p_value == detect(damage(text), Words(), watermark, normalize="none").p_value > 1e-3
    assert (
        "the text contains 79 invisible characters (zero width space): unchanged it would not pass (p = "
        in found.message
    )


def test_a_text_that_was_written_with_such_signs_is_still_found() -> None:
    watermark = KGW(key=5)
    text = marked(watermark, 80).replace(" ", " \u201c", 1)
    given = detect(text, Words(), watermark, normalize="none")
    found = detect(text, Words(), watermark)
    assert found.num_readings == 2 and found.p_value <= 2 * given.p_value and found.is_watermarked
    assert "it was tested unchanged and with these undone" in found.message


def test_three_readings_and_each_ids_once() -> None:
    watermark = KGW(key=5)
    detector = Detector(Words(), watermark)
    [text] = detector.read(["bal\u200b \u201cbel\u201d"])
    assert [one.name for one in text.readings] == [AS_GIVEN, REPAIRED, PLAIN]
    [text] = detector.read(["bal \u201cbel\u201d"])
    assert [one.name for one in text.readings] == [AS_GIVEN, PLAIN]
    # other text, the same ids: one test, no correction
    same = Words()
    same.number = lambda word: 7  # type: ignore[method-assign, assignment, misc]
    [text] = Detector(same, watermark).read(["bal\u00a0bel".replace("\u00a0", " \u00a0")])
    assert len(text.ids) == len({len(ids) for ids in text.ids})


def test_a_text_that_passes_only_uncorrected_says_so() -> None:
    watermark = KGW(key=5)
    text = marked(watermark, 30).replace(" ", " \u201c", 1)
    p = detect(text, Words(), watermark, normalize="none").p_value
    best = detect(text, Words(), watermark)
    assert p < best.p_value < 1
    result = detect(text, Words(), watermark, fpr=(p + best.p_value) / 2)
    assert not result.is_watermarked and "not with the correction for 2 readings" in result.message


@pytest.mark.parametrize("options", [{"normalize": "none"}, {"normalize": "nfc"}, {"mode": "compat"}])
def test_who_asks_for_one_reading_gets_one(options: dict[str, Any]) -> None:
    result = detect(damage(marked(KGW(key=5), 40)), Words(), KGW(key=5), **options)
    assert result.num_readings == 1 and result.given_p_value is None and "holds" not in result.message


def test_compat_takes_readings_when_asked() -> None:
    result = detect(damage(marked(KGW(key=5), 40)), Words(), KGW(key=5), mode="compat", normalize="readings")
    assert (result.reading, result.num_readings) == (REPAIRED, 2)


def test_none_and_readings_stand_alone() -> None:
    with pytest.raises(
        ValueError, match="normalize must be none alone or steps of nfc, nfkc, spaces, quotes, got both"
    ):
        detect("x", Words(), KGW(key=5), normalize="none,nfc")


def test_regions_are_of_the_likeliest_reading_and_corrected() -> None:
    watermark = KGW(key=5)
    text = marked(watermark, 80)
    [whole] = detect([text], Words(), watermark, regions=True)
    [found] = detect([damage(text)], Words(), watermark, regions=True)
    assert found.p_value == pytest.approx(2 * whole.p_value) and found.reading == REPAIRED
    assert [(r.start, r.end) for r in found.regions] == [(r.start, r.end) for r in whole.regions]
    assert found.regions[0].p_value == pytest.approx(2 * whole.regions[0].p_value)
    assert (found.regions[0].start_char, found.regions[0].end_char) == (0, len(text))  # of the repaired text


def test_a_prefix_is_left_out_of_every_reading() -> None:
    watermark = KGW(key=5)
    text = marked(watermark, 60)
    plain = detect(damage(text), Words(), watermark)
    assert detect("what is it?" + damage(text), Words(), watermark, prefix="what is it?").p_value == plain.p_value
    # the prefix was damaged as well
    found = detect(damage("what is it?" + text), Words(), watermark, prefix="what is it?")
    assert found.token_ids == plain.token_ids


def test_many_keys_and_lists_of_keys_read_it_as_well() -> None:
    marks = {str(i): KGW(key=i) for i in range(50)} | {"self": KGW(key=3, seeding="selfhash")}
    text = marked(marks["7"], 80)
    search = KeySearch(Words(), marks)
    whole, found = search(text), search(damage(text))
    assert found.matches == whole.matches == ("7",)
    assert np.all(found.p_values <= np.minimum(1, 2 * whole.p_values))
    assert found.results["7"] == detect(damage(text), Words(), marks["7"])
    assert found.tokens == whole.tokens and "79 invisible characters" in found.message
    assert found.nearest is not None and found.nearest.num_readings == 2
    listed = detect_any(damage(text), {name: Detector(Words(), marks[name]) for name in ("7", "8")})
    assert listed.matches == ("7",) and "79 invisible characters" in listed.message
    assert listed.results["7"].p_value == found.results["7"].p_value


def test_false_alarms_of_all_readings_together() -> None:
    """Over keys at most a share p of p or less, though the likeliest of three readings is taken."""
    text = "\u201c" + damage(marked(KGW(key=5), 60, strength=0.0)).replace(" ", "  ", 5)
    detector = Detector(Words(), KGW(key=0))
    [read] = detector.read([text])
    assert len(read.ids) == 3
    keys = [replace(detector, watermark=EXP(key=key)) for key in range(1000, 1600)]
    p = np.array([each.detect_texts([read])[0].p_value for each in keys])
    # exact Bonferroni: 600 keys, a bound of four standard deviations
    for level in (0.3, 0.1, 0.03):
        assert (p <= level).mean() <= level + 4 * np.sqrt(level * (1 - level) / len(p))
    assert (p <= 0.1).mean() > 0.03  # and not far below: the readings share little evidence


def test_reports_measure_the_test_that_is_used() -> None:
    texts = [damage(marked(KGW(key=5), 30, strength=0.0, seed=seed)) for seed in range(8)]
    detector = Detector(Words(), KGW(key=5))
    report = null_report(texts, detector)
    assert report.p_values.tolist() == [r.p_value for r in detector(texts)]
