"""Guarded texts that are shown while they are made: window by window, the marked text first."""

import itertools
from typing import Any

import pytest
from decoding.architectures import build, prompt, tokenizer
from detectable.test_guarding import nothing_breaks

import caw
from caw.detectable import guarding, windows
from caw.detectable.search import z_of
from caw.detectable.trial import Trial
from caw.detection import Detector

__all__ = ["nothing_breaks"]  # a fixture
MARK = caw.KGW(key=1, delta=6.0, subkeys=4)
GUARD = caw.Guard(keeps=lambda unmarked, marked: True, rejoin=2, horizon=8, window=8)
PROMPTS = [prompt(9, seed) for seed in (0, 3, 4, 5)]
OPTIONS: dict[str, Any] = {
    "watermark": MARK, "max_new_tokens": 60, "detectable_at": 0.05, "guard": GUARD, "progress": False,
}  # fmt: skip


class Shown:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = 0

    def put(self, value: Any) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended += 1


@pytest.fixture(scope="module")
def model() -> Any:
    return build("llama")


@pytest.fixture
def any_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny texts keep no content."""
    monkeypatch.setattr(guarding, "by_window", lambda guard: True)


def stream(model: Any, ids: list[int], **more: Any) -> tuple[Any, Shown]:
    shown = Shown()
    made = caw.generate(model, tokenizer(), [ids], streamer=shown, **{**OPTIONS, **more})
    assert shown.tokens == [*ids, *made.sequences[0]] and shown.ended == 1
    return made, shown


@pytest.mark.usefixtures("any_reader")
def test_a_stream_is_changed_window_by_window_and_keeps_its_sub_key(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[list[int]] = []
    sends = windows.WindowSearch.run

    def noted(self: Any) -> Any:
        send = self.send
        self.send = lambda tokens: (sent.append(list(tokens)), send(tokens))
        return sends(self)

    monkeypatch.setattr(windows.WindowSearch, "run", noted)
    found = changed = 0
    for ids in PROMPTS:
        sent.clear()
        made, _ = stream(model, ids)
        [receipt] = made.receipts
        result = caw.detect(made.texts[0], tokenizer(), MARK, 0.05)
        assert (receipt.detected, receipt.p_value) == (result.is_watermarked, result.p_value)
        assert receipt.windows == len(sent) and receipt.kept and made.trace[0].tokens == made.sequences[0]
        assert len(sent[0]) <= 12 + 4, "the first words come after one window"
        before: list[int] = []
        for tokens in sent:  # nothing that was sent is taken back
            assert tokens[: len(before)] == before and len(tokens) > len(before)
            before = tokens
        assert receipt.rolled >= receipt.rollouts >= receipt.changes
        if receipt.changes:
            changed += 1
            assert receipt.subkey == result.subkey
        found += receipt.detected
    assert found >= 2 and changed >= 2


@pytest.mark.usefixtures("any_reader")
@pytest.mark.parametrize("settings", [{"speculate": None}, {"speculate": 4}])
def test_a_stream_does_not_depend_on_drafts(model: Any, settings: dict[str, Any]) -> None:
    made, again = stream(model, PROMPTS[0])[0], stream(model, PROMPTS[0], **settings)[0]
    assert (again.sequences, again.receipts) == (made.sequences, made.receipts) and made.receipts[0].changes


@pytest.mark.usefixtures("any_reader")
def test_what_is_not_changed_is_the_unmarked_text(model: Any) -> None:
    """Behind every window the text goes on as if it had never been interrupted."""
    options = {"max_new_tokens": 60, "progress": False}
    plain = caw.generate(model, tokenizer(), PROMPTS[:1], **options)
    detectors = ((key, caw.Detector(tokenizer(), MARK.with_key(key), 0.2)) for key in itertools.count())
    starts = [tokenizer().decode(plain.sequences[0][:count]) for count in range(8, 61)]
    key = next(key for key, detector in detectors if all(one.is_watermarked for one in detector(starts)))
    made, _ = stream(model, PROMPTS[0], watermark=MARK.with_key(key), detectable_at=0.2)
    assert made.sequences == plain.sequences and made.receipts[0].windows >= 2 and not made.receipts[0].rollouts


def test_what_reads_whole_texts_comes_at_the_end(model: Any) -> None:
    made, _ = stream(model, PROMPTS[0])
    want = caw.generate(model, tokenizer(), PROMPTS[:1], **OPTIONS)
    assert (made.sequences, made.receipts) == (want.sequences, want.receipts) and want.receipts[0].windows is None


@pytest.mark.parametrize("mark", [caw.KGW(key=1), MARK])
def test_an_easier_level_takes_its_share_of_the_z(mark: Any) -> None:
    trial = Trial(Detector(None, mark, 0.01))
    assert trial.eased(1.0).detector.fpr == pytest.approx(0.01)
    alone = 1 - (1 - trial.eased(0.5).detector.fpr) ** (1 / mark.family)
    assert z_of(alone) == pytest.approx(z_of(1 - 0.99 ** (1 / mark.family)) / 2)
