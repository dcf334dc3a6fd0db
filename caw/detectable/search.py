"""The search of one guarded text: which changes make it detected, within what the guard allows.

The unmarked text comes first. Its layout (`layout.py`) and other words that its distributions call likely are patches
of it, whatever the key: a word is changed in a fork of the text, the unmarked model goes on, and where that rejoins,
the old tail follows. Patches at different places are put together under the sub-key under which they lose the least
(`combining.py`), as long as the text keeps what it must, until it is detected. Then the model reads it, and a patch
that loses too much there is none. More words are tried only while this is not enough.

Every rollout begins in the unmarked text, so none waits for another one, and they are judged in the order in which they
were proposed: how many are made at once changes no text, only how many are made in vain. Every text is tested as it
would leave, by the detector; nothing here reads a right answer.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Protocol, TypeVar

from caw.decoding.along import MarkedChoice, TextReading
from caw.decoding.forks import Fork, ReadRequest, ReadSequence, Stem
from caw.decoding.request import ActiveSequence, Request
from caw.decoding.stopping import StopStrings
from caw.decoding.trace import SequenceTrace, TokenTrace
from caw.detectable.combining import SubkeyEvidence, combined
from caw.detectable.damage import broken, disordered, unclosed
from caw.detectable.keeping import Keeping
from caw.detectable.layout import layout_patches
from caw.detectable.losses import BEHIND, exceeds, limits_of
from caw.detectable.receipts import GuardReport
from caw.detectable.splicing import Patch, Rolled, Rollout, rejoined, spliced
from caw.detectable.trial import Trial, Verdict
from caw.detection.ids import to_ids
from caw.detection.subkeys import reads_subkeys
from caw.guard import Guard
from caw.keeps import Json, Parses
from caw.keeps.parts import names_in
from caw.policies import FixedStrength
from caw.policies.mark import Mark
from caw.settings import Settings
from caw.watermarks import Watermark

NORMAL, NAN, INF = NormalDist(), float("nan"), float("inf")
TRIED, SLACK = 8, 0.2  # sub-keys under which patches are put together; z that may seem to be missing
PORTION, READINGS = 8, 12  # rollouts between two trials to put patches together; texts that are read for what they lose
LAYOUT = 0.5  # nats that a patch of the layout counts as
REJOINS = 0.35  # share of proposals that become patches
LENGTHS, FEW_TOKENS = 0.1, 4  # share of a text's tokens by which its length may change, and tokens that always may

# A search yields further requests and is sent one sequence: (the number of its request, from 0, and itself)
Numbered = tuple[int, ActiveSequence]
T = TypeVar("T")
Asks = Generator[list[Request], Numbered, T]


@dataclass
class Ended:
    """A text when the search is over. sequence: as it will leave. strength: the greatest used."""

    sequence: ActiveSequence
    text: str
    verdict: Verdict
    report: GuardReport
    strength: float = 0.0


@dataclass(frozen=True)
class Version:
    """A text with some patches, and what its test said."""

    tokens: list[int]
    text: str
    verdict: Verdict

    @property
    def z(self) -> float:
        return z_of(self.verdict.result.p_value)


def z_of(p_value: float) -> float:
    return -NORMAL.inv_cdf(min(max(p_value, 1e-300), 1 - 1e-15))


class TextRules(Protocol):
    """Which tokens a text may have, where not all are allowed: a schema's."""

    def allowed(self, text: Sequence[int], changes: Sequence[tuple[int, int]]) -> list[bool]:
        """Tell of each (place, token) whether the token may stand there behind the text so far."""

    def keeps(self, text: Sequence[int], *, ended: bool) -> bool:
        """Tell whether tokens, without an end token, are allowed: as a whole text if it ended, else as a beginning."""


