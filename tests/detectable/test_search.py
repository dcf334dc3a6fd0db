"""A search that is driven by hand: what it asks for, what it takes and what it says of it."""

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from detectable.noise import let_all_pass
from tiny import tiny_tokenizer

import caw
from caw.decoding.along import MarkedChoice, TextReading
from caw.decoding.forks import ReadRequest, ReadSequence
from caw.decoding.request import ActiveSequence, Request
from caw.decoding.row_settings import RowSettings
from caw.decoding.stopping import StopStrings
from caw.decoding.trace import TokenTrace
from caw.detectable import search
from caw.detectable.search import Ended, GuardSearch
from caw.detectable.splicing import Patch, Rollout
from caw.detectable.trial import Trial
from caw.settings import Settings

READ = tiny_tokenizer()
END, [NEW] = READ.eos_token_id, READ("Z")["input_ids"]  # nowhere in the texts
MARK = caw.KGW(key=4, gamma=0.5, subkeys=16).with_vocabulary(len(READ))
PROSE = "\n".join(["He ran home.", "She saw the sky.", "It is late now.", "A car went by."] * 4)
SUMS = "So 2 * 3 = 6 and 6 + 5 = 11, and 4 x 2 = 8 pens, then 9 - 1 = 8, 7 * 1 = 7 and 5 + 5 = 10."
FREE = caw.Guard(keeps=lambda old, new: True, layout=False)
ANYTHING = SimpleNamespace(allowed=lambda text, changes: [True] * len(changes), keeps=lambda text, *, ended: True)
Lost = Callable[[Sequence[int]], list[float]]


class Driven:
    """The search of a text, of which a rollout rejoins at once. asked: kinds of its requests, in order.

    lost: gives the nats of each token of a text. likely: tokens that are proposed.
    """

    def __init__(
        self, text: str | list[int], guard: caw.Guard, *, level: float = 0.05, likely: Sequence[MarkedChoice] = (),
        lost: Lost = lambda tokens: [-1.0] * len(tokens), reason: str = "eos", stop: str | None = None,
        mark: Any = MARK, begun: int = 0, rules: Any = None, **settings: Any,
    ) -> None:  # fmt: skip
        ids = READ(text)["input_ids"] if isinstance(text, str) else text
        self.old = [*ids, END] if reason == "eos" else list(ids)
        self.likely, self.lost, self.reason, self.asked = list(likely), lost, reason, list[str]()
        given = Settings(detectable_at=level, guard=guard, **settings)
        row = RowSettings(max_new_tokens=500, min_new_tokens=given.min_new_tokens)
        budget = len(self.old) if reason == "length" else 500
        asked = Request([5, 6], budget, row, begun=tuple(self.old[:begun]))
        self.trial = Trial(caw.Detector(READ, mark, level), 0.0, mark)
        run = GuardSearch(asked, guard, (1.0, 2.0), self.trial, StopStrings(READ, stop), given, lambda: 3, rules).run()
        new, waiting, count = next(run), list[tuple[int, Request]](), 0
        while True:
            waiting += enumerate(new, count)
            count += len(new)
            number, request = waiting.pop()  # in another order than they were asked in
            try:
                new = run.send((number, self.answer(number, request)))
            except StopIteration as done:
                self.ended: Ended = done.value
                break
        self.tokens, self.text, self.report = self.ended.sequence.tokens, self.ended.text, self.ended.report

    def answer(self, number: int, request: Request) -> ActiveSequence:
        self.asked.append(type(request).__name__)
        known = len(request.begun)
        if isinstance(request, ReadRequest):
            assert request.since < len(request.text) and END not in request.begun
            likely = self.likely if request.strengths else []
            reading = TextReading(request.since, self.lost(request.text)[request.since :], [], likely)
            return ReadSequence(number, request, (END,), finish_reason="read", reading=reading)
        if isinstance(request, Rollout):
            return ActiveSequence(number, request, (END,), self.old[known : known + request.count])
        return ActiveSequence(number, request, (END,), self.old[known:], finish_reason=self.reason)


def choice(place: int, token: int, lost: float = 0.5) -> MarkedChoice:
    return MarkedChoice(place, token, 0, lost, TokenTrace(token, 0.5, 1.0, (0, token), 1))


@pytest.mark.parametrize(("text", "keeps", "level"), [
    (PROSE, "content", 0.05), (PROSE, "number", 0.05), (SUMS, "results", 0.3), (SUMS, "content", 0.3),
])  # fmt: skip
def test_layout_needs_no_rollout(text: str, keeps: str, level: float) -> None:
    made = Driven(text, caw.Guard(keeps), level=level)
    result = caw.detect(made.text, READ, MARK, level)
    assert made.asked == ["Fork", "ReadRequest"] and (made.report.rollouts, made.report.rolled) == (0, 0)
    assert made.ended.verdict.found and (made.report.subkey, made.report.changes > 0) == (result.subkey, True)
    assert made.text == READ.decode(made.tokens[:-1]) != text and made.tokens[-1] == END
    said, unmarked = ([char for char in each if char not in " \n×*x"] for each in (made.text, text))
    assert said == unmarked


@pytest.mark.parametrize(("guard", "rules"), [
    (caw.Guard(layout=False), None), (caw.Guard("json"), None), (caw.Guard("json:a"), None),
    (caw.Guard("python"), None), (caw.Guard(caw.keeps.json(["a"])), None), (caw.Guard(), ANYTHING),
])  # fmt: skip
def test_layout_stays_where_it_must(guard: caw.Guard, rules: Any) -> None:
    made = Driven(PROSE, guard, rules=rules)
    assert made.text == PROSE and not made.report.changes and not made.ended.verdict.found


