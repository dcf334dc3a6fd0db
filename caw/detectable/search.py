"""The search of one guarded text: which changes make it detected, within what the guard allows.

The unmarked text comes first. Its distributions say what a mark would change in it. These proposals are tried in order,
the best first: the text is forked with the changed token, and the unmarked model goes on. One that rejoins is a patch
of the unmarked text. Patches at different places are put together, as long as the text keeps what it must and the
detector's p-value falls, until it is detected.

Every rollout begins in the unmarked text, so none waits for another one, and they are judged in the order in which they
were proposed: how many are made at once changes no text, only how many are made in vain. Every text is tested as it
would leave, by the detector; nothing here reads a right answer.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Protocol

from caw.decoding.along import MarkedChoice
from caw.decoding.forks import Fork, ReadRequest, ReadSequence, Stem
from caw.decoding.request import ActiveSequence, Request
from caw.decoding.stopping import StopStrings
from caw.decoding.trace import SequenceTrace, TokenTrace
from caw.detectable.damage import broken, disordered, unclosed
from caw.detectable.keeping import Keeping
from caw.detectable.receipts import GuardReport
from caw.detectable.splicing import Patch, hopeless, most_gain, rejoined, spliced
from caw.detectable.trial import Trial, Verdict
from caw.guard import Guard
from caw.keeps.parts import names_in
from caw.policies import FixedStrength
from caw.policies.mark import Mark
from caw.settings import Settings
from caw.watermarks import Watermark

NORMAL = NormalDist()
ROLLOUT = 3.0  # nats that a rollout counts as
# chance that a change rejoins, what entropy takes from it, per nat, and up to how many
SURE, DOUBT, UNSURE = 0.7, 0.15, 3.0
LENGTHS, FEW_TOKENS = 0.1, 4  # share of a text's tokens by which its length may change, and tokens that always may

# A search yields further requests and is sent one sequence: (the number of its request, from 0, and itself)
Numbered = tuple[int, ActiveSequence]
Asked = Generator[list[Request], Numbered, "Ended"]


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


@dataclass(frozen=True)
class Rolled:
    """A patch that was rolled out. gain: of z, alone. lost: nats. trace: of its tokens. strength: that chose it."""

    patch: Patch
    gain: float
    lost: float
    trace: list[TokenTrace]
    strength: float


def z_of(p_value: float) -> float:
    return -NORMAL.inv_cdf(min(max(p_value, 1e-300), 1 - 1e-15))


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
        if self.stem.closed or rejoined(self.old, tokens, self.place, self.count) is not None:
            return True
        if hopeless(self.old, tokens, self.place, self.count, self.horizon):
            return True
        return self.possible is not None and not self.possible(tokens)


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
        self.own = trial  # under the sub-key that the unmarked text shows most of, once it is there
        self.traces, self.together, self.rules = settings.return_trace, together, rules
        self.all_or_nothing = settings.on_undetected == "unmarked"
        row = dataclasses.replace(request.row, strength_factor=0.0)
        self.stem, self.request, self.asked = Stem(), request, dataclasses.replace(request, row=row)
        self.subkey: int | None = None  # None = that of which the unmarked text shows most
        self.keeping: Keeping | None = None  # of the unmarked text, once it is there and not detected
        self.rollouts, self.rolled = 0, 0  # and their tokens
        self.versions: dict[tuple[int, ...], Version | None] = {}  # spliced texts, None = not allowed
        self.asking: list[Request] = []
        self.requests = 0  # asked for so far
        self.arrived: dict[int, ActiveSequence] = {}

    # The search -----------------------------------------------------------------------------------------------------

    def run(self) -> Asked:
        asked = self.asked
        first = Fork(asked.ids, asked.budget, asked.row, asked.occurrence, asked.begun, self.stem, saves=True)
        whole = yield from self._answer(self._ask(first))
        return (yield from self.settle(whole))

    def settle(self, whole: ActiveSequence) -> Asked:
        """Search the changes of an unmarked text, behind the tokens that it was asked to begin with."""
        self.unmarked = whole
        base = self._version(whole.tokens)
        if base.verdict.found or len(whole.tokens) < 2:  # of one token nothing can be rejoined
            return self._ended(base, _Progress(base))
        self.own = self.trial.of_subkey(base.text, self.request.row, self.subkey)
        base = dataclasses.replace(base, verdict=self.own(base.text))
        self.original = base.text
        names = names_in(self.stops.text(list(self.request.ids))) | names_in(base.text)
        self.keeping = Keeping(self.guard.reader, base.text, names)
        if self.keeping.lost:
            return self._ended(base, _Progress(base))
        answer = yield from self._answer(self._ask(self._reading(base.tokens)))
        assert isinstance(answer, ReadSequence) and answer.reading is not None
        reading = answer.reading
        state = _Progress(base)
        for proposals in (reading.choices, reading.others, reading.beyond):
            yield from self._try(base, state, self._ordered(base, proposals) if not state.over else [])
        yield from self._try(base, state, state.covered, again=True)
        if state.over:
            self._prune(base, state)
        return self._ended(base, _Progress(base) if self.all_or_nothing and not state.over else state)

    def _try(
        self, base: Version, state: _Progress, proposals: Sequence[MarkedChoice], *, again: bool = False
    ) -> Generator[list[Request], Numbered, None]:
        """Roll proposals out, in order, until the text is detected or has had all its rollouts.

        One whose place a patch that is taken has changed already is left for later, `again`: it may do better.
        """
        waiting, flying = deque(proposals), deque[tuple[MarkedChoice, int | None]]()
        while (waiting or flying) and not state.over and self.rollouts < self.guard.rollouts:
            room = min(max(self.together(), 1), self.guard.rollouts - self.rollouts)
            while waiting and len(flying) < room:  # some in vain: a row more costs little, an empty one as much
                choice, number = waiting.popleft(), None
                if again or not state.covers(choice):
                    number = self._ask(self._rollout(base, choice))
                flying.append((choice, number))
            choice, number = flying.popleft()
            if not again and state.covers(choice):  # now; what was asked meanwhile counts as if it had not been
                state.covered.append(choice)
                continue
            number = self._ask(self._rollout(base, choice)) if number is None else number
            sequence = yield from self._answer(number)
            self.rollouts += 1
            self.rolled += len(sequence.tokens) - choice.place
            if one := self._rolled(base, choice, sequence):
                state.rolled.append(one)
                state.best, state.taken = self._with(base, state.best, state.taken, one)
        if not state.over and state.rolled:
            self._recombine(base, state)

    def _recombine(self, base: Version, state: _Progress) -> None:
        """Put patches together anew, those that gain the most first, beside those that are taken and without them."""
        most = most_gain([(one.patch, one.gain) for one in state.rolled])
        order = sorted(state.rolled, key=lambda one: -one.gain)
        for begun in ([state.rolled[number] for number in most], list(state.taken), []):
            taken, best = begun, base
            if begun:
                version = self._allowed(base, [one.patch for one in begun])
                if version is None:
                    continue
                best = version
            before: list[Rolled] | None = None
            while before != taken and not best.verdict.found:
                before = taken
                for one in order:
                    if not best.verdict.found and one not in taken:
                        best, taken = self._with(base, best, taken, one)
            if best.verdict.result.p_value < state.best.verdict.result.p_value:
                state.best, state.taken = best, taken
            if state.over:
                return

    def _prune(self, base: Version, state: _Progress) -> None:
        """Leave out patches that a detected text can do without, those that lose the most likelihood first."""
        for one in sorted(state.taken, key=lambda one: -one.lost):
            trial = [other for other in state.taken if other is not one]
            version = self._allowed(base, [other.patch for other in trial]) if trial else None
            if version is not None and version.verdict.found:
                state.best, state.taken = version, trial

    def _with(self, base: Version, best: Version, taken: list[Rolled], one: Rolled) -> tuple[Version, list[Rolled]]:
        """Add a patch to a text, in place of those that it meets, if the p-value falls."""
        trial = [*(other for other in taken if not one.patch.meets(other.patch)), one]
        version = self._allowed(base, [each.patch for each in trial])
        if version is not None and version.verdict.result.p_value < best.verdict.result.p_value:
            return version, trial
        return best, taken

    # What is asked of the decoder -------------------------------------------------------------------------------------

    def _ask(self, request: Request) -> int:
        """Ask for a sequence with the next answer that is waited for; return the number of the request."""
        self.asking.append(request)
        self.requests += 1
        return self.requests - 1

    def _answer(self, number: int) -> Generator[list[Request], Numbered, ActiveSequence]:
        """Wait for a sequence; others may come first."""
        while number not in self.arrived:
            asking, self.asking = self.asking, []
            other, sequence = yield asking
            self.arrived[other] = sequence
        return self.arrived.pop(number)

    def _rollout(self, base: Version, choice: MarkedChoice) -> Rollout:
        asked = self.asked
        begun = (*base.tokens[: choice.place], choice.token)
        assert self.keeping is not None
        return Rollout(
            asked.ids, asked.budget, asked.row, asked.occurrence, begun, self.stem, tuple(base.tokens),
            place=choice.place, count=self.guard.rejoin, horizon=self.guard.horizon,
            possible=self._possible if self.keeping.possible else None,
        )  # fmt: skip

    def _reading(self, tokens: Sequence[int]) -> ReadRequest:
        asked, row = self.asked, dataclasses.replace(self.request.row, strength_factor=self.strengths[-1])
        return ReadRequest(
            asked.ids, asked.budget, row, asked.occurrence, tuple(tokens[:-1]), self.stem, last=tokens[-1],
            since=len(asked.begun), strengths=self.strengths, mark=self._mark,
        )  # fmt: skip

    @property
    def _mark(self) -> Mark | None:
        """What marks the text: the request's own, or its one sub-key if there are several."""
        mark = self.own.mark
        several = self.trial.marking(self.request.row).family > 1
        return Mark(mark, FixedStrength()) if several and isinstance(mark, Watermark) else self.request.mark

    # Proposals --------------------------------------------------------------------------------------------------------

    def _ordered(self, base: Version, proposals: Sequence[MarkedChoice]) -> list[MarkedChoice]:
        """Order proposals: those that touch no digit first, then the most evidence for what they cost.

        The evidence is that of the text with the one token changed, times the chance that the text rejoins; what
        follows it may change too. What gives none is left out.
        """
        proposals = [each for each in proposals if each.place + 1 < self.asked.budget]
        if self.rules is not None:
            may = self.rules.allowed(base.tokens, [(each.place, each.token) for each in proposals])
            proposals = [each for each, allowed in zip(proposals, may, strict=True) if allowed]
        tokens = [list(base.tokens) for _ in proposals]
        for text, choice in zip(tokens, proposals, strict=True):
            text[choice.place] = choice.token
        results: Any = self.own.detector([self.stops.shown(self._visible(text)) for text in tokens])
        priced = []
        for choice, result in zip(proposals, results, strict=True):
            gain = z_of(result.p_value) - base.z
            pair = self.stops.text([choice.token]) + self.stops.text([base.tokens[choice.place]])
            chance = SURE - DOUBT * min(choice.entropy, UNSURE)
            if len(base.tokens) - choice.place < self.guard.rejoin + 2:
                chance /= 2
            if gain > 0:
                digit = any(char.isdigit() for char in pair)
                priced.append((digit, (ROLLOUT + choice.lost) / (chance * gain), choice))
        return [choice for *_, choice in sorted(priced, key=lambda each: each[:2])]

    def _rolled(self, base: Version, choice: MarkedChoice, sequence: ActiveSequence) -> Rolled | None:
        """The patch of a rollout; None if it did not rejoin, breaks what must be kept, or adds no evidence."""
        place, tokens, old = choice.place, sequence.tokens, base.tokens
        if sequence.error:
            return None
        end = rejoined(old, tokens, place, self.guard.rejoin)
        ended = sequence.finish_reason == "eos" or self.stops.reached(tokens)
        if end is None and ended and len(old) - place <= self.guard.horizon:
            end = len(old)  # it came to an end of its own, near the old one: nothing is copied
        if end is None:
            return None
        patch = Patch(place, end, tuple(tokens[place:])).trimmed(old)
        version = self._allowed(base, [patch])
        if version is None or version.verdict.result.p_value >= base.verdict.result.p_value:
            return None
        trace: list[TokenTrace] = []
        if self.traces:
            behind = list(sequence.trace)[place + 1 - len(sequence.request.begun) :]
            trace = [choice.trace, *behind][: len(patch.tokens)]
        strength = self.strengths[choice.level]
        gain = version.z - base.z  # 0 where two p-values near 1 have the same z
        return Rolled(patch, gain, choice.lost, trace, strength) if gain > 0 else None

    # What a text must be ----------------------------------------------------------------------------------------------

    def _version(self, tokens: Sequence[int]) -> Version:
        text = self.stops.shown(self._visible(tokens))
        return Version(list(tokens), text, self.trial(text, self.request.row.key))

    def _visible(self, tokens: Sequence[int]) -> list[int]:
        """The tokens without an end token."""
        return list(tokens[:-1] if tokens and tokens[-1] in self.unmarked.ends else tokens)

    def _allowed(self, base: Version, patches: Sequence[Patch]) -> Version | None:
        """Test a spliced text; None if its length changes too much, it ends early, breaks something or does not keep.

        One that would have gone on behind the budget is cut there, as the unmarked text was.
        """
        tokens = spliced(base.tokens, patches)
        known = tuple(tokens)
        if known not in self.versions:
            self.versions[known] = self._checked(base, patches, tokens)
        return self.versions[known]

    def _checked(self, base: Version, patches: Sequence[Patch], tokens: list[int]) -> Version | None:
        longer, new = len(tokens) - len(self.unmarked.tokens), len(self.unmarked.tokens) - len(self.asked.begun)
        most = max(LENGTHS * new, FEW_TOKENS)
        if self.unmarked.finish_reason == "length":
            tokens = tokens[: self.asked.budget]
        visible, whole = self._visible(tokens), self._visible(self.unmarked.tokens)
        ended = len(whole) < len(self.unmarked.tokens)
        if len(tokens) > self.asked.budget or len(visible) < self.asked.row.min_new_tokens or abs(longer) > most:
            return None
        if any(token in self.unmarked.ends for token in visible) or ended is (len(visible) == len(tokens)):
            return None
        if self.unmarked.finish_reason == "stop" and not self.stops.reached(list(tokens)):
            return None
        if self.rules is not None and not self.rules.keeps(visible, ended=ended):
            return None
        assert self.keeping is not None
        body = self.stops.text(visible[:-1])
        text = self.stops.shown(visible)
        if (
            self.stops.cut(body) != body
            or disordered(self.original, text)
            or broken(base.tokens, patches, self.stops.text)
        ):
            return None
        if (longer > 0 and unclosed(self.original, text)) or not self.keeping(text):
            return None
        return Version(list(tokens), text, self.own(text))

    def _possible(self, tokens: Sequence[int]) -> bool:
        """Tell whether a text that begins so may still keep what it must."""
        assert self.keeping is not None and self.keeping.possible is not None
        return self.keeping.possible(self.stops.text(list(tokens)))

    # The end ----------------------------------------------------------------------------------------------------------

    def _ended(self, base: Version, done: _Progress) -> Ended:
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
    taken. covered: proposals at places that others have changed."""

    best: Version
    taken: list[Rolled] = field(default_factory=list)
    rolled: list[Rolled] = field(default_factory=list)
    covered: list[MarkedChoice] = field(default_factory=list)

    def covers(self, choice: MarkedChoice) -> bool:
        """Whether a patch that is taken changes the place of a choice."""
        return any(one.patch.covers(choice.place) for one in self.taken)

    @property
    def over(self) -> bool:
        return self.best.verdict.found
