"""One step of decoding, in the order of the algorithm: ladder, look ahead, evaluate, strength, select, commit.

Every (watermark, policy) pair is this one loop; no watermark at all is a ladder of one candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from caw import ops
from caw.decoding.branching import forward_candidates
from caw.decoding.kv_cache import SiblingCache
from caw.decoding.sampling import Warper, gumbel_noise, gumbel_noise_ref
from caw.decoding.settings import DecodeSettings
from caw.decoding.state import DecodeState
from caw.evaluator import Evaluator
from caw.policies import CapacityPolicy, Policy, Signals
from caw.record import Record
from caw.triton_kernels.select_candidate_ref import RULES
from caw.watermarks import Position, Watermark
from caw.watermarks.ladder import Ladder, original_only


@dataclass
class StepResult:
    """What one step did; B sequences, int64/float32/bool [B] on the model's device.

    emitted: which sequences got a token. tokens: the token. choice: its index in candidates [B, M] (counts valid), also
    where the step before chose it.
    strength, capacity: float32; capacity is NaN where it was not evaluated.
    forwarded: candidates the forward carried per sequence.
    """

    emitted: torch.Tensor
    tokens: torch.Tensor
    choice: torch.Tensor
    candidates: torch.Tensor
    counts: torch.Tensor
    strength: torch.Tensor
    capacity: torch.Tensor
    forwarded: int


@dataclass
class Stepper:
    """Everything a step needs that does not change between steps."""

    model: Any
    watermark: Watermark | None
    policy: Policy
    settings: DecodeSettings
    slots: int
    warper: Warper | None
    kernels: ops.Ops

    @property
    def evaluator(self) -> Evaluator | None:
        return self.policy.network if isinstance(self.policy, CapacityPolicy) else None

    @property
    def looks_ahead(self) -> bool:
        return self.watermark is not None and self.policy.looks_ahead

    def step(self, state: DecodeState, cache: SiblingCache) -> StepResult:
        """Decode one token of every active sequence; mutates state and cache."""
        ladder = self.ladder(state)
        if self.looks_ahead:
            return self._choose_after_forward(state, cache, ladder)
        return self._choose_before_forward(state, cache, ladder)

    def _record(self, logits: torch.Tensor) -> Record:
        return Record.from_logits(logits, kernels=self.kernels)

    def _select(self, ladder: Ladder, strength: torch.Tensor) -> torch.Tensor:
        rule = RULES.index(ladder.rule)
        return self.kernels.select_candidate(
            ladder.candidates, ladder.needs, ladder.counts, strength, rule, ladder.full
        )

    # 1. Ladder -------------------------------------------------------------------------------------------------

    def ladder(self, state: DecodeState) -> Ladder:
        """Candidates of the next position from the logits the choice is made from."""
        scores, warped = self._choice_logits(state)
        record = state.current if scores is state.logits else self._record(scores)
        if self.watermark is None:
            return original_only(record.ids[:, 0], 1, "reweight", 0.0)
        race = record.values if scores is warped else warped.gather(1, record.ids.clamp_min(0))
        context = state.contexts()
        ladder = self._watermark_ladder(Position(record, race, scores, context, warped))
        if self.watermark.deduplicates:
            return ladder.only_original(state.context_repeats(context))
        return ladder

    def _watermark_ladder(self, position: Position) -> Ladder:
        assert self.watermark is not None
        device = position.scores.device.type
        if self.kernels.native and self.watermark.native and ops.has_kernel("enumerate_candidates", device):
            return self.watermark.native_ladder(position, self.policy.max_strength)
        return self.watermark.ladder(position, self.policy.max_strength)

    def _choice_logits(self, state: DecodeState) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits the choice is made from, the same without sampling noise), float32 [B, V]."""
        warped = state.logits
        if self.settings.min_new_tokens and self.settings.eos_token_ids:
            too_early = state.counts < self.settings.min_new_tokens
            if bool(too_early.any()):
                warped = warped.clone()
                ends = torch.tensor(self.settings.eos_token_ids, device=warped.device)
                warped[:, ends] = torch.where(too_early[:, None], -torch.inf, warped[:, ends])
        if self.warper is not None:
            warped = self.warper(warped)
        if not self.settings.do_sample:
            return warped, warped
        draw = gumbel_noise if self.kernels.native else gumbel_noise_ref
        noise = draw(self.settings.seed, state.streams, state.counts, warped.shape[1])
        return warped + noise, warped

    # 2.-5. Look ahead, evaluate, strength, select, commit --------------------------------------------------------

    def _choose_after_forward(self, state: DecodeState, cache: SiblingCache, ladder: Ladder) -> StepResult:
        # where the last step chose a token it had not forwarded, that token is now the only one carried
        waiting = state.pending >= 0
        most = int(torch.where(waiting, 1, ladder.counts).max())
        width = min(most, self.slots)
        # rows with fewer candidates carry their original again: rectangular, and its result is not used
        carried = torch.where(waiting[:, None], state.pending[:, None], ladder.candidates[:, :width])
        logits = self._forward(cache, carried)
        following = self._record(logits[:, 0])
        if most > 1 or self.settings.trace:
            capacity = torch.where(waiting, state.pending_capacity, self._evaluate(state, following))
            strength = self.policy.strength(Signals(state.current, state.logits, capacity))
        else:  # one candidate everywhere: no strength could change the choice
            capacity = torch.full_like(state.pending_capacity, torch.nan)
            strength = torch.zeros_like(capacity)
        strength = torch.where(waiting, state.pending_strength, strength)
        waited_for = (ladder.candidates == state.pending[:, None]).int().argmax(dim=1)
        choice = torch.where(waiting, waited_for, self._select(ladder, strength))
        overflow = (choice >= width) & state.active & ~waiting
        state.pending = torch.where(overflow, _column(ladder.candidates, choice), -1)
        state.pending_strength, state.pending_capacity = strength, capacity
        emitted = state.active & ~overflow
        slot = torch.where(waiting | (choice >= width), 0, choice)  # also in rows at rest, whose choice means nothing
        cache.commit(slot, emitted)
        result = self._emit(state, ladder, choice, strength, capacity, emitted, width)
        self._advance(state, logits, following, slot, emitted)
        return result

    def _choose_before_forward(self, state: DecodeState, cache: SiblingCache, ladder: Ladder) -> StepResult:
        if self.watermark is None:
            strength = torch.zeros_like(state.pending_strength)
        else:
            strength = self.policy.strength(Signals(state.current, state.logits))
        choice = self._select(ladder, strength)
        emitted = state.active.clone()
        capacity = torch.full_like(strength, torch.nan)
        result = self._emit(state, ladder, choice, strength, capacity, emitted, 1)
        logits = self._forward(cache, result.tokens[:, None])
        first = torch.zeros_like(choice)
        cache.commit(first, emitted)
        self._advance(state, logits, self._record(logits[:, 0]), first, emitted)
        return result

    def _forward(self, cache: SiblingCache, candidates: torch.Tensor) -> torch.Tensor:
        return forward_candidates(
            self.model, cache, candidates, self.settings.branching, limit=int(cache.lengths.max())
        )

    def _evaluate(self, state: DecodeState, following: Record) -> torch.Tensor:
        """Capacity of position i from the records of i - N-, …, i, i + 1 given the original token."""
        assert self.evaluator is not None
        spec = self.evaluator.spec
        window = [*reversed(state.history[: spec.previous]), state.current, *[following][: spec.next]]
        return self.kernels.evaluate_capacity(spec.assemble(window), self.evaluator.weights())

    def _emit(
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
        state.emit(tokens, emitted)
        return StepResult(emitted, tokens, choice, ladder.candidates, ladder.counts, strength, capacity, forwarded)

    def _advance(
        self, state: DecodeState, logits: torch.Tensor, following: Record, slot: torch.Tensor, moved: torch.Tensor
    ) -> None:
        """The chosen candidate's logits become l_{i+1}; its record is read only where it is not the original's."""
        changed = (slot > 0).nonzero()[:, 0]
        rows = torch.arange(slot.shape[0], device=slot.device)
        chosen = logits[rows, slot]
        if changed.numel():
            following.write(changed, self._record(chosen[changed]))
        state.advance(moved, chosen, following)


def _column(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """table[b, index[b]] -> [B]."""
    return table.gather(1, index[:, None])[:, 0]