@pytest.mark.parametrize(("inside", "behind", "taken"), [
    (1.0, [1.0], True), (3.9, [0.0], True), (4.1, [0.0], False), (0.0, [1.9, 1.9], True), (0.0, [2.1], False),
    (1.0, [1.5, 1.6], False), (4.5, [-1.0], True), (0.0, [0.0] * 23 + [2.1], False), (0.0, [0.0] * 24 + [2.1], True),
])  # fmt: skip
def test_a_change_loses_what_the_guard_allows(
    monkeypatch: pytest.MonkeyPatch, inside: float, behind: list[float], taken: bool
) -> None:
    """In its tokens and up to 24 behind them, as the model reads the changed text; half of it at one of these."""
    let_all_pass(monkeypatch)
    read = []

    def lost(tokens: Sequence[int]) -> list[float]:
        nats = [-1.0] * (len(tokens) + 40)
        for place, token in enumerate(tokens):
            if token == NEW:
                nats[place] -= inside
                read.append(tokens)
                nats[place + 1 : place + 1 + len(behind)] = [-1 - each for each in behind]
        return nats[: len(tokens)]

    guard = caw.Guard(FREE.keeps, loss=4.0, layout=False)
    for place in range(10, 60, 4):
        made = Driven(PROSE, guard, lost=lost, likely=[choice(place, NEW)])
        if read:
            break
    assert read and (NEW in made.tokens) is taken and "Rollout" in made.asked
    assert made.report.changes == taken and made.report.rollouts == 1


HOSTILE = {
    "empty": "", "one": "A", "lines": "\n\n\n\n\n", "spaces": "  \n  \n  ", "looped": "He ran.\n" * 30,
    "cut": READ("It is \U0001f642\U0001f642")["input_ids"][:-2], "half": [200, 201, *READ("\nIt is. ")["input_ids"]],
    "prose": PROSE, "sums": SUMS,
}  # fmt: skip
RECOMMENDED = caw.Recommended(key=4).with_vocabulary(len(READ))


@pytest.mark.parametrize("more", [
    {}, {"reason": "length"}, {"reason": "length", "begun": 3}, {"begun": 9}, {"min_new_tokens": 30},
    {"on_undetected": "unmarked"}, {"reason": "stop", "stop": "."}, {"stop": "\n\n"}, {"stop": "×"},
    {"mark": caw.KGW(key=4).with_vocabulary(len(READ))}, {"mark": caw.EXP(key=4).with_vocabulary(len(READ))},
    {"mark": caw.Unigram(key=4, subkeys=4).with_vocabulary(len(READ))}, {"mark": RECOMMENDED},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", HOSTILE)
def test_every_text_leaves_whole_and_as_its_receipt_says(name: str, more: dict[str, Any]) -> None:
    text = HOSTILE[name]
    ids = READ(text)["input_ids"] if isinstance(text, str) else text
    if more.get("reason") == "stop":
        dot = next((place for place, token in enumerate(ids) if token == READ(".")["input_ids"][0]), None)
        if dot is None:
            pytest.skip("holds no stop string")
        ids = ids[: dot + 1]
    if len(ids) <= more.get("begun", 0) or (not ids and more.get("reason") == "length"):
        pytest.skip("shorter than what it begins with")
    likely = [choice(place, 40 + place % 7) for place in range(more.get("begun", 0), len(ids))]
    made = Driven(ids, caw.Guard(rollouts=20), likely=likely, return_trace=False, **more)
    old = Driven(ids, FREE, likely=[], return_trace=False, **more)
    stops = StopStrings(READ, more.get("stop"))
    visible = made.tokens[:-1] if made.tokens[-1] == END else made.tokens
    assert made.text == stops.shown(visible) and (made.tokens[-1] == END) == (old.tokens[-1] == END)
    assert made.tokens[: more.get("begun", 0)] == ids[: more.get("begun", 0)]
    assert abs(len(made.tokens) - len(old.tokens)) <= max(4, 0.1 * len(old.tokens))
    assert len(visible) >= min(more.get("min_new_tokens", 0), len(ids))
    assert (made.tokens != old.tokens) == (made.report.changes > 0) and made.report.rollouts <= 20
    verdict = made.trial(made.text)
    assert made.ended.verdict == verdict and made.report.kept
    assert made.ended.sequence.finish_reason == old.ended.sequence.finish_reason
    if made.report.changes:
        before = made.trial(old.text).result.p_value
        assert verdict.result.p_value < before and (verdict.found or not more.get("on_undetected"))
    assert caw.keeps.content()(old.text, made.text)


def test_what_may_lose_nothing_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    let_all_pass(monkeypatch)
    likely = [choice(10, NEW, 0.0), choice(18, NEW, 0.1)]
    made = Driven(PROSE, caw.Guard(FREE.keeps, loss=0, layout=False), likely=likely)
    assert [place for place, token in enumerate(made.tokens) if token == NEW] == [10] and made.report.rollouts == 1


def test_what_is_cut_at_the_budget_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other changes make the text longer, so that those at its end are behind the budget: the reading had no place."""
    let_all_pass(monkeypatch)
    ids, draw, ended = READ(PROSE)["input_ids"], random.Random(2), 0
    last = range(len(ids) - 8, len(ids) - 3)
    for _ in range(8):
        longer = [Patch(k, k + 1, (draw.randint(30, 90), draw.randint(30, 90), ids[k])) for k in range(5, 60, 6)]
        monkeypatch.setattr(search, "layout_patches", lambda *given, longer=longer: longer)
        likely = [choice(place, draw.randint(30, 90)) for place in last for _ in range(4)]
        made = Driven(ids, caw.Guard("number"), level=1e-6, likely=likely, reason="length")
        ended += len(made.tokens) == len(ids) and made.report.changes > 0
    assert ended
