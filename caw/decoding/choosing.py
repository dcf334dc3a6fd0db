"""Choose the next token of each text from given logits: ladder, strength, select, count. No model, no cache.

A step of `generate` (`step.py`) chooses with it among what the model's forward says; `caw.Chooser` (`chooser.py`) among
logits that another engine computed. Both keep their texts here, so there is one state and one way to choose.

`Choosing` reads a few numbers back from the device to leave out work that would change nothing, which is right where
reading costs nothing, on a CPU. `FixedChoosing` reads nothing back and does the same work every time, so that a CUDA
graph can hold it. They differ in what stands under "What a kind decides", and give the same tokens.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from caw import ops
from caw.decoding.closed_loop import ClosedLoop
from caw.decoding.full_race import FullRace, only_races
from caw.decoding.request import Request
from caw.decoding.row_settings import RowLimits
from caw.decoding.row_tensors import RowMarks, ladder_of_each, winner_of_each
from caw.decoding.sampling import GumbelNoise
from caw.decoding.state import DecodeState
from caw.decoding.texts import Texts
from caw.decoding.warping import Warper, Warping
from caw.evaluator import Evaluator
from caw.ladder import Ladder, original_only
from caw.op_indices import RULES, TRANSFORMS
from caw.policies import CapacityPolicy, Policy, Signals
from caw.policies.base import Mark, checked_strengths
from caw.policies.gate import is_bounded
from caw.record import RECORD_SIZE, Record
from caw.watermarks import Position, Watermark


@dataclass(frozen=True)
class Rules:
    """Settings by which the tokens of a batch are chosen.

    watermark: one that knows the model's vocabulary; None = tokens as the model gives them.
    race: the mark of which strength 1 means a race at full strength: `watermark` and `policy`, or another that always
        races, whose texts may stand beside theirs; None = there is none.
    kernels: implementation of the ops. loop: how strengths follow a target; None without one.
    limits: how far the texts may differ. warper: applied to logits before the choice; None = nothing.
    mark_eos: whether marks may decide where a text ends; False keeps the original token wherever an end token is among
        the candidates that the policy's greatest strength reaches.
    history: N-, number of earlier distributions that the policy's evaluator reads.
    """

    watermark: Watermark | None
    policy: Policy
    race: Mark | None
    kernels: ops.Ops
    loop: ClosedLoop | None
    limits: RowLimits
    warper: Warper | None
    mark_eos: bool
    history: int

    @property
    def looks_ahead(self) -> bool:
        """Whether the candidates go through the model before the choice."""
        return self.watermark is not None and self.policy.looks_ahead

    @property
    def evaluates(self) -> bool:
        """Whether an evaluator gives the strengths."""
        return self.watermark is not None and self.policy.reads_capacity

    @property
    def mixed(self) -> bool:
        """Whether texts of two marks share the batch."""
        return self.race is not None and self.race.watermark is not self.watermark

    @property
    def window(self) -> int:
        """W, the tokens of a context; of the mark that reads more, where there are two."""
        return self.marks().window

    def marks(self) -> RowMarks:
        """Make the memory of the texts' watermarks."""
        return RowMarks(self.watermark, self.race.watermark if self.mixed and self.race else None)

    @property
    def max_strength(self) -> float:
        """Maximum strength of any text."""
        return self.limits.greatest(self.policy.max_strength)


class Choice(NamedTuple):
    """capacity: float32 [B], NaN where no evaluator was asked. strength: float32 [B]. candidate: int64 [B], index
    of the one that it selects."""

    capacity: torch.Tensor
    strength: torch.Tensor
    candidate: torch.Tensor


