"""One step of decoding, in the order of the algorithm: ladder, look ahead, evaluate, strength, select, commit.

Every (watermark, policy) pair is this one loop; no watermark at all is a ladder of one candidate.

A step comes in two forms that give the same tokens. As it is, it reads a few numbers back from the device to leave out
work: candidates that no sequence or not this one can reach, evaluation and second records that would change nothing.
That is right where reading costs nothing, on a CPU. With `fixed` it reads nothing back and does the same work in every
step, whatever the lengths, the candidates and the ends of texts are, so that a CUDA graph can hold it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from caw import ops
from caw.decoding.branching import forward_candidates, forward_packed
from caw.decoding.kv_cache import SiblingCache
from caw.decoding.sampling import GumbelNoise, Warper, Warping
from caw.decoding.settings import DecodeSettings
from caw.decoding.state import DecodeState
from caw.evaluator import Evaluator
from caw.policies import CapacityPolicy, Policy, Signals
from caw.record import RECORD_SIZE, Record
from caw.triton_kernels.evaluator_step_ref import TRANSFORMS
from caw.triton_kernels.select_candidate_ref import RULES
from caw.watermarks import Position, Watermark
from caw.watermarks.ladder import Ladder, original_only


@dataclass
class StepResult:
    """What one step did; B sequences, int64/float32/bool [B] on the model's device.

    emitted: which sequences got a token. tokens: the token. choice: its index in candidates [B, M] (counts valid), also
    where the step before chose it.
    strength, capacity: float32; capacity is NaN where it was not evaluated.
    broken: bool [B], whether the logits the choice was made from were NaN or infinite, so that its token means nothing.
    forwarded: candidates the forward carried per sequence, or, packed, of the sequence with most of them.
    """

    emitted: torch.Tensor
    tokens: torch.Tensor
    choice: torch.Tensor
    candidates: torch.Tensor
    counts: torch.Tensor
    strength: torch.Tensor
    capacity: torch.Tensor
    broken: torch.Tensor
    forwarded: int


@dataclass
class Stepper:
    """Everything a step needs that does not change between steps.

    ends: bool [V], which tokens end a text. noise: draws of the sampler, None when decoding greedily.
    fixed: read nothing back from the device and do the same in every step. body: the model as fixed steps call it.
    """

    model: Any
    watermark: Watermark | None
    policy: Policy
    settings: DecodeSettings
    slots: int
    warper: Warper | None
    kernels: ops.Ops
    ends: torch.Tensor
    noise: GumbelNoise | None
    fixed: bool = False
    body: Any = None
    max_strength: float = field(init=False)
    evaluator: Evaluator | None = field(init=False)

    def __post_init__(self) -> None:
        self.max_strength = self.policy.max_strength
        network = self.policy.network if isinstance(self.policy, CapacityPolicy) else None
        if network is not None and network.mean.device != self.ends.device:
            network = copy.deepcopy(network).to(self.ends.device)  # the policy's own stays where its user put it
        self.evaluator = network

    @property
    def looks_ahead(self) -> bool:
        return self.watermark is not None and self.policy.looks_ahead

    @property
    def capturable(self) -> bool:
        """Whether a fixed step needs nothing from the host: no foreign format, no processors of transformers' own."""
        native = self.watermark is None or self.watermark.native is not None
        return native and (self.warper is None or isinstance(self.warper, Warping))

    @property
    def rungs(self) -> int:
        """M, how wide the ladders of a fixed step are."""
        native = self.watermark.native if self.watermark is not None else None
        if self.watermark is None or native is None:
            return 1
        return ops.rungs(RECORD_SIZE, native.scheme, self.watermark.full, self.max_strength)

    def step(self, state: DecodeState, cache: SiblingCache) -> StepResult:
        """Decode one token of every active sequence; mutates state and cache."""
        ladder = self.ladder(state)
        if self.looks_ahead:
            return self._choose_after_forward(state, cache, ladder)
        return self._choose_before_forward(state, cache, ladder)

    def _record(self, logits: torch.Tensor, rows: torch.Tensor | None = None) -> Record:
        return Record(*self.kernels.topk_softmax(logits, RECORD_SIZE, rows))

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
        if self.settings.eos_token_ids and not self.settings.mark_eos:
            ladder = ladder.only_original(self.ends[ladder.candidates].any(dim=1))
        if self.watermark.deduplicates:
            return ladder.only_original(state.context_repeats(context))
        return ladder

    def _watermark_ladder(self, position: Position) -> Ladder:
        assert self.watermark is not None
        if self.watermark.native is not None and (self.kernels.native or self.fixed):
            return self.watermark.native_ladder(position, self.max_strength)
        return self.watermark.ladder(position, self.max_strength)

    def _choice_logits(self, state: DecodeState) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits the choice is made from, the same without sampling noise), float32 [B, V]."""
        warped = state.logits
        if self.settings.min_new_tokens and self.settings.eos_token_ids:
            too_early = state.counts < self.settings.min_new_tokens
            if self.fixed or bool(too_early.any()):
                warped = warped.masked_fill(too_early[:, None] & self.ends, -torch.inf)
        if self.warper is not None:
            warped = self.warper(warped)
        if self.noise is None:
            return warped, warped
        return warped + self.noise(state.streams, state.counts, warped.shape[1]), warped

    # 2.-5. Look ahead, evaluate, strength, select, commit --------------------------------------------------------

    def _choose_after_forward(self, state: DecodeState, cache: SiblingCache, ladder: Ladder) -> StepResult:
        # where the last step chose a token it had not forwarded, that token is now the only one carried
        waiting = state.pending >= 0
        counts = torch.where(waiting, 1, ladder.counts)
        most = ladder.candidates.shape[1] if self.fixed else int(torch.where(state.active, counts, 1).max())
        width = min(most, self.slots)
        carried = torch.where(waiting[:, None], state.pending[:, None], ladder.candidates[:, :width])
        logits, first = self._forward(state, cache, carried, counts.clamp_max(width))
        following = self._record(logits, first)
        if most > 1 or self.settings.trace:
            capacity, strength, choice = self._evaluate_and_select(state, ladder, following)
        else:  # one candidate everywhere: no strength could change the choice
            capacity = torch.full_like(state.pending_capacity, torch.nan)
            strength = torch.where(waiting, state.pending_strength, 0.0)
            choice = self._select(ladder, strength)
        overflow = (choice >= width) & state.active & ~waiting
        state.pending.copy_(torch.where(overflow, _column(ladder.candidates, choice), -1))
        state.pending_strength.copy_(strength)
        state.pending_capacity.copy_(capacity)
        emitted = state.active & ~overflow
        slot = torch.where(emitted & ~waiting, choice, 0)
        result = self._emit(state, ladder, choice, strength, capacity, emitted, width)
        self._commit(state, cache, logits, first, following, slot, emitted)
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
        logits, first = self._forward(state, cache, result.tokens[:, None], torch.ones_like(choice))
        self._commit(state, cache, logits, first, self._record(logits, first), torch.zeros_like(choice), emitted)
        return result

    def _forward(
        self, state: DecodeState, cache: SiblingCache, candidates: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits float32 [N, V] of the first counts[b] (int64 [B]) candidates [B, Q] of each sequence, or more.

        Also the row of each sequence's first one, int64 [B]; its others follow.
        """
        batch, width = candidates.shape
        limit = cache.capacity if self.fixed else int(cache.lengths.max())
        if not self.fixed and cache.packs and self.settings.branching == "tree":
            # sequences at rest are left out, and candidates that no strength can reach
            counts = torch.where(state.active, counts, 0)
            if 0 < int(counts.sum()) < batch * width:
                return forward_packed(self.model, cache, candidates, counts, limit)
        # rows with fewer candidates carry their original again: rectangular, and its result is not used
        model = self.model if self.body is None or not self.fixed else self.body
        logits = forward_candidates(model, cache, candidates, self.settings.branching, limit)
        return logits.flatten(0, 1), torch.arange(batch, device=candidates.device) * width

    def _evaluate_and_select(
        self, state: DecodeState, ladder: Ladder, following: Record
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Capacity of position i from the records of i - N-, …, i, i + 1 given the original token; the strength it
        gets; the rung that chooses. A row that waits keeps the capacity and strength its token was chosen with."""
        evaluator, policy = self.evaluator, self.policy
        assert isinstance(policy, CapacityPolicy) and evaluator is not None
        spec = evaluator.spec
        window = [*reversed(state.history[: spec.previous]), state.current, *[following][: spec.next]]
        return self.kernels.evaluator_step(
            [record.probs for record in window], evaluator.weights(), ladder.candidates, ladder.needs, ladder.counts,
            state.pending, state.pending_strength, state.pending_capacity, spec.k, TRANSFORMS.index(spec.transform),
            float(policy.theta), float(policy.beta), RULES.index(ladder.rule), ladder.full,
            spec.masses(window, evaluator.token_class),
        )  # fmt: skip

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
        # the logsumexp of a row with a NaN or +inf anywhere is one too: no second look at the logits
        broken = state.active & ~state.current.logsumexp.isfinite()
        shown = ladder.candidates, ladder.counts, strength, capacity
        return StepResult(emitted, tokens, choice, *shown, broken, forwarded)

    def _commit(
        self,
        state: DecodeState,
        cache: SiblingCache,
        logits: torch.Tensor,
        first: torch.Tensor,
        following: Record,
        slot: torch.Tensor,
        moved: torch.Tensor,
    ) -> None:
        """The chosen candidate's keys and values join the cache, its row of logits [N, V] becomes l_{i+1} where moved.

        `following`, the original's record, becomes the chosen one's: a second row is read only where they differ, or,
        with `fixed`, wherever they could.
        """
        if self.fixed:
            by_sequence = logits.view(slot.shape[0], -1, logits.shape[1])
            if by_sequence.shape[1] > 1:
                following = self._record(logits, first + slot)
            if cache.copies == 1:
                cache.commit_step(slot, moved, state.logits, by_sequence, state.records, following.tensors)
                return
        else:
            changed = (slot > 0).nonzero()[:, 0]
            if changed.numel():
                following.write(changed, self._record(logits, (first + slot)[changed]))
        cache.commit(slot, moved)
        state.advance(moved, logits[first + slot], following)


def _column(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """table[b, index[b]] -> [B]."""
    return table.gather(1, index[:, None])[:, 0]
