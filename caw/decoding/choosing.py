"""Choose the next token of each text from given logits: ladder, evaluate, strength, select. No model, no cache.

A step of `generate` (`step.py`) chooses with it among what the model's forward says; `caw.Chooser` (`chooser.py`) among
logits that another engine computed. Both keep their texts here, so there is one state and one way to choose.

Where a plan is captured nothing is read back from the device and the same work is done every time, so that a CUDA graph
can hold it. Elsewhere a few numbers are read back to leave out work that would change nothing: `worth_doing`.
"""

import copy
import dataclasses
from collections.abc import Sequence
from functools import cached_property

import torch

from caw.decoding.full_race import FullRace, free_draws, full_race, open_positions, winners
from caw.decoding.penalties import Penalties
from caw.decoding.plan import Plan
from caw.decoding.request import Request
from caw.decoding.row_marks import ladder_of_each, of_kind, placed_on, seen_by
from caw.decoding.sampling import draws, native_noise, perturb
from caw.decoding.state import DecodeState
from caw.decoding.texts import Texts
from caw.decoding.warping import Warping
from caw.evaluator import Evaluator
from caw.ladder import Ladder, original_only
from caw.op_indices import RULES, TRANSFORMS
from caw.policies import CapacityPolicy, Policy, Signals
from caw.policies.base import checked_strengths
from caw.record import RECORD_SIZE, Record
from caw.watermarks import Position

