"""Guarded texts that are shown while they are made: window by window, the marked text first."""

import dataclasses
import itertools
from typing import Any

import pytest
from decoding.architectures import build, prompt, tokenizer
from detectable.test_guarding import FREE, OPTIONS, nothing_breaks
from generating import Recorder

import caw
from caw.detectable import guarding

__all__ = ["nothing_breaks"]  # a fixture
PROMPTS = [prompt(9, seed) for seed in (0, 3, 4, 5)]
MARK = caw.KGW(key=1, delta=6.0, subkeys=4)
GIVEN = {**OPTIONS, "watermark": MARK, "detectable_at": 0.05, "guard": dataclasses.replace(FREE, window=8)}
MODEL = build("llama")


def stream(ids: list[int], **more: Any) -> tuple[str, list[int], Any]:
    recorder = Recorder()
    made: Any = caw.generate(MODEL, tokenizer(), [ids], streamer=recorder, **{**GIVEN, **more})
    assert recorder.given == [[ids], *([token] for token in made.sequences[0])] and recorder.ended == 1
    assert made.trace[0].tokens == made.sequences[0]
    return made.texts[0], made.sequences[0], made.receipts[0]


def test_what_reads_whole_texts_comes_at_the_end() -> None:
    want: Any = caw.generate(MODEL, tokenizer(), PROMPTS[:1], **GIVEN)
    [receipt] = want.receipts
    assert stream(PROMPTS[0]) == (want.texts[0], want.sequences[0], receipt) and receipt.windows is None


def test_windows_are_sent_as_they_are_settled_and_share_a_sub_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "by_window", lambda guard: True)  # tiny texts keep no content
    sends, sent, subkeys = guarding.GuardedTexts._send, list[list[int]](), list[Any]()

    def noted(own: Any, place: int, tokens: list[int]) -> None:
        sent.append(tokens)
        subkeys.append(own.texts[place].search.subkey)
        sends(own, place, tokens)

    monkeypatch.setattr(guarding.GuardedTexts, "_send", noted)
    found = changed = 0
    for ids in PROMPTS:
        sent.clear()
        subkeys.clear()
        text, tokens, receipt = stream(ids)
        result = caw.detect(text, tokenizer(), MARK, 0.05)
        assert (receipt.detected, receipt.p_value) == (result.is_watermarked, result.p_value)
        assert receipt.windows == len(sent) - 1 and receipt.kept
        assert 0 < len(sent[0]) <= 13 + 4, "the first words come after one window"
        for before, after in itertools.pairwise(sent):
            assert after[: len(before)] == before, "what was sent is not taken back"
        assert stream(ids, speculate=None) == (text, tokens, receipt)
        assert set(subkeys) - {None} == ({receipt.subkey} if receipt.changes else set()), "the first chooses"
        found, changed = found + receipt.detected, changed + (receipt.changes > 0)
    assert found >= 2 and changed >= 2


def test_a_change_that_ends_the_text_is_tested_at_the_whole_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "by_window", lambda guard: True)
    _, tokens, _ = stream(PROMPTS[0])
    for place in (19, 40, 58):  # stop strings that changed tokens write
        text, _, receipt = stream(PROMPTS[0], stop=tokenizer().decode(tokens[place : place + 2]) or "\n")
        [result] = caw.Detector(tokenizer(), MARK, 0.05)([text])
        assert receipt.detected == result.is_watermarked
        assert receipt.detected or receipt.reason.endswith("at most 0.05 is needed")


def test_what_is_not_changed_is_the_unmarked_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind every window the text goes on as if it had never been interrupted."""
    monkeypatch.setattr(guarding, "by_window", lambda guard: True)
    [plain] = caw.generate(MODEL, tokenizer(), PROMPTS[:1], max_new_tokens=60, progress=False).sequences
    detectors = ((key, caw.Detector(tokenizer(), MARK.with_key(key), 0.2)) for key in itertools.count())
    starts = [tokenizer().decode(plain[:count]) for count in range(8, 61)]
    key = next(key for key, detector in detectors if all(one.is_watermarked for one in detector(starts)))
    _, tokens, receipt = stream(PROMPTS[0], watermark=MARK.with_key(key), detectable_at=0.2)
    assert tokens == plain and receipt.windows >= 3 and receipt.rollouts == 0
