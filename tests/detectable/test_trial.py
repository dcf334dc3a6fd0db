"""The test of a text before it leaves, against the detector itself; the margin for edits by drawing."""

import pytest
from decoding.architectures import character, tokenizer

import caw
from caw.detectable.trial import DETECTED_SHARE, DRAWS, Trial, without_words
from caw.detection import Detector

MARK = caw.Unigram(key=3, gamma=0.5)
WORDS = [character(token) for token in range(3, 97)]
GREEN = [word for word in WORDS if caw.detect(word, tokenizer(), MARK).score == 1]
RED = [word for word in WORDS if word not in GREEN]


def detector(level: float = 1e-3) -> Detector:
    return Detector(tokenizer(), MARK, level)


def test_a_text_is_found_where_the_detector_finds_it() -> None:
    trial = Trial(detector())
    for greens in range(4, 14):
        text = "".join(GREEN[:greens] + RED[:2])
        verdict, result = trial(text), caw.detect(text, tokenizer(), MARK)
        assert verdict.result == result and verdict.found == result.is_watermarked == (verdict.reason == "")
    assert trial("".join(GREEN[:5])).reason == "5 tokens count, 10 are needed"
    assert trial("".join(GREEN[:9] + RED[:9])).reason == "p = 0.59, at most 0.001 is needed"
    assert trial("").reason == "0 tokens count, 10 are needed"


def test_a_text_with_a_key_of_its_own_is_tested_under_it() -> None:
    trial, text = Trial(detector()), "".join(GREEN[:20])
    own = trial(text, 8).result
    assert own == caw.detect(text, tokenizer(), caw.Unigram(key=8, gamma=0.5)) != trial(text).result
    assert trial.under(8) is trial.under(8)


def test_the_margin_is_the_share_of_draws_that_are_found() -> None:
    """Of texts near the level, some pass and some do not, and both as counted here."""
    verdicts = []
    for reds in range(8):
        text = " ".join(GREEN[:18] + RED[:reds])
        drawn = [without_words(text, 0.25, draw) for draw in range(DRAWS)]
        hits = sum(caw.detect(one, tokenizer(), MARK).is_watermarked for one in drawn)
        verdict = Trial(detector(), 0.25)(text)
        assert verdict.found == (Trial(detector())(text).found and hits >= DETECTED_SHARE * DRAWS)
        if not verdict.found and verdict.result.is_watermarked:
            assert verdict.reason == (
                f"with 25 % of its words deleted it is detected in {hits} of {DRAWS} draws, 45 are needed"
            )
        verdicts.append(verdict)
    assert {verdict.found for verdict in verdicts} == {True, False}
    assert any("draws" in verdict.reason for verdict in verdicts)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
def test_so_many_words_go_and_the_rest_stays(share: float) -> None:
    words = [f"w{i}" for i in range(37)]
    text = "  ".join(words)
    kept = without_words(text, share, 0).split()
    assert kept == [word for word in words if word in kept] and len(words) - len(kept) == -(-37 * share // 1)
    assert without_words(text, share, 0) == without_words(text, share, 0) != without_words(text, share, 1)
    assert without_words("", share, 0) == "" == without_words("one", share, 0)


def test_characters_are_words_where_no_space_is_written() -> None:
    for spoken in ("สวัสดีชาวโลก", "ｶﾀｶﾅ", "မင်္ဂလာပါ", "ជំរាបសួរ"):
        assert 0 < len(without_words(spoken, 0.1, 0)) < len(spoken)
    text = "天空是蓝色的。ひらがな and two 𠀀𠀁 words"
    assert len(without_words(text, 0.5, 0).replace(" ", "")) < len(text.replace(" ", ""))
    spelt = {without_words(text, 0.01, draw) for draw in range(200)}
    words = ["天", "空", "是", "蓝", "色", "的", "。", "ひ", "ら", "が", "な", "and", "two", "𠀀", "𠀁", "words"]
    assert len(spelt) == len(words)
    assert {len(text) - len(one) for one in spelt} == {1, 2, 4, 6}, "a space goes with the word behind it"


def test_every_word_goes_as_often() -> None:
    text = " ".join(f"w{i}" for i in range(20))
    gone = [20 - len(without_words(text, 0.1, draw).split()) for draw in range(400)]
    left = [sum(f"w{i}" in without_words(text, 0.1, draw).split() for draw in range(400)) for i in range(20)]
    assert set(gone) == {2} and all(320 < count < 395 for count in left)