class GuardSearch:
    """A generator (`run`) that yields requests and is sent their sequences, in any order.

    Args:
        request: of the text. strengths: factors of the policy's strength that its watermark can have. together: returns
            how many rollouts to make at once. rules: of what the tokens may be, None = anything.
    """

    def __init__(
        self, request: Request, guard: Guard, strengths: Sequence[float], trial: Trial, stops: StopStrings,
        settings: Settings, together: Callable[[], int], rules: TextRules | None = None,
    ) -> None:  # fmt: skip
        self.guard, self.strengths, self.stops, self.trial = guard, tuple(strengths), stops, trial
        self.own = trial  # under the sub-key that marks the text, once it is there
        self.subkeys: SubkeyEvidence | None = None  # of a mark with several
        self.likely, self.limits = list[float](), list[float]()  # nats of each unmarked token; that a change may lose
        self.traces, self.together, self.rules = settings.return_trace, together, rules
        self.all_or_nothing = settings.on_undetected == "unmarked"
        row = dataclasses.replace(request.row, strength_factor=0.0)
        self.stem, self.request, self.asked = Stem(), request, dataclasses.replace(request, row=row)
        self.subkey: int | None = None  # None = that of which the unmarked text shows most
        self.keeping: Keeping | None = None  # of the unmarked text, once it is there and not detected
        self.rollouts, self.rolled, self.readings = 0, 0, 0  # and their tokens; of changed texts
        self.cheap: list[Rolled] = []  # patches that alone lose little enough
        self.spliced: dict[tuple[int, ...], tuple[list[int], str] | None] = {}  # changed texts, None = not allowed
        self.asking: list[Request] = []
        self.requests = 0  # asked for so far
        self.arrived: dict[int, ActiveSequence] = {}

    # The search -----------------------------------------------------------------------------------------------------

    def run(self) -> Asks[Ended]:
        asked = self.asked
        first = Fork(asked.ids, asked.budget, asked.row, asked.occurrence, asked.begun, self.stem, saves=True)
        whole = yield from self._answer(self._ask(first))
        return (yield from self.settle(whole))

    def settle(self, whole: ActiveSequence) -> Asks[Ended]:
        """Search the changes of an unmarked text, behind the tokens that it was asked to begin with."""
        self.unmarked, self.keeping = whole, None
        text = self.stops.shown(self._visible(whole.tokens))
        base = Version(list(whole.tokens), text, self.trial(text, self.request.row.key))
        if base.verdict.found or len(whole.tokens) < 2:  # of one token nothing can be rejoined
            return self._ended(_Progress(base))
        self.own = self.trial.of_subkey(text, self.request.row, self.subkey)
        base = self.base = Version(base.tokens, text, self.own(text))
        names = names_in(self.stops.text(list(self.request.ids))) | names_in(text)
        self.keeping = Keeping(self.guard.reader, text, names)
        if self.keeping.lost:
            return self._ended(_Progress(base))
        begun, state = len(self.asked.begun), _Progress(base)
        reading = yield from self._likelihoods(self._ask(self._reading(base.tokens, begun, self.strengths)))
        self.likely, self.readings, self.spliced, self.cheap = [0.0] * begun + reading.own, 0, {}, []
        self.limits = limits_of([self.stops.text([token]) for token in base.tokens], self.guard.loss)
        several = reads_subkeys(mark := self._marking) and reading.likely
        self.subkeys = SubkeyEvidence(mark) if several else None
        state.rolled, state.fresh = self._layout(), True
        yield from self._put_together(state)
        if not state.over:
            yield from self._try(state, self._ordered(reading.likely or reading.choices, state.rolled))
        if not state.over and not self.all_or_nothing:
            yield from self._put_together(state, anyhow=True)
        return self._ended(_Progress(base) if self.all_or_nothing and not state.over else state)

    def _try(self, state: _Progress, proposals: Sequence[MarkedChoice]) -> Asks[None]:
        """Roll proposals out, in order, until the text is detected or has had all its rollouts."""
        waiting, flying, due = deque(proposals), deque[tuple[MarkedChoice, int]](), self.rollouts + PORTION
        while (waiting or flying) and not state.over and self.rollouts < self.guard.rollouts:
            room = min(max(self.together(), 1), self.guard.rollouts - self.rollouts)
            while waiting and len(flying) < room:  # some in vain: a row more costs little, an empty one as much
                choice = waiting.popleft()
                flying.append((choice, self._ask(self._rollout(choice))))
            choice, number = flying.popleft()
            sequence = yield from self._answer(number)
            self.rollouts += 1
            self.rolled += len(sequence.tokens) - choice.place
            one = self._rolled(choice, sequence)
            if one and all(one.patch != other.patch for other in state.rolled):
                state.rolled.append(one)
                state.fresh = True
            if self.rollouts >= due:
                due += max(PORTION, self.rollouts // 4)
                yield from self._put_together(state)
        yield from self._put_together(state)

    def _put_together(self, state: _Progress, *, anyhow: bool = False) -> Asks[None]:
        """Put patches together, and have the text read that comes of it; one that loses too much there is none.

        anyhow: also if the text is not detected.
        """
        while state.rolled and (state.fresh or anyhow) and self.readings < READINGS:
            self.own, version, taken = self._cheapest(state.rolled, anyhow=anyhow)
            state.fresh = False
            if not taken or not (version.verdict.found or anyhow):
                return
            dear = yield from self._dear(version, taken)
            if dear and version.verdict.found:
                state.rolled, state.fresh = [one for one in state.rolled if one not in dear], True
                continue
            while dear:  # the others are read again without them, which lose something else there
                taken = [one for one in taken if one not in dear]
                left = self._allowed([one.patch for one in taken]) if taken else None
                if left is None:
                    return
                version, dear = left, (yield from self._dear(left, taken))
            new, old = (self.trial(each.text, self.request.row.key).result.p_value for each in (version, self.base))
            if version.verdict.found or new < old:
                state.best, state.taken = version, taken
            return

    def _cheapest(self, rolled: Sequence[Rolled], *, anyhow: bool) -> tuple[Trial, Version, list[Rolled]]:
        """The test, text and patches of the sub-key under which a detected text loses the least; if none is detected,
        of that with the least p-value. Those that promise too little are tried if `anyhow`.
        """
        patches, lost = [one.patch for one in rolled], [one.cost for one in rolled]
        needed = z_of(self.own.detector.fpr) - SLACK  # by a normal law, which asks for less than the exact one
        made: list[tuple[tuple[bool, float], Trial, Version, list[Rolled]]] = []
        keys: Sequence[int | None] = [self.subkey]
        if self.subkeys is not None:
            evidence = self.subkeys.of(self._visible(self.base.tokens), patches)
            if self.subkey is None:
                keys = evidence.tried(-INF if anyhow else needed, TRIED)
        for key in keys:
            if self.subkeys is None or key is None:
                alone = [self._allowed([patch]) for patch in patches]
                gains, best = [0.0 if one is None else one.z - self.base.z for one in alone], list[int]()
            else:
                self.own = self.trial.of_subkey("", self.request.row, key)
                gains, best = evidence.gains[key].tolist(), evidence.best(key)

            def version(numbers: Sequence[int]) -> tuple[Version, bool] | None:
                some = self._allowed([patches[number] for number in numbers])
                return None if some is None else (some, some.verdict.found)

            def shown(numbers: Sequence[int], key: int | None = key) -> float:
                some = [patches[number] for number in numbers]
                if abs(sum(patch.longer for patch in some)) > self._most_longer():
                    return -INF
                if self.subkeys is not None and key is not None:
                    return self.subkeys.shown(self._visible(spliced(self.base.tokens, some)), some, key)
                text = self._allowed(some) if some else self.base
                return -INF if text is None else text.z

            numbers, text, found = combined(patches, lost, gains, best, needed, shown, version)
            if text is not None:
                taken = [rolled[number] for number in numbers]
                lost_by = sum(one.cost for one in taken) if found else -text.z
                made.append(((not found, lost_by), self.own, text, taken))
        if not made:
            return self.own, self.base, []
        return min(made, key=lambda each: each[0])[1:]

    def _dear(self, version: Version, taken: Sequence[Rolled]) -> Asks[list[Rolled]]:
        """Have patches read that change words, each alone once, and then all together; return those by which the text
        loses too much: in all, with copied tokens behind them, or half of that at one of these. Those behind the
        budget, where the others make the text longer than that, are none either.

        In a text with several, what one makes unlikely may be another one's. So those that are too dear alone go first.
        """
        order, places, longer = sorted(taken, key=lambda one: one.patch.start), list[int](), 0
        for one in order:
            places.append(one.patch.start + longer)
            longer += one.patch.longer
        dear = [one for one, place in zip(order, places, strict=True) if place >= len(version.tokens)]
        words = [one for one in order if not (one.layout or one in dear)]
        numbers: dict[int, Rolled] = {}
        for one in words:
            if one not in self.cheap:
                until = min(one.patch.start + len(one.patch.tokens) + BEHIND, self.asked.budget)
                tokens = spliced(self.base.tokens, [one.patch])[:until]
                numbers[self._ask(self._reading(tokens, one.patch.start))] = one
        for number, one in numbers.items():
            own = (yield from self._likelihoods(number)).own
            (dear if exceeds(self.limits, self.likely, one.patch, own) else self.cheap).append(one)
        if dear or len(words) < 2:
            return dear
        self.readings += 1
        since = places[order.index(words[0])]
        own = (yield from self._likelihoods(self._ask(self._reading(version.tokens, since)))).own
        ends = [*(one.patch.start for one in order[1:]), None]
        return [
            one for one, place, end in zip(order, places, ends, strict=True)
            if one in words and exceeds(self.limits, self.likely, one.patch, own[place - since :], end)
        ]  # fmt: skip

    # What is asked of the decoder -------------------------------------------------------------------------------------

    def _ask(self, request: Request) -> int:
        """Ask for a sequence with the next answer that is waited for; return the number of the request."""
        self.asking.append(request)
        self.requests += 1
        return self.requests - 1

    def _answer(self, number: int) -> Asks[ActiveSequence]:
        """Wait for a sequence; others may come first."""
        while number not in self.arrived:
            asking, self.asking = self.asking, []
            other, sequence = yield asking
            self.arrived[other] = sequence
        return self.arrived.pop(number)

    def _rollout(self, choice: MarkedChoice) -> Rollout:
        asked, old = self.asked, self.base.tokens
        begun = (*old[: choice.place], choice.token)
        return Rollout(
            asked.ids, asked.budget, asked.row, asked.occurrence, begun, self.stem, tuple(old),
            own=[], place=choice.place, count=self.guard.rejoin, horizon=self.guard.horizon,
        )  # fmt: skip

    def _reading(self, tokens: Sequence[int], since: int, strengths: tuple[float, ...] = ()) -> ReadRequest:
        """A request to read a text from a place on, and to say what the mark would change in it at these strengths."""
        asked, row = self.asked, dataclasses.replace(self.request.row, strength_factor=self.strengths[-1])
        return ReadRequest(
            asked.ids, asked.budget, row, asked.occurrence, tuple(tokens[:-1]), self.stem, last=tokens[-1],
            since=since, strengths=strengths, mark=self._mark,
        )  # fmt: skip

    def _likelihoods(self, number: int) -> Asks[TextReading]:
        """Wait for a text that is read."""
        answer = yield from self._answer(number)
        assert isinstance(answer, ReadSequence) and answer.reading is not None
        return answer.reading

    @property
    def _mark(self) -> Mark | None:
        """What marks the text: the request's own, or its one sub-key if there are several."""
        mark = self.own.mark
        several = self.trial.marking(self.request.row).family > 1
        return Mark(mark, FixedStrength()) if several and isinstance(mark, Watermark) else self.request.mark

    @property
    def _marking(self) -> Watermark:
        """What marks the text, with all its sub-keys."""
        row = self.request.row
        mark = self.trial.marking(row)
        mark = mark if row.key is None else mark.with_key(row.key)
        assert isinstance(mark, Watermark)
        return mark

    # Proposals --------------------------------------------------------------------------------------------------------

    def _ordered(self, proposals: Sequence[MarkedChoice], layout: Sequence[Rolled]) -> list[MarkedChoice]:
        """Order proposals: places that the policy marks first, then what adds the most to the evidence for what it
        loses, other places before other words of one.

        The evidence is that of the text with the one token changed, under the sub-key that promises the most; what
        follows it may change too. Those that nothing can follow, that lose too much or that the rules do not allow are
        left out.
        """
        base, most = self.base, self.limits
        near = [each for each in proposals if each.place + 1 < self.asked.budget and self.stops.text([each.token])]
        proposals = [each for each in near if each.lost <= most[each.place]]
        if self.rules is not None:
            may = self.rules.allowed(base.tokens, [(each.place, each.token) for each in proposals])
            proposals = [each for each, allowed in zip(proposals, may, strict=True) if allowed]
        patches = [Patch(each.place, each.place + 1, (each.token,)) for each in proposals]
        worth = [1 - each.lost / most[each.place] if most[each.place] else 1.0 for each in proposals]
        if self.subkeys is None:
            texts = [self.stops.shown(self._visible(spliced(base.tokens, [patch]))) for patch in patches]
            gains = [z_of(result.p_value) - base.z for result in self.own.detector(texts)]
        else:
            evidence = self.subkeys.of(self._visible(base.tokens), [*(one.patch for one in layout), *patches])
            promise = evidence.promise([1.0] * len(layout) + [REJOINS * each for each in worth])
            key = int(promise.argmax()) if self.subkey is None else self.subkey
            gains = evidence.gains[key, len(layout) :].tolist()
        values = [gain * each for gain, each in zip(gains, worth, strict=True)]
        before, order = Counter[int](), dict[int, tuple[bool, float, float]]()
        for number in sorted(range(len(proposals)), key=lambda number: -values[number]):
            each = proposals[number]
            before[each.place] += 1
            order[number] = not each.trace.strength, min(-values[number] / before[each.place], 0.0), each.lost
        return [proposals[number] for number in sorted(order, key=lambda number: order[number])]

    def _layout(self) -> list[Rolled]:
        """Patches of the layout, which nothing is asked about; none of JSON or of code, and none where rules hold."""
        if not self.guard.layout or self.rules is not None or isinstance(self.guard.reader, Json | Parses):
            return []
        tokens, tokenizer = self._visible(self.base.tokens), self.trial.detector.tokenizer
        patches = layout_patches(
            tokens, len(self.asked.begun), self.stops.text, lambda text: to_ids([text], tokenizer)[0].tolist()
        )
        strength = self.strengths[0]
        return [
            Rolled(each, LAYOUT, [TokenTrace(token, NAN, 0.0, (token,), 0) for token in each.tokens], strength, True)
            for each in patches
            if self._splice([each]) is not None
        ]

    def _rolled(self, choice: MarkedChoice, sequence: ActiveSequence) -> Rolled | None:
        """The patch of a rollout; None if it did not rejoin, loses too much or breaks what must be kept."""
        place, tokens, old = choice.place, sequence.tokens, self.base.tokens
        if sequence.error:
            return None
        end = rejoined(old, tokens, place, self.guard.rejoin)
        ended = sequence.finish_reason == "eos" or self.stops.reached(tokens)
        if end is None and ended and len(old) - place <= self.guard.horizon:
            end = len(old)  # it came to an end of its own, near the old one: nothing is copied
        if end is None:
            return None
        patch, lost = Patch(place, end, tuple(tokens[place:])).trimmed(old), choice.lost
        assert isinstance(sequence.request, Rollout)
        if likely := sequence.request.own:
            behind = len(tokens) - place - 1  # the last ones are the old text's again
            lost += sum(self.likely[place + 1 : end]) - sum(likely[-behind - 1 : -1])
        if lost > self.limits[place] or self._splice([patch]) is None:
            return None
        trace: list[TokenTrace] = []
        if self.traces:
            new = list(sequence.trace)[place + 1 - len(sequence.request.begun) :]
            trace = [choice.trace, *new][: len(patch.tokens)]
        return Rolled(patch, lost, trace, self.strengths[choice.level])

    # What a text must be ----------------------------------------------------------------------------------------------

    def _visible(self, tokens: Sequence[int]) -> list[int]:
        """The tokens without an end token."""
        return list(tokens[:-1] if tokens and tokens[-1] in self.unmarked.ends else tokens)

    def _allowed(self, patches: Sequence[Patch]) -> Version | None:
        """Test a spliced text; None if it is not allowed."""
        allowed = self._splice(patches)
        return None if allowed is None else Version(*allowed, self.own(allowed[1]))

    def _splice(self, patches: Sequence[Patch]) -> tuple[list[int], str] | None:
        """Return the tokens and the text of a spliced text; None if its length changes too much, or it ends early,
        breaks or does not keep what it must. One that goes on behind the budget is cut there, as the unmarked text was.
        """
        known = tuple(tokens := spliced(self.base.tokens, patches))
        if known not in self.spliced:
            self.spliced[known] = self._checked(patches, tokens)
        return self.spliced[known]

    def _checked(self, patches: Sequence[Patch], tokens: list[int]) -> tuple[list[int], str] | None:
        longer, original = len(tokens) - len(self.unmarked.tokens), self.base.text
        if self.unmarked.finish_reason == "length":
            tokens = tokens[: self.asked.budget]
        visible, whole = self._visible(tokens), self._visible(self.unmarked.tokens)
        ended = len(whole) < len(self.unmarked.tokens)
        if len(tokens) > self.asked.budget or len(visible) < self.asked.row.min_new_tokens:
            return None
        if abs(longer) > self._most_longer():
            return None
        if any(token in self.unmarked.ends for token in visible) or ended is (len(visible) == len(tokens)):
            return None
        if self.unmarked.finish_reason == "stop" and not self.stops.reached(list(tokens)):
            return None
        if self.rules is not None and not self.rules.keeps(visible, ended=ended):
            return None
        assert self.keeping is not None
        body, text = self.stops.text(visible[:-1]), self.stops.shown(visible)
        if self.stops.cut(body) != body or disordered(original, text):
            return None
        if broken(self.base.tokens, patches, self.stops.text) or (longer > 0 and unclosed(original, text)):
            return None
        return (list(tokens), text) if self.keeping(text) else None

    def _most_longer(self) -> float:
        """By how many tokens a text may become longer or shorter."""
        return max(LENGTHS * (len(self.unmarked.tokens) - len(self.asked.begun)), FEW_TOKENS)

    # The end ----------------------------------------------------------------------------------------------------------

    def _ended(self, done: _Progress) -> Ended:
        version, before = done.best, self.unmarked
        whole, trace, changes = SequenceTrace(), list[TokenTrace](), 0
        since = at = len(self.asked.begun)  # traces are of the new tokens alone
        old = list(before.trace) if self.traces else []
        for one in sorted(done.taken, key=lambda one: one.patch.start):
            changes += not changes or one.patch.start > at
            trace += [*old[at - since : one.patch.start - since], *one.trace]
            at = one.patch.end
        for each in [*trace, *old[at - since :]][: len(version.tokens) - since]:
            whole.append(each)
        whole.drafts = before.trace.drafts
        reason = before.finish_reason
        if reason != "eos" and self.stops.reached(version.tokens):
            reason = "stop"
        tokens = version.tokens[len(self.request.begun) :]
        sequence = ActiveSequence(before.index, self.request, before.ends, tokens, whole, finish_reason=reason)
        same = version.tokens == before.tokens
        keeping = self.keeping
        holds, error = (True, "") if keeping is None else (keeping.verdict(version.text), keeping.error)
        subkey = getattr(self.own.mark, "subkey", 0) if done.taken else self.subkey
        report = GuardReport(
            self.guard.name, 0 if same else changes, self.rollouts, error, holds, self.rolled, subkey
        )  # fmt: skip
        verdict = self.trial(version.text, self.request.row.key)  # by the whole detector
        return Ended(sequence, version.text, verdict, report, max((one.strength for one in done.taken), default=0.0))


@dataclass
class _Progress:
    """How far a search has come. best: the unmarked text with the patches `taken`. rolled: all patches that may be
    taken. fresh: whether one of them is new since they were put together."""

    best: Version
    taken: list[Rolled] = field(default_factory=list)
    rolled: list[Rolled] = field(default_factory=list)
    fresh: bool = False

    @property
    def over(self) -> bool:
        return self.best.verdict.found