# capacity float32 [B], NaN where no evaluator was asked; strength float32 [B]; index int64 [B] of the candidate
Choice = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Choosing:
    """Keep the texts of a batch and choose their tokens by a plan.

    Ladders hold only candidates that the maximum strength can reach. Noise is drawn only for rows that sample, and only
    rows that set top-k or top-p are cut to them.

    texts: what is known of them. native_noise: whether the sampler draws by the op.
    evaluator: the policy's network on the texts' device, None if it has none.
    watermark, race: the plan's, with their tables on the texts' device where steps are captured.
    drawn_free: what the last ladder drew in free beginnings: tokens int64 [B], their surprisals float64 [B], and which
        texts are in one, bool [B]; None where none is.
    open: where a mark had a choice then, bool [B] (`open_positions`); None = not asked.
    """

    def __init__(self, plan: Plan, texts: Texts) -> None:
        self.plan, self.texts, device = plan, texts, texts.counts.device
        self.watermark, self.race = plan.watermark, None if plan.race is None else plan.race.watermark
        if plan.captured:
            self.watermark = None if self.watermark is None else placed_on(device, self.watermark)
            if self.race is not None:
                self.race = placed_on(device, self.race) if plan.mixed else self.watermark
        self.evaluator = _evaluator_on(device, plan.policy)
        self.unasked = torch.full((), torch.nan, device=device)  # a capacity; made once, as a step counts its kernels
        self.drawn_free: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self.open: torch.Tensor | None = None

    @cached_property
    def native_noise(self) -> bool:
        # asked where a text first draws: on a meta device, where none does, there is no kernel to ask for
        return native_noise(self.texts.counts.device, native=self.plan.kernels.native)

    def worth_doing(self, rows: torch.Tensor) -> bool:
        """Tell whether to do what changes only these rows (bool [B])."""
        return self.plan.captured or bool(rows.any())

    # Texts come and go ----------------------------------------------------------------------------------------------

    def start(self, rows: Sequence[int], requests: Sequence[Request], ends: Sequence[Sequence[int]]) -> None:
        """Begin a new text in each of R rows; ends: token ids that end each."""
        places = torch.tensor(rows, device=self.texts.counts.device)
        marks = [self.plan.marks.of(request.mark, request.row.key) for request in requests]
        self.texts.start(places, requests, ends, marks)
        self.follow(rows, [request.begun for request in requests])

    def follow(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Append known tokens to the texts of R rows, as if they had been chosen here one by one.

        What a text without a mark shows changes nothing, and is not counted.
        """
        texts = self.texts
        factors = [0.0] * len(rows) if self.plan.loop is None else texts.row_factors[list(rows)].tolist()
        counted: dict[int, Sequence[int]] = {}
        for row, known, factor in zip(rows, tokens, factors, strict=True):
            if factor:
                counted[row] = known
            elif known:
                texts.put(row, known)
        batch, device = range(texts.batch), texts.counts.device
        for number in range(max(map(len, counted.values()), default=0)):
            now = {row: known[number] for row, known in counted.items() if number < len(known)}
            each = torch.tensor([now.get(row, 0) for row in batch], device=device)
            self.accept(each, torch.tensor([row in now for row in batch], device=device))

    def accept(self, tokens: torch.Tensor, emitted: torch.Tensor) -> None:
        """Append tokens int64 [B] to their texts and count their evidence, where emitted (bool [B])."""
        if self.plan.loop is not None:
            self.plan.loop.count(self.texts, tokens, emitted)
        self.texts.emit(tokens, emitted)

    def spend(self, tokens: torch.Tensor, emitted: torch.Tensor) -> None:
        """Count open positions, and the surprisal of tokens int64 [B] that the last draw of a beginning decided."""
        if self.open is not None:
            self.texts.open_counts += emitted & self.open
        if self.drawn_free is not None:
            drawn, nats, beginning = self.drawn_free
            free = emitted & beginning
            self.texts.spent += torch.where(free & (tokens == drawn), nats, 0.0)
            self.texts.free_counts += free

    # Ladder ---------------------------------------------------------------------------------------------------------

    def steer(self) -> None:
        """Set the factor of each text's strength from its evidence so far."""
        if self.plan.loop is not None:
            self.plan.loop.steer(self.texts)

    def ladder(self, state: DecodeState) -> Ladder:
        """Build the candidates of the next position: what it is chosen from, what the mark makes of it, its bounds."""
        plan, texts = self.plan, self.texts
        # who races, and the record of what is chosen from, the sampler's noise included
        context = texts.contexts()
        repeats = None if self.watermark is None else texts.repeats(self.watermark, context)
        race = self.full_race(state, context, repeats)
        record, scores, warped = self.drawn(state, race)
        self.note_draws(record, warped, state.current if warped is state.logits else None, race)
        # what the mark makes of it, within what each text allows
        if self.watermark is None:
            ladder = original_only(record.ids[:, 0], 1, "reweight", 0.0)
        else:
            values = record.values if scores is warped else warped.gather(1, record.ids.clamp_min(0))
            position = Position(record, values, scores, context, warped, texts.keys)
            ladder = self.watermark_ladder(position) if race is None else self.race_ladder(race, position)
            if plan.limits.factors or plan.loop is not None:  # each row up to the greatest strength of its own
                ladder = ladder.first(1 + self.select(ladder, texts.factors * plan.policy.max_strength))
            if plan.limits.ends and not plan.mark_eos:
                ladder = ladder.only_original(texts.ended(ladder.candidates).any(dim=1))
            if repeats is not None:
                ladder = ladder.only_original(repeats)
            if plan.loop is not None and self.worth_doing(ladder.counts > 1):
                ladder = plan.loop.aim(texts, ladder)
        if state.forced is not None:
            ladder, state.forced = ladder.forced(state.forced), None
        return ladder

    def full_race(self, state: DecodeState, context: torch.Tensor, repeats: torch.Tensor | None) -> FullRace | None:
        """Find the texts whose next token is the winner of a race; None where no mark of the plan races."""
        if self.race is None:
            return None
        # one that always runs has no target
        strength = self.texts.row_factors if self.plan.always_races else self.strengths(state) * self.texts.factors
        return full_race(self.plan, self.race, self.texts, strength, context, repeats)

    def note_draws(self, record: Record, warped: torch.Tensor, mass: Record | None, race: FullRace | None) -> None:
        """Set `drawn_free` and `open`. mass: the record of `warped`, None = not known yet."""
        plan, texts = self.plan, self.texts
        self.drawn_free = self.open = None
        if plan.begins_freely and race is not None and self.worth_doing(beginning := texts.in_beginning() & race.whole):
            mass = self.record(warped) if mass is None else mass
            self.drawn_free = free_draws(record, mass, warped, beginning)
        if plan.limits.counts_open:
            likeliest = plan.kernels.topk_softmax(warped, 2, None)[0] if mass is None else mass.values
            self.open = open_positions(plan, texts, likeliest)

    def watermark_ladder(self, position: Position) -> Ladder:
        """Build the watermark's candidates at this position."""
        plan, watermark = self.plan, self.watermark
        assert watermark is not None
        position, native = seen_by(watermark, position), plan.kernels.native
        if plan.captured:
            return watermark.candidates(dataclasses.replace(position, fixed=True), plan.max_strength, native=True)
        if (native and watermark.native is not None) or not plan.limits.keys:
            return watermark.candidates(position, plan.max_strength, native=native)
        return ladder_of_each(of_kind(watermark, self.texts.marks), position, plan.max_strength)

    def race_ladder(self, race: FullRace, position: Position) -> Ladder:
        """Build the ladder of texts that race at full strength, merged with that of the others if there are any."""
        assert self.race is not None
        others, otherwise = race.whole, None
        if not self.plan.only_races:
            others = ~(race.whole | (race.strength == 0)) if self.plan.always_races else ~race.whole
            otherwise = self.watermark_ladder(position) if self.worth_doing(others & self.texts.active) else None
        winner = winners(self.plan, self.race, self.texts, position, race.marked)
        return race.ladder(position.record.ids[:, 0], winner, otherwise, others)

    # What the choice is made from -----------------------------------------------------------------------------------

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
        drawn = self.draw(warped, race) if self.plan.limits.samples else None
        if drawn is None:
            return state.current if warped is state.logits else self.record(warped), warped, warped
        return *drawn, warped

    def warped(self, state: DecodeState) -> torch.Tensor:
        """Logits of the next position as the sampler takes them, float32 [B, V]; -inf = excluded."""
        plan, warped, texts = self.plan, state.logits, self.texts
        if plan.limits.minimum and plan.limits.ends:
            too_early = texts.counts < texts.minima
            if self.worth_doing(too_early):
                warped = texts.without_ends(warped, too_early)
        if isinstance(plan.warper, Warping) and warped is state.logits:
            return plan.warper(warped, texts, state.current)
        return warped if plan.warper is None else plan.warper(warped, texts)

    def draw(self, warped: torch.Tensor, race: FullRace | None) -> tuple[Record, torch.Tensor] | None:
        """(record of the scores, scores): warped logits [B, V] and the draws of rows that sample, None if none does."""
        texts, plan, native = self.texts, self.plan, self.native_noise
        context = torch.cat([texts.streams, texts.counts[:, None]], dim=1)
        if plan.captured:
            scores = warped + draws(texts.noise_keys, context, warped.shape[1], native=native)
            scores = torch.where(texts.sampled[:, None], scores, warped) if plan.limits.greedy else scores
            return self.record(scores), scores
        drawn = texts.sampled & texts.active
        drawn = drawn if race is None else drawn & ~race.decided
        if not bool(drawn.any()):
            return None
        reach = 0.0 if self.watermark is None else self.watermark.reads_below(plan.max_strength)
        scores, record = perturb(warped, drawn, texts.noise_keys, context, reach, native=native)
        return self.record(scores) if record is None else record, scores

    def record(self, logits: torch.Tensor, rows: torch.Tensor | None = None) -> Record:
        return Record(*self.plan.kernels.topk_softmax(logits, RECORD_SIZE, rows))

    # Strength, and the candidate it selects -------------------------------------------------------------------------

    def choose(self, state: DecodeState, ladder: Ladder, *, traced: bool = False) -> Choice:
        """Choose without look-ahead. traced: ask the evaluator where a text has one candidate too; without one NaN."""
        evaluates = self.plan.evaluates
        if evaluates and (traced or self.worth_doing(self.texts.active & (ladder.counts > 1))):
            return self.evaluate_and_select(state, ladder)
        if self.watermark is None or evaluates:
            strength = torch.zeros_like(state.pending_strength)
        else:
            strength = self.strengths(state) * self.texts.factors
        return self.unasked.expand_as(strength), strength, self.select(ladder, strength)

    def strengths(self, state: DecodeState) -> torch.Tensor:
        """Strengths by a policy without an evaluator, before factors, float32 [B].

        Strengths out of range are noted in `Texts.refused`; nothing is read back.
        """
        policy = self.plan.policy
        strength = policy.strength(Signals(state.current, state.logits))
        if self.plan.unbounded:
            strength = checked_strengths(policy, strength, state.pending_strength)
            self.texts.refuse(strength, policy.max_strength, state.current.logsumexp.isfinite())
        return strength

    def evaluate_and_select(self, state: DecodeState, ladder: Ladder, following: Record | None = None) -> Choice:
        """Choose by the capacity of position i from the records of i - N-, …, i, i + 1 given the original token. A row
        that waits keeps the capacity and strength its token was chosen with.

        following: record of i + 1; None for an evaluator that does not read it.
        """
        evaluator, policy, factors = self.evaluator, self.plan.policy, self.texts.factors
        assert isinstance(policy, CapacityPolicy) and evaluator is not None
        spec = evaluator.spec
        behind = [following] if spec.next and following is not None else []
        window = [*reversed(state.history[: spec.previous]), state.current, *behind]
        choice: Choice = self.plan.kernels.evaluator_step(
            [record.probs for record in window], evaluator.weights(), ladder.candidates, ladder.needs, ladder.counts,
            state.pending, state.pending_strength, state.pending_capacity, factors, spec.k,
            TRANSFORMS.index(spec.transform), float(policy.theta), float(policy.beta), RULES.index(ladder.rule),
            ladder.full, spec.masses(window, evaluator.token_class),
        )  # fmt: skip
        return choice

    def select(self, ladder: Ladder, strength: torch.Tensor) -> torch.Tensor:
        """Index of the candidate that a strength (float32 [B]) chooses, int64 [B]."""
        rule = RULES.index(ladder.rule)
        return self.plan.kernels.select_candidate(
            ladder.candidates, ladder.needs, ladder.counts, strength, rule, ladder.full
        )


def texts_of(plan: Plan, room: int, rows: int | None = None) -> Texts:
    """Make rows without a text; room: N, tokens that each has memory for. rows: how many, None = as planned."""
    rows, device, limits = plan.batch if rows is None else rows, plan.facts.device, plan.limits
    return Texts.empty(
        rows, plan.marks.window, room, device, limits.ends,
        evidence=None if plan.loop is None else plan.loop.evidence(rows, room, device),
        penalties=Penalties.empty(rows, plan.facts.vocab_size, limits, device),
    )  # fmt: skip


def _evaluator_on(device: torch.device, policy: Policy) -> Evaluator | None:
    """Return the policy's network on the texts' device; the policy's own copy stays where it is."""
    network = policy.network if isinstance(policy, CapacityPolicy) else None
    if network is not None and network.mean.device != device:
        network = copy.deepcopy(network).to(device)
    return network
