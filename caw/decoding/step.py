"""One step of decoding, in the order of the algorithm: ladder, look ahead, evaluate, strength, select, commit.

Every (watermark, policy) pair is this one loop; no watermark at all is a ladder of one candidate.

Two kinds of step give the same tokens. `EagerStep` (eager_step.py) reads a few numbers back from the device to leave
out work that would change nothing, which is right where reading costs nothing, on a CPU. `FixedStep`
(capture/fixed_step.py) reads nothing back and does the same work every time, so that a CUDA graph can hold it. They
differ in what stands under "What a kind of step decides".
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import torch

from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.sampling import GumbelNoise
from caw.decoding.state import DecodeState
from caw.decoding.step_result import LogProbs, StepResult
from caw.evaluator import Evaluator
from caw.policies import CapacityPolicy, Signals
from caw.record import RECORD_SIZE, Record
from caw.triton_kernels.ladder_ref import Ladder, original_only
from caw.triton_kernels.op_indices import RULES, TRANSFORMS
from caw.watermarks import Position


class Step(ABC):
    """Everything a step needs that does not change between steps.

    noise: draws of the sampler, None where no text samples. evaluator: the policy's network on the model's device, None
    if it has none. own_strength: the policy's greatest; max_strength: that times the greatest factor of a text.
    slots: candidates that one forward carries at most. beside: of them, those that the cache keeps behind drafts.
    """

    def __init__(self, model: Any, plan: Plan) -> None:
        self.model, self.plan, self.kernels, self.settings = model, plan, plan.kernels, plan.settings
        self.watermark, self.policy, self.max_strength = plan.watermark, plan.policy, plan.max_strength
        self.limits, self.slots, device = plan.limits, plan.slots, plan.facts.device
        self.loop, self.own_strength = plan.loop, plan.policy.max_strength
        self.beside = 0
        self.noise = GumbelNoise.on(device, native=plan.kernels.native) if self.limits.samples else None
        self.evaluator = _evaluator_on(device, plan)

    def take(self, state: DecodeState, cache: SiblingCache) -> StepResult:
        """Decode one token of every active sequence; mutates state and cache."""
        if self.loop is not None:
            self.loop.steer(state)
        ladder = self.ladder(state)
        if self.plan.looks_ahead:
            return self.look_ahead(state, cache, ladder)
        return self.choose_first(state, cache, ladder)

    # 1. Ladder -------------------------------------------------------------------------------------------------

    def ladder(self, state: DecodeState) -> Ladder:
        """Candidates of the next position from the logits the choice is made from."""
        scores, warped = self.choice_logits(state)
        record = state.current if scores is state.logits else self.record(scores)
        if self.watermark is None:
            return original_only(record.ids[:, 0], 1, "reweight", 0.0)
        race = record.values if scores is warped else warped.gather(1, record.ids.clamp_min(0))
        context = state.contexts()
        ladder = self.watermark_ladder(state, Position(record, race, scores, context, warped, state.rows.keys))
        if self.limits.factors or self.loop is not None:  # each row up to the greatest strength of its own
            ladder = ladder.first(1 + self.select(ladder, state.factors * self.own_strength))
        if self.limits.ends and not self.plan.mark_eos:
            ladder = ladder.only_original(state.rows.ended(ladder.candidates).any(dim=1))
        if self.watermark.deduplicates:
            ladder = ladder.only_original(state.context_repeats(context))
        if self.loop is not None and self.worth_doing(ladder.counts > 1):
            ladder = self.loop.aim(state, ladder)
        return ladder

    def choice_logits(self, state: DecodeState) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits the choice is made from, the same without sampling noise), float32 [B, V]."""
        warped, rows = state.logits, state.rows
        if self.limits.minimum and self.limits.ends:
            too_early = state.counts < rows.minima
            if self.worth_doing(too_early):
                warped = rows.without_ends(warped, too_early)
        if self.plan.warper is not None:
            warped = self.plan.warper(warped, state)
        return warped if self.noise is None else self.perturbed(self.noise, state, warped), warped

    # 2.-5. Look ahead, evaluate, strength, select, commit --------------------------------------------------------

    def look_ahead(self, state: DecodeState, cache: SiblingCache, ladder: Ladder) -> StepResult:
        """The forward first, of the candidates; then the choice among them."""
        # where the last step chose a token it had not forwarded, that token is now the only one carried
        waiting = state.pending >= 0
        counts = torch.where(waiting, 1, ladder.counts)
        most = self.most_candidates(state, ladder, counts)
        width = min(most, self.slots)
        carried = torch.where(waiting[:, None], state.pending[:, None], ladder.candidates[:, :width])
        logits, first = self.forward(state, cache, carried, counts.clamp_max(width))
        following = self.record(logits, first)
        if most > 1 or self.settings.return_trace:
            capacity, strength, choice = self.evaluate_and_select(state, ladder, following)
        else:  # one candidate everywhere: no strength could change the choice
            capacity = torch.full_like(state.pending_capacity, torch.nan)
            strength = torch.where(waiting, state.pending_strength, 0.0)
            choice = self.select(ladder, strength)
        overflow = (choice >= width) & state.active & ~waiting
        state.pending.copy_(torch.where(overflow, _column(ladder.candidates, choice), -1))
        state.pending_strength.copy_(strength)
        state.pending_capacity.copy_(capacity)
        emitted = state.active & ~overflow
        chosen = torch.where(emitted & ~waiting, choice, 0)
        result = self.emit(state, ladder, choice, strength, capacity, emitted, width)
        self.commit(state, cache, logits, first, following, chosen, emitted)
        return result

    def choose_first(self, state: DecodeState, cache: SiblingCache, ladder: Ladder) -> StepResult:
        """The choice first; then the forward, of the chosen token alone."""
        strength, choice = self.choose(state, ladder)
        emitted = state.active.clone()
        capacity = torch.full_like(strength, torch.nan)
        result = self.emit(state, ladder, choice, strength, capacity, emitted, 1)
        logits, first = self.forward(state, cache, result.tokens[:, None], torch.ones_like(choice))
        self.commit(state, cache, logits, first, self.record(logits, first), torch.zeros_like(choice), emitted)
        return result

    def choose(self, state: DecodeState, ladder: Ladder) -> tuple[torch.Tensor, torch.Tensor]:
        """(strength, choice) of a position by a policy that needs no look-ahead."""
        if self.watermark is None:
            strength = torch.zeros_like(state.pending_strength)
        else:
            strength = self.policy.strength(Signals(state.current, state.logits)) * state.factors
        return strength, self.select(ladder, strength)

    def record(self, logits: torch.Tensor, rows: torch.Tensor | None = None) -> Record:
        return Record(*self.kernels.topk_softmax(logits, RECORD_SIZE, rows))

    def evaluate_and_select(
        self, state: DecodeState, ladder: Ladder, following: Record
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Capacity of position i from the records of i - N-, …, i, i + 1 given the original token; the strength it
        gets; the rung that chooses. A row that waits keeps the capacity and strength its token was chosen with."""
        evaluator, policy = self.evaluator, self.policy
        assert isinstance(policy, CapacityPolicy) and evaluator is not None
        spec = evaluator.spec
        window = [*reversed(state.history[: spec.previous]), state.current, *[following][: spec.next]]
        capacity, strength, choice = self.kernels.evaluator_step(
            [record.probs for record in window], evaluator.weights(), ladder.candidates, ladder.needs, ladder.counts,
            state.pending, state.pending_strength, state.pending_capacity, state.factors, spec.k,
            TRANSFORMS.index(spec.transform), float(policy.theta), float(policy.beta), RULES.index(ladder.rule),
            ladder.full, spec.masses(window, evaluator.token_class),
        )  # fmt: skip
        if self.loop is not None and self.loop.weighs:
            strength = self.loop.weigh(state, strength, capacity, self.own_strength)
            choice = self.select(ladder, strength)
        return capacity, strength, choice

    def select(self, ladder: Ladder, strength: torch.Tensor) -> torch.Tensor:
        rule = RULES.index(ladder.rule)
        return self.kernels.select_candidate(
            ladder.candidates, ladder.needs, ladder.counts, strength, rule, ladder.full
        )

    def emit(
        self,
        state: DecodeState,
        ladder: Ladder,
        choice: torch.Tensor,
        strength: torch.Tensor,
        capacity: torch.Tensor,
        emitted: torch.Tensor,
        forwarded: int,
    ) -> StepResult:
        tokens = _column(ladder.candidates, choice)
        if self.loop is not None:
            self.loop.count(state, tokens, emitted)
        state.emit(tokens, emitted)
        # the logsumexp of a row with a NaN or +inf anywhere is one too: no second look at the logits
        broken = state.active & ~state.current.logsumexp.isfinite()
        shown = ladder.candidates, ladder.counts, strength, capacity
        said = LogProbs.of(state, tokens) if self.limits.log_probs else None
        return StepResult(emitted, tokens, choice, *shown, broken, forwarded, said)

    # What a kind of step decides -----------------------------------------------------------------------------------

    @abstractmethod
    def worth_doing(self, rows: torch.Tensor) -> bool:
        """Whether to do what changes only these rows (bool [B])."""

    @abstractmethod
    def perturbed(self, noise: GumbelNoise, state: DecodeState, warped: torch.Tensor) -> torch.Tensor:
        """Warped logits [B, V], with the draws of the rows that sample."""

    @abstractmethod
    def watermark_ladder(self, state: DecodeState, position: Position) -> Ladder:
        """The watermark's candidates at this position."""

    @abstractmethod
    def most_candidates(self, state: DecodeState, ladder: Ladder, counts: torch.Tensor) -> int:
        """The most candidates that any sequence may need; counts: int64 [B], those of each."""

    @abstractmethod
    def forward(
        self, state: DecodeState, cache: SiblingCache, candidates: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [N, V], float32 or in the model's dtype, of the first counts[b] (int64 [B]) candidates [B, Q] of each
        sequence, or more.

        Also the row of each sequence's first one, int64 [B]; its others follow.
        """

    @abstractmethod
    def commit(
        self,
        state: DecodeState,
        cache: SiblingCache,
        logits: torch.Tensor,
        first: torch.Tensor,
        following: Record,
        chosen: torch.Tensor,
        moved: torch.Tensor,
    ) -> None:
        """Candidate chosen[b] joins the cache, its row of logits [N, V] becomes l_{i+1} where moved (bool [B]).

        `following`, the original's record, becomes the chosen one's where they differ.
        """


def _evaluator_on(device: torch.device, plan: Plan) -> Evaluator | None:
    """The policy's network where the model is; the policy's own stays where its user put it."""
    network = plan.policy.network if isinstance(plan.policy, CapacityPolicy) else None
    if network is not None and network.mean.device != device:
        network = copy.deepcopy(network).to(device)
    return network


def _column(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """table[b, index[b]] -> [B]."""
    return table.gather(1, index[:, None])[:, 0]