class Choosing:
    """Keep the texts of a batch and choose their tokens.

    Ladders hold only candidates that the maximum strength can reach. Noise is drawn only for rows that sample, and only
    rows that set top-k or top-p are cut to them.

    texts: what is known of them. marks: their watermarks. noise: draws of the sampler, None where no text samples.
    evaluator: the policy's network on the texts' device, None if it has none.
    own_strength: the policy's maximum, before factors; max_strength: that times the maximum factor of a text.
    unbounded: whether the policy's strengths need checking.
    race: the watermark that races at full strength, None = there is none; always: whether its strength is a row's
        factor alone; only_races: whether no text ever needs a ladder.
    drawn_free: what the last ladder drew in free beginnings: tokens int64 [B], their surprisals float64 [B], and which
        texts are in one, bool [B]; None where none is.
    """

    def __init__(self, rules: Rules, texts: Texts, marks: RowMarks | None = None) -> None:
        self.rules, self.texts, device = rules, texts, texts.counts.device
        self.marks = rules.marks() if marks is None else marks
        self.watermark, self.policy, self.limits, self.loop = rules.watermark, rules.policy, rules.limits, rules.loop
        self.kernels, self.warper = rules.kernels, self.warper_of(rules.warper)
        self.max_strength, self.own_strength = rules.max_strength, rules.policy.max_strength
        self.unbounded = rules.watermark is not None and not rules.evaluates and not is_bounded(rules.policy)
        self.noise = GumbelNoise.on(device, native=rules.kernels.native) if rules.limits.samples else None
        self.evaluator = _evaluator_on(device, rules.policy)
        self.unasked = torch.full((), torch.nan, device=device)  # a capacity; made once, as a step counts its kernels
        self.race = None if rules.race is None else rules.race.watermark
        self.always = rules.race is not None and only_races(*rules.race)
        plain = not (rules.mixed or self.limits.factors) and self.limits.strength_factor == 1
        self.only_races = self.always and plain
        whole = rules.race is not None and rules.race.policy.max_strength == 1
        self.begins_freely = whole and self.race is not None and self.race.beginning > 0 and rules.limits.samples
        self.drawn_free: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    # Texts come and go ----------------------------------------------------------------------------------------------

    def start(self, rows: Sequence[int], requests: Sequence[Request], ends: Sequence[Sequence[int]]) -> None:
        """Begin a new text in each of R rows; ends: token ids that end each."""
        places = torch.tensor(rows, device=self.texts.counts.device)
        marks = [self.marks.of(request.mark, request.row.key) for request in requests]
        self.texts.start(places, requests, ends, marks)
        self.follow(rows, [request.begun for request in requests])

    def follow(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Append known tokens to the texts of R rows, as if they had been chosen here one by one.

        What a text without a mark shows changes nothing, and is not counted.
        """
        texts = self.texts
        factors = [0.0] * len(rows) if self.loop is None else texts.rows.factors[list(rows)].tolist()
        counted: dict[int, Sequence[int]] = {}
        for row, own, factor in zip(rows, tokens, factors, strict=True):
            if factor:
                counted[row] = own
            elif own:
                texts.put(row, own)
        batch, device = range(texts.batch), texts.counts.device
        for number in range(max(map(len, counted.values()), default=0)):
            now = {row: own[number] for row, own in counted.items() if number < len(own)}
            each = torch.tensor([now.get(row, 0) for row in batch], device=device)
            self.accept(each, torch.tensor([row in now for row in batch], device=device))

    def accept(self, tokens: torch.Tensor, emitted: torch.Tensor) -> None:
        """Append tokens int64 [B] to their texts and count their evidence, where emitted (bool [B])."""
        if self.loop is not None:
            self.loop.count(self.texts, tokens, emitted)
        self.texts.emit(tokens, emitted)

    def spend(self, tokens: torch.Tensor, emitted: torch.Tensor) -> None:
        """Count the surprisal of tokens int64 [B] of free beginnings, where emitted (bool [B]).

        A token that something else than the last draw decided counts nothing.
        """
        if self.drawn_free is not None:
            drawn, nats, beginning = self.drawn_free
            free = emitted & beginning
            self.texts.spent += torch.where(free & (tokens == drawn), nats, 0.0)
            self.texts.free_counts += free

    def drop(self, row: int) -> None:
        """Empty a row."""
        self.texts.active[row] = False

    # Ladder ------------------------------------------------------------------------------------------------------

    def steer(self) -> None:
        """Set the factor of each text's strength from its evidence so far."""
        if self.loop is not None:
            self.loop.steer(self.texts)

    def ladder(self, state: DecodeState) -> Ladder:
        """Build the candidates of the next position from the logits the choice is made from."""
        ladder = self.ladder_of_logits(state)
        if state.forced is not None:
            ladder, state.forced = ladder.forced(state.forced), None
        return ladder

    def ladder_of_logits(self, state: DecodeState) -> Ladder:
        """As `ladder`, whatever is forced."""
        texts = self.texts
        context = texts.contexts()
        repeats = self.repeats(self.watermark, context)
        race = None if self.race is None else self.full_race(self.race, state, context, repeats)
        record, scores, warped = self.drawn(state, race)
        self.drawn_free = self.drawn_in_beginnings(state, race, record, warped) if self.begins_freely else None
        if self.watermark is None:
            return original_only(record.ids[:, 0], 1, "reweight", 0.0)
        values = record.values if scores is warped else warped.gather(1, record.ids.clamp_min(0))
        position = Position(record, values, scores, context, warped, texts.rows.keys)
        ladder = self.watermark_ladder(position) if race is None else self.race_ladder(race, position)
        if self.limits.factors or self.loop is not None:  # each row up to the greatest strength of its own
            ladder = ladder.first(1 + self.select(ladder, texts.factors * self.own_strength))
        if self.limits.ends and not self.rules.mark_eos:
            ladder = ladder.only_original(texts.rows.ended(ladder.candidates).any(dim=1))
        if repeats is not None:
            ladder = ladder.only_original(repeats)
        if self.loop is not None and self.worth_doing(ladder.counts > 1):
            ladder = self.loop.aim(texts, ladder)
        return ladder

    def repeats(self, mark: Watermark | None, context: torch.Tensor) -> torch.Tensor | None:
        """Contexts [B, W] that a watermark does not mark again, bool [B]; None where it marks all."""
        if mark is None or not mark.deduplicates:
            return None
        return self.texts.context_repeats(within(mark, context), mark.missing)

    def drawn_in_beginnings(
        self, state: DecodeState, race: FullRace | None, record: Record, warped: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """Compute `drawn_free`: of the tokens that lead a record of drawn scores, under logits `warped` float32 [B, V].

        A text whose mark is switched off, as within an exempt section, has not begun yet.
        """
        assert race is not None
        beginning = self.texts.in_beginning() & race.whole
        if not self.worth_doing(beginning):
            return None
        tokens = record.ids[:, 0]
        mass = (state.current if warped is state.logits else self.record(warped)).logsumexp
        nats = mass.double() - warped.gather(1, tokens[:, None])[:, 0].double()
        return tokens, nats.clamp_min(0), beginning

    def full_race(
        self, mark: Watermark, state: DecodeState, context: torch.Tensor, repeats: torch.Tensor | None
    ) -> FullRace:
        """Find the texts that race at full strength after contexts int64 [B, W].

        repeats: of the watermark whose ladder stands beside the race, see `repeats`.
        """
        texts, mixed = self.texts, self.rules.mixed
        repeats = self.repeats(mark, context) if mixed else repeats
        unmarked = ~mark.markable(within(mark, context))
        for left in (repeats, texts.in_beginning() if self.begins_freely else None):
            unmarked = unmarked if left is None else unmarked | left
        # a race that always runs has no target, and another mark's target says nothing of it
        strength = texts.rows.factors if self.always else self.own_strengths(state) * texts.factors
        strength = torch.where(texts.rows.races, strength, torch.nan) if mixed else strength
        asked = not mixed and (self.loop is not None or (bool(self.limits.ends) and not self.rules.mark_eos))
        return FullRace.of(strength, unmarked, texts.rows.sampled, original_asked=asked, idle=self.always)

    def race_ladder(self, race: FullRace, position: Position) -> Ladder:
        """Build the ladder of texts that race at full strength, merged with that of the others if there are any."""
        others = not self.only_races and self.worth_doing(race.laddered & self.texts.active)
        otherwise = self.watermark_ladder(position) if others else None
        return race.ladder(position.record.ids[:, 0], self.winners(position, race.marked), otherwise)

    def drawn(self, state: DecodeState, race: FullRace | None = None) -> tuple[Record, torch.Tensor, torch.Tensor]:
        """(record of the scores, scores, warped), scores and warped float32 [B, V]: what the choice is made from, and
        the same without sampling noise.

        Nothing is drawn where a race decides alone. Of scores that draw, those further below the greatest than the
        watermark reads (`Watermark.reads_below`) may be -inf. A record of drawn scores has the probabilities of its
        entries among themselves.
        """
        warped = self.warped(state)
        if race is not None and not self.worth_doing(~race.decided & self.texts.active):
            return state.current, warped, warped
        found = None if self.noise is None else self.draw(self.noise, warped, race)
        if found is None:
            return state.current if warped is state.logits else self.record(warped), warped, warped
        return *found, warped

    def warped(self, state: DecodeState) -> torch.Tensor:
        """Logits of the next position as the sampler takes them, float32 [B, V]; -inf = excluded."""
        warped, texts = state.logits, self.texts
        if self.limits.minimum and self.limits.ends:
            too_early = texts.counts < texts.rows.minima
            if self.worth_doing(too_early):
                warped = texts.rows.without_ends(warped, too_early)
        return warped if self.warper is None else self.warper(warped, texts)

    def record(self, logits: torch.Tensor, rows: torch.Tensor | None = None) -> Record:
        return Record(*self.kernels.topk_softmax(logits, RECORD_SIZE, rows))

    # Strength, and the candidate it selects ----------------------------------------------------------------------

    def choose(self, state: DecodeState, ladder: Ladder, *, traced: bool = False) -> Choice:
        """Choose by a policy that needs no look-ahead.

        traced: ask the evaluator also where every text has a single candidate, whose strength means nothing. Without an
        evaluator, capacities are NaN.
        """
        if self.rules.evaluates and (traced or self.worth_doing(self.texts.active & (ladder.counts > 1))):
            return self.evaluate_and_select(state, ladder)
        if self.watermark is None or self.rules.evaluates:
            strength = torch.zeros_like(state.pending_strength)
        else:
            strength = self.own_strengths(state) * self.texts.factors
        return Choice(self.unasked.expand_as(strength), strength, self.select(ladder, strength))

    def own_strengths(self, state: DecodeState) -> torch.Tensor:
        """Strengths by a policy without an evaluator, before factors, float32 [B].

        Strengths out of range are noted in `Texts.refused`; nothing is read back.
        """
        strength = self.policy.strength(Signals(state.current, state.logits))
        if self.unbounded:
            strength = checked_strengths(self.policy, strength, state.pending_strength)
            self.texts.refuse(strength, self.own_strength, state.current.logsumexp.isfinite())
        return strength

    def evaluate_and_select(self, state: DecodeState, ladder: Ladder, following: Record | None = None) -> Choice:
        """Choose by the capacity of position i from the records of i - N-, …, i, i + 1 given the original token. A row
        that waits keeps the capacity and strength its token was chosen with.

        following: record of i + 1; None for an evaluator that does not read it.
        """
        evaluator, policy, factors = self.evaluator, self.policy, self.texts.factors
        assert isinstance(policy, CapacityPolicy) and evaluator is not None
        spec = evaluator.spec
        behind = [following] if spec.next and following is not None else []
        window = [*reversed(state.history[: spec.previous]), state.current, *behind]
        capacity, strength, choice = self.kernels.evaluator_step(
            [record.probs for record in window], evaluator.weights(), ladder.candidates, ladder.needs, ladder.counts,
            state.pending, state.pending_strength, state.pending_capacity, factors, spec.k,
            TRANSFORMS.index(spec.transform), float(policy.theta), float(policy.beta), RULES.index(ladder.rule),
            ladder.full, spec.masses(window, evaluator.token_class),
        )  # fmt: skip
        return Choice(capacity, strength, choice)

    def select(self, ladder: Ladder, strength: torch.Tensor) -> torch.Tensor:
        """Index of the candidate that a strength (float32 [B]) chooses, int64 [B]."""
        rule = RULES.index(ladder.rule)
        return self.kernels.select_candidate(
            ladder.candidates, ladder.needs, ladder.counts, strength, rule, ladder.full
        )

    # What a kind decides --------------------------------------------------------------------------------------------

    def warper_of(self, warper: Warper | None) -> Warper | None:
        """Return the warper in the form that this kind runs."""
        native = self.rules.kernels.native
        return dataclasses.replace(warper, sparse=True, native=native) if isinstance(warper, Warping) else warper

    def worth_doing(self, rows: torch.Tensor) -> bool:
        """Tell whether to do what changes only these rows (bool [B])."""
        return bool(rows.any())

    def winners(self, position: Position, rows: torch.Tensor) -> torch.Tensor:
        """Winners of the races in these rows (bool [B]), int64 [B]; 0 in others."""
        assert self.race is not None
        found, places, native = torch.zeros_like(self.texts.counts), rows.nonzero()[:, 0], self.kernels.native
        if not places.numel():
            return found
        position = seen_by(self.race, position if places.numel() == rows.shape[0] else position.take(places))
        if self.race.native is not None or not self.limits.keys:
            found[places] = self.race.whole_winner(position, native=native)
        else:
            marks = [self.texts.rows.marks[place] or self.race for place in places.tolist()]
            found[places] = winner_of_each(marks, position, native=native)
        return found

    def draw(
        self, noise: GumbelNoise, warped: torch.Tensor, race: FullRace | None
    ) -> tuple[Record, torch.Tensor] | None:
        """(record of the scores, scores): warped logits [B, V] and the draws of the rows that sample; None where no row
        draws.
        """
        texts, rows = self.texts, self.texts.rows
        drawn = rows.sampled & texts.active
        drawn = drawn if race is None else drawn & ~race.decided
        if not bool(drawn.any()):
            return None
        if noise.native and ops.has_kernel("draw_scores", warped.device.type):
            reach = 0.0 if self.watermark is None else self.watermark.reads_below(self.max_strength)
            context = noise.context(texts.streams, texts.counts)
            scores, values, ids = ops.draw_scores(warped, drawn, context, rows.noise_keys, RECORD_SIZE, reach)
            return Record(values, ids, values.softmax(dim=1), values.logsumexp(dim=1)), scores
        some = drawn.nonzero()[:, 0]
        draws = noise(rows.noise_keys[some], texts.streams[some], texts.counts[some], warped.shape[1])
        scores = warped.index_add(0, some, draws)
        return self.record(scores), scores

    def watermark_ladder(self, position: Position) -> Ladder:
        """Build the watermark's candidates at this position."""
        assert self.watermark is not None
        position = seen_by(self.watermark, position)
        if self.watermark.native is not None and self.kernels.native:
            return self.watermark.native_ladder(position, self.max_strength)
        if not self.limits.keys:
            return self.watermark.ladder(position, self.max_strength)
        kind = type(self.watermark)  # beside texts of another family, whose rows have ladders of their own
        own = [mark if isinstance(mark, kind) else self.watermark for mark in self.texts.rows.marks]
        return ladder_of_each(own, position, self.max_strength)


class FixedChoosing(Choosing):
    """Run the same tensor operations every time, and read nothing back."""

    def __init__(self, rules: Rules, texts: Texts, marks: RowMarks | None = None) -> None:
        super().__init__(rules, texts, marks)
        if self.watermark is not None:
            self.watermark = self.watermark.placed(texts.counts.device)
        if self.race is not None:
            self.race = self.race.placed(texts.counts.device) if rules.mixed else self.watermark

    @property
    def rungs(self) -> int:
        """M, the width of the ladders."""
        if self.only_races:
            return 2
        return 1 if self.watermark is None else self.watermark.rungs(self.max_strength)

    def winners(self, position: Position, rows: torch.Tensor) -> torch.Tensor:
        assert self.race is not None
        return self.race.whole_winner(seen_by(self.race, position), native=self.kernels.native)

    def warper_of(self, warper: Warper | None) -> Warper | None:
        native = self.rules.kernels.native
        return dataclasses.replace(warper, native=native) if isinstance(warper, Warping) else warper

    def worth_doing(self, rows: torch.Tensor) -> bool:
        return True

    def draw(self, noise: GumbelNoise, warped: torch.Tensor, race: FullRace | None) -> tuple[Record, torch.Tensor]:
        texts, rows = self.texts, self.texts.rows
        scores = warped + noise(rows.noise_keys, texts.streams, texts.counts, warped.shape[1])
        scores = torch.where(rows.sampled[:, None], scores, warped) if self.limits.greedy else scores
        return self.record(scores), scores

    def watermark_ladder(self, position: Position) -> Ladder:
        assert self.watermark is not None
        return self.watermark.fixed_ladder(seen_by(self.watermark, position), self.max_strength)


def within(mark: Watermark, context: torch.Tensor) -> torch.Tensor:
    """Return the part of contexts int64 [B, W] that a watermark reads."""
    return context if context.shape[1] == mark.window else context[:, context.shape[1] - mark.window :].contiguous()


def seen_by(mark: Watermark, position: Position) -> Position:
    """Return a position with the part of its contexts that a watermark reads."""
    context = within(mark, position.context)
    return position if context is position.context else dataclasses.replace(position, context=context)


def _evaluator_on(device: torch.device, policy: Policy) -> Evaluator | None:
    """Return the policy's network on the texts' device; the policy's own copy stays where it is."""
    network = policy.network if isinstance(policy, CapacityPolicy) else None
    if network is not None and network.mean.device != device:
        network = copy.deepcopy(network).to(device)
    return network
