"""Guarded texts: change a token, let the unmarked model go on, and where it rejoins the old text, keep the old tail.

The unmarked text comes first. It is read once for what a mark would change in it. The cheapest of these proposals are
rolled out together, as forks of the text; each that rejoins is a patch. Patches that do not meet are put together, the
most evidence for the likelihood lost first, as long as the text keeps what it must and the detector's p-value falls.
When no proposal is left, the patched text is read again, at the next strength.

Every text is tested as it would leave, by the detector; nothing here reads a right answer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from caw.decoding.along import MarkedChoice, TextReading
from caw.decoding.decoder import Decoder
from caw.decoding.forks import Fork, ForkDecoder, Reading, ReadSequence, Stem
from caw.decoding.plan import Plan
from caw.decoding.prompt_cache import PromptCache
from caw.decoding.request import Request, Workload
from caw.decoding.sequence import ActiveSequence
from caw.decoding.stopping import StopStrings
from caw.decoding.trace import SequenceTrace, TokenTrace
from caw.detectable.attempts import Add, Attempts, Finished
from caw.detectable.receipts import Kept, write_receipt
from caw.detectable.selection import Candidate
from caw.detectable.splicing import Patch, broken, hopeless, rejoined, spliced
from caw.detectable.trial import Trial, Verdict
from caw.guard import Guard
from caw.keeps import Results, reads
from caw.policies import Policy
from caw.settings import Settings

NORMAL = NormalDist()
MORE = 2  # searches at the greatest strength after the first, as long as they change something
LEAST, WAVE = 2, 8  # rollouts of a text at once
PER_ROLLOUT = 0.2  # of z, that a rollout may add; a third of them do
CHEAP = 1.0  # nats; a change that costs less is as good
HEALINGS = 24  # of a text at one strength, after which it is given up
GIVEN_UP = 6  # patched texts that are read to see whether they healed
CHANGED = -1  # the place of a token that the unmarked text has not
LEAST_LOST = 0.3  # nats; a cheaper change is not better

Asked = Generator[list[Request], list[ActiveSequence], "Ended"]


@dataclass
class Ended:
    """A text when the search is over. sequence: as it will leave. strength: the greatest used."""

    sequence: ActiveSequence
    text: str
    verdict: Verdict
    kept: Kept
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


@dataclass(frozen=True)
class Rolled:
    """A patch that was rolled out. gain: of z, alone. lost: nats. trace: of its tokens. strength: that chose it."""

    patch: Patch
    gain: float
    lost: float
    trace: list[TokenTrace]
    strength: float


def z_of(p_value: float) -> float:
    """The z of a p-value."""
    return -NORMAL.inv_cdf(min(max(p_value, 1e-300), 1 - 1e-15))


@dataclass
class _Text:
    """A text in progress. asked: how many sequences it waits for; found: those that are there, by their order."""

    place: int
    search: Any
    stem: Stem
    started: bool = False
    asked: int = 1
    found: dict[int, ActiveSequence] = field(default_factory=dict)


class GuardedTexts(Attempts):
    """Make every text unmarked, then change it until it is detected, within what the guard allows.

    Args:
        guard: what a text must keep. strengths: factors of the policy's strength that its watermark can have.
        trial: the test. settings, policy: of the call. prompts: cache of prompts.
    """

    def __init__(
        self, requests: Sequence[Request], guard: Guard, strengths: Sequence[float], trial: Trial, stops: StopStrings,
        settings: Settings, policy: Policy, prompts: PromptCache | None,
    ) -> None:  # fmt: skip
        self.guard, self.strengths, self.trial, self.stops = guard, tuple(strengths), trial, stops
        self.settings, self.policy, self.prompts = settings, policy, prompts
        self.texts: list[_Text] = []
        first: list[Request] = []
        self.owners: list[tuple[_Text, int]] = []  # of each request, in the order in which the decoder gets them
        for place, request in enumerate(requests):
            search = Search(self, request)
            text = _Text(place, search.run(), search.stem)
            first += next(text.search)
            self.texts.append(text)
            self.owners.append((text, 0))
        self.first = first

    def workload(self, most: int, model_ends: Sequence[int]) -> Workload:
        rows = [
            dataclasses.replace(request, row=dataclasses.replace(request.row, strength_factor=strength))
            for request in self.first
            for strength in (0.0, *self.strengths)
        ]
        work = Workload.of(rows, most, model_ends)
        return dataclasses.replace(work, batch=min(most, WAVE * len(self.first)))

    def decoder(self, model: Any, plan: Plan, report: Callable[[str], None] | None) -> Decoder:
        return ForkDecoder(model, plan, report)

    def ended(self, sequence: ActiveSequence) -> bool:
        request = sequence.request
        return isinstance(request, Rollout) and request.over(sequence.tokens)

    def on_finished(self, sequence: ActiveSequence, add: Add) -> Finished | None:
        text, number = self.owners[sequence.index]
        text.found[number] = sequence
        if len(text.found) < text.asked:
            return None
        answers = [text.found[number] for number in range(text.asked)]
        if not text.started and answers[0].error:
            text.stem.clear()
            return Finished(text.place, answers[0])
        text.started, text.found = True, {}
        try:
            asked = text.search.send(answers)
        except StopIteration as done:
            return self._finish(text, done.value)
        text.asked = len(asked)
        for number, request in reversed(list(enumerate(asked))):  # each goes before all others
            self.owners.append((text, number))
            add(request, ahead=True)
        return None

    def _finish(self, text: _Text, ended: Ended) -> Finished:
        text.stem.clear()
        sequence, found = ended.sequence, ended.verdict.found
        chosen = Candidate(ended.text, ended.strength, ended.verdict, sequence.request, sequence)
        detector = self.trial.under(sequence.request.row.key)
        receipt = write_receipt(chosen, 1, detector, self.policy, self.trial.edits, ended.kept)
        if not found and self.settings.on_undetected == "drop":
            sequence.withhold()
        return Finished(text.place, sequence, receipt, lost=not found and self.settings.on_undetected == "raise")


@dataclass(frozen=True)
class Rollout(Fork):
    """A fork behind a change at `place` of the text `old`, unmarked, until it rejoins, goes wrong or has gone too far.

    possible: tells from its tokens whether it may still keep what it must; None = not asked.
    """

    place: int = 0
    count: int = 8
    horizon: int = 32
    possible: Callable[[Sequence[int]], bool] | None = field(default=None, repr=False, compare=False)

    def over(self, tokens: Sequence[int]) -> bool:
        if rejoined(self.old, tokens, self.place, self.count) is not None:
            return True
        if hopeless(self.old, tokens, self.place, self.count, self.horizon):
            return True
        return self.possible is not None and not self.possible(tokens)


class Search:
    """The search of one text: a generator that yields requests and is sent their sequences."""

    def __init__(self, texts: GuardedTexts, request: Request) -> None:
        self.texts, self.guard, self.stops, self.trial = texts, texts.guard, texts.stops, texts.trial
        row = dataclasses.replace(request.row, strength_factor=0.0)
        self.stem, self.request, self.asked = Stem(), request, dataclasses.replace(request, row=row)
        self.reader, self.error, self.rollouts = self.guard.reader, "", 0
        self.tried: set[tuple[tuple[int, ...], int]] = set()
        self.kept: dict[str, bool] = {}  # what the reader said of each text

    # The search -----------------------------------------------------------------------------------------------------

    def run(self) -> Asked:
        [whole] = yield [self._fork(saves=True)]
        self.unmarked = whole
        start = self._version(whole.tokens)
        if start.verdict.found or len(whole.tokens) < 2:  # of one token nothing can be rejoined
            return self._ended(start, list(whole.trace), 0)
        self.original = start.text
        state = _State(
            start, list(whole.trace) if self.texts.settings.return_trace else [], list(range(len(start.tokens)))
        )
        last = len(self.texts.strengths) - 1
        for number in range(last + 1 + MORE):
            before = state.version
            yield from self._level(state, min(number, last))
            if state.version.verdict.found or (number >= last and state.version is before):
                break
        return self._ended(state.version, state.trace, state.changes, state.used)

    def _level(self, state: _State, level: int) -> Generator[list[Request], list[ActiveSequence], None]:
        """Try what the mark would change in the text at this strength, until it is detected."""
        if state.reading is None:
            state.reading = yield from self._read(state.version.tokens, 0, self.texts.strengths)
        reading, base = state.reading, state.version
        proposals = [choice for choice in reading.choices if choice.level <= level and self._is_new(base, choice)]
        proposals = self._ordered(base, proposals)
        rolled: list[Rolled] = []
        best, taken = base, list[Rolled]()
        healed, whole, healings = base, list[Rolled](), 0
        while proposals and not best.verdict.found and healings < HEALINGS:
            size = self._size(best)
            wave, proposals = proposals[:size], proposals[size:]
            for choice in wave:
                self.tried.add(self._mark(base, choice))
            self.rollouts += len(wave)
            made = yield [self._rollout(base, choice) for choice in wave]
            for choice, sequence in zip(wave, made, strict=True):
                if one := self._rolled(base, choice, sequence):
                    rolled.append(one)
            best, taken = self._together(base, rolled)
            while self.guard.heals and taken and (best.verdict.found or not proposals) and healings < HEALINGS:
                before, healings = taken, healings + 1
                best, taken = yield from self._healed(base, reading, taken)
                if best.verdict.result.p_value < healed.verdict.result.p_value:
                    healed, whole = best, taken
                dropped = [one for one in before if one not in taken]
                if best.verdict.found or not dropped:
                    break
                rolled = [one for one in rolled if one not in dropped]  # others may do without them
                best, taken = self._together(base, rolled)
        if self.guard.heals:
            best, taken = healed, whole
        if taken:
            state.take(best, taken, base)

    def _read(
        self, tokens: Sequence[int], since: int, strengths: Sequence[float]
    ) -> Generator[list[Request], list[ActiveSequence], TextReading]:
        [answer] = yield [self._reading(tokens, since, strengths)]
        assert isinstance(answer, ReadSequence) and answer.reading is not None
        return answer.reading

    # What is asked of the decoder -------------------------------------------------------------------------------------

    def _fork(self, **fields: Any) -> Fork:
        asked = self.asked
        return Fork(asked.ids, asked.budget, asked.row, asked.occurrence, stem=self.stem, **fields)

    def _rollout(self, base: Version, choice: MarkedChoice) -> Rollout:
        asked = self.asked
        begun = (*base.tokens[: choice.place], choice.token)
        return Rollout(
            asked.ids, asked.budget, asked.row, asked.occurrence, begun, self.stem, tuple(base.tokens),
            place=choice.place, count=self.guard.rejoin, horizon=self.guard.horizon,
            possible=self._possible if isinstance(self.reader, Results) else None,
        )  # fmt: skip

    def _reading(self, tokens: Sequence[int], since: int, strengths: Sequence[float]) -> Reading:
        asked, row = self.asked, dataclasses.replace(self.request.row, strength_factor=self.texts.strengths[-1])
        return Reading(
            asked.ids, asked.budget, row, asked.occurrence, tuple(tokens[:-1]), self.stem, last=tokens[-1],
            since=since, strengths=tuple(strengths),
        )  # fmt: skip

    # Proposals --------------------------------------------------------------------------------------------------------

    def _mark(self, base: Version, choice: MarkedChoice) -> tuple[tuple[int, ...], int]:
        """What a proposal is known by: the tokens before it, and its own."""
        return tuple(base.tokens[max(choice.place - 20, 0) : choice.place]), choice.token

    def _is_new(self, base: Version, choice: MarkedChoice) -> bool:
        return choice.place + 1 < self.asked.budget and self._mark(base, choice) not in self.tried

    def _ordered(self, base: Version, proposals: Sequence[MarkedChoice]) -> list[MarkedChoice]:
        """Order proposals: those that touch no digit first, then the most evidence for the likelihood lost.

        The evidence is that of the text with the one token changed; what follows it may change too.
        """
        tokens = [list(base.tokens) for _ in proposals]
        for text, choice in zip(tokens, proposals, strict=True):
            text[choice.place] = choice.token
        detector = self.trial.under(self.request.row.key)
        results: Any = detector([self.stops.shown(self._visible(text)) for text in tokens])
        gains = [z_of(result.p_value) - base.z for result in results]

        def price(number: int) -> tuple[bool, float]:
            choice, gain = proposals[number], gains[number]
            pair = self.stops.text([choice.token]) + self.stops.text([base.tokens[choice.place]])
            digit = any(char.isdigit() for char in pair)
            return digit, max(choice.lost, CHEAP) / gain if gain > 0 else math.inf

        return [proposals[number] for number in sorted(range(len(proposals)), key=price)]

    def _size(self, best: Version) -> int:
        """How many rollouts to ask for next: fewer when little is missing."""
        missing = z_of(self.trial.detector.fpr) - best.z
        return min(WAVE, max(LEAST, math.ceil(missing / PER_ROLLOUT)))

    def _rolled(self, base: Version, choice: MarkedChoice, sequence: ActiveSequence) -> Rolled | None:
        """The patch of a rollout; None if it did not rejoin, breaks what must be kept, or adds no evidence."""
        place, tokens, old = choice.place, sequence.tokens, base.tokens
        if sequence.error:
            return None
        end = rejoined(old, tokens, place, self.guard.rejoin)
        own = sequence.finish_reason == "eos" or self.stops.reached(tokens)
        if end is None and own and not self.guard.heals and len(old) - place <= self.guard.horizon:
            end = len(old)  # it came to an end of its own, near the old one: nothing is copied, so nothing can heal
        if end is None:
            return None
        patch = Patch(place, end, tuple(tokens[place:])).trimmed(old)
        version = self._allowed(spliced(old, [patch]))
        if version is None or version.verdict.result.p_value >= base.verdict.result.p_value:
            return None
        trace = [choice.trace, *sequence.trace][: len(patch.tokens)] if self.texts.settings.return_trace else []
        strength = self.texts.strengths[choice.level]
        gain = version.z - base.z  # 0 where two p-values near 1 have the same z
        return Rolled(patch, gain, choice.lost, trace, strength) if gain > 0 else None

    def _together(self, base: Version, rolled: Sequence[Rolled]) -> tuple[Version, list[Rolled]]:
        """Put patches together, the most evidence for the likelihood lost first, as far as they are needed."""
        best, taken = base, list[Rolled]()
        for one in sorted(rolled, key=lambda one: max(one.lost, LEAST_LOST) / one.gain):
            if best.verdict.found:
                break
            if any(one.patch.meets(other.patch) for other in taken):
                continue
            version = self._allowed(spliced(base.tokens, [other.patch for other in (*taken, one)]))
            if version is not None and version.verdict.result.p_value < best.verdict.result.p_value:
                best, taken = version, [*taken, one]
        return best, taken

    # What a text must be ----------------------------------------------------------------------------------------------

    def _version(self, tokens: Sequence[int]) -> Version:
        text = self.stops.shown(self._visible(tokens))
        return Version(list(tokens), text, self.trial(text, self.request.row.key))

    def _visible(self, tokens: Sequence[int]) -> list[int]:
        """The tokens without an end token."""
        return list(tokens[:-1] if tokens and tokens[-1] in self.unmarked.ends else tokens)

    def _allowed(self, tokens: Sequence[int]) -> Version | None:
        """Test a spliced text; None if it is too long or short, ends early, breaks something, or does not keep it.

        One that would have gone on behind the budget is cut there, as the unmarked text was.
        """
        if self.unmarked.finish_reason == "length":
            tokens = tokens[: self.asked.budget]
        visible, whole = self._visible(tokens), self._visible(self.unmarked.tokens)
        ended = len(whole) < len(self.unmarked.tokens)
        if len(tokens) > self.asked.budget or len(visible) < self.asked.row.min_new_tokens:
            return None
        if any(token in self.unmarked.ends for token in visible) or ended is (len(visible) == len(tokens)):
            return None
        body = self.stops.text(visible[:-1])
        text = self.stops.shown(visible)
        if self.stops.cut(body) != body or broken(self.original, text) or not self._keeps(text):
            return None
        return Version(list(tokens), text, self.trial(text, self.request.row.key))

    def _possible(self, tokens: Sequence[int]) -> bool:
        """Tell whether a text that begins so may still keep what it must."""
        assert isinstance(self.reader, Results)
        return self.reader.possible(self.original, self.stops.text(list(tokens)))

    def _keeps(self, text: str) -> bool:
        if self.reader is None:
            return True
        if text not in self.kept:  # the reader may run the caller's tests
            try:
                self.kept[text] = bool(self.reader(self.original, text))
            except Exception as error:  # a caller's own function: its text is not kept, and the receipt says why
                self.error = f"{type(error).__name__}: {error}"
                self.kept[text] = False
        return self.kept[text]

    # Healing ----------------------------------------------------------------------------------------------------------

    def _healed(
        self, base: Version, reading: TextReading, taken: list[Rolled]
    ) -> Generator[list[Request], list[ActiveSequence], tuple[Version, list[Rolled]]]:
        """Drop patches until the model itself would go on as the copied tokens do."""
        for _ in range(GIVEN_UP):
            if not taken:
                break
            version = self._allowed(spliced(base.tokens, [one.patch for one in taken]))
            if version is not None:
                first = min(one.patch.start for one in taken)
                found = yield from self._read(version.tokens, first, ())
                wound = self._wound(base, reading, version, found, taken)
                if wound is None:
                    return version, taken
                taken = [one for one in taken if one is not wound]
            else:
                taken = taken[:-1]
        return base, []

    def _wound(
        self, base: Version, old: TextReading, version: Version, new: TextReading, taken: Sequence[Rolled]
    ) -> Rolled | None:
        """The patch behind which copied tokens have become unlikely; None if none."""
        shift, rise, count, worst = 0, 0.0, 0, (0.0, taken[0])
        ordered = sorted(taken, key=lambda one: one.patch.start)
        for number, one in enumerate(ordered):
            shift += len(one.patch.tokens) - (one.patch.end - one.patch.start)
            until = ordered[number + 1].patch.start if number + 1 < len(ordered) else len(base.tokens)
            own = 0.0
            for place in range(one.patch.end, until):
                here = place + shift - new.since
                if here >= len(new.own):  # cut at the budget
                    break
                own += old.own[place - old.since] - new.own[here]
                count += 1
                other = new.best[here] != base.tokens[place] and old.best[place - old.since] == base.tokens[place]
                if other and self._matters(base.tokens, place):
                    return one
            rise += own
            worst = max(worst, (own, one), key=lambda pair: pair[0])
        return worst[1] if rise > self.guard.rise * count else None

    def _matters(self, tokens: Sequence[int], place: int) -> bool:
        """Tell whether a token is part of a number, a name or code."""
        said = self.stops.text([tokens[place]])
        if any(char.isdigit() for char in said) or said.strip()[:1].isupper():
            return True
        return self.stops.text(list(tokens[:place])).count("```") % 2 == 1

    # The end ----------------------------------------------------------------------------------------------------------

    def _ended(self, version: Version, trace: Sequence[TokenTrace], changes: int, strength: float = 0.0) -> Ended:
        made, before = SequenceTrace(), self.unmarked
        made.drafts = before.trace.drafts
        for each in trace:
            made.append(each)
        sequence = ActiveSequence(
            before.index, self.request, before.ends, version.tokens, made, finish_reason=before.finish_reason
        )
        same = version.tokens == before.tokens
        checked = same or self.reader is None or reads(self.reader, self.original)
        kept = Kept(self.guard.name, 0 if same else max(1, changes), self.rollouts, self.error, checked)
        return Ended(sequence, version.text, version.verdict, kept, strength)


@dataclass
class _State:
    """How far a search has come. places: in the unmarked text, of each token of the version; CHANGED = a patch's.
    reading: of the version, None = not read yet. used: the greatest strength.
    """

    version: Version
    trace: list[TokenTrace]
    places: list[int]
    reading: TextReading | None = None
    used: float = 0.0

    @property
    def changes(self) -> int:
        """Count the stretches of the text that are not the unmarked one's."""
        count, expected = 0, 0  # expected: the next place, CHANGED within a stretch
        for place in self.places:
            if place == CHANGED:
                count += expected != CHANGED
                expected = CHANGED
            else:
                count += expected not in (CHANGED, place)
                expected = place + 1
        return count

    def take(self, version: Version, taken: Sequence[Rolled], base: Version) -> None:
        """Go on from a version with more patches."""
        made: list[TokenTrace] = []
        places: list[int] = []
        at = 0
        for one in sorted(taken, key=lambda one: one.patch.start):
            made += [*self.trace[at : one.patch.start], *one.trace]
            places += [*self.places[at : one.patch.start], *[CHANGED] * len(one.patch.tokens)]
            at = one.patch.end
            self.used = max(self.used, one.strength)
        self.trace = [*made, *self.trace[at:]][: len(version.tokens)]
        self.places = [*places, *self.places[at:]][: len(version.tokens)]
        self.version, self.reading = version, None
