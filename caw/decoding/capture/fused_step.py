"""The captured step in the fewest launches: ladder, forward, records, decision, commit.

What `FixedStep` does with some fifty small operations is here two operators, `ladder_step` and `decision_step`; the
records of all candidates are made at once where they are few, and the commit takes the chosen one's. Settings that ask
for more (`fusible`) keep `FixedStep`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from caw import ops
from caw.decoding.capture.fixed_step import FixedStep
from caw.decoding.capture.packing import pack, row_budget
from caw.decoding.draftable import exact_rows
from caw.decoding.forward.branching import forward_rows
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.state import DecodeState
from caw.decoding.step_result import StepResult
from caw.policies import CapacityPolicy, Signals
from caw.policies.gate import Gate, gate_of
from caw.record import Record
from caw.triton_kernels.op_indices import RULES, TRANSFORMS

Window = list[tuple[torch.Tensor, torch.Tensor]]  # probabilities and ids of each position's record
ALL_ROWS = 64  # of so many candidates all records cost what those of the original ones cost


def fusible(plan: Plan) -> bool:
    """Whether the two operators know all that is asked: no target, no log-probabilities, no copies of the prefix."""
    return plan.loop is None and not plan.limits.log_probs and plan.copies == 1 and plan.kernels.native


class Rungs(NamedTuple):
    """A ladder, as `triton_kernels.ladder_ref.Ladder`; counts None = one candidate each. carried: int64 [B, Q]."""

    candidates: torch.Tensor
    needs: torch.Tensor
    counts: torch.Tensor | None
    carried: torch.Tensor


class FusedStep(FixedStep):
    """Ends texts and writes to the ring by itself; what `take` returns only says so.

    carried: candidates that a look-ahead forwards. packs: whether it may leave out those that do not exist.
    """

    def __init__(self, model: Any, plan: Plan) -> None:
        super().__init__(model, plan)
        self.carried = min(self.slots, self.rungs)
        own = plan.kernels.sibling_attention is ops.sibling_attention
        # compiled bodies and layers of others take the same number of candidates of every sequence
        self.packs = own and plan.settings.branching == "tree" and not plan.settings.compile and exact_rows(model)

    def take(self, state: DecodeState, cache: SiblingCache) -> StepResult:
        """Decode one token of every active sequence; mutates state, cache and ring."""
        if self.plan.looks_ahead:
            rungs = self.rungs_of(state, self.carried)
            budget = row_budget(*rungs.carried.shape) if self.packs else None
            result, chosen, moved, logits, following = (
                self._evaluated(state, cache, rungs) if budget is None else self._packed(state, cache, rungs, budget)
            )
        else:
            rungs = self.rungs_of(state, 1)
            result, chosen, moved = self.decide(state, rungs, [], rungs.candidates.shape[1])
            logits = self.logits(cache, result.tokens[:, None]).view(state.batch, 1, -1)
            following = self.record(logits[:, 0])
        cache.commit_step(chosen, moved, state.logits, logits, state.records, following.tensors, state.active)
        return result

    def _evaluated(
        self, state: DecodeState, cache: SiblingCache, rungs: Rungs
    ) -> tuple[StepResult, torch.Tensor, torch.Tensor, torch.Tensor, Record]:
        """What `decide` gives, the candidates' logits [B, Q, V], and the record of each or of the chosen one."""
        batch, width = rungs.carried.shape
        logits = self.logits(cache, rungs.carried)
        first = torch.arange(batch, device=logits.device) * width if batch * width > ALL_ROWS else None
        following = self.record(logits, first)
        probs, ids = (t.view(batch, -1, t.shape[1])[:, 0] for t in (following.probs, following.ids))
        result, chosen, moved = self.decide(state, rungs, self._window(state, probs, ids), width)
        if first is not None:
            following = self.record(logits, first + chosen)
        return result, chosen, moved, logits.view(batch, width, -1), following

    def _packed(
        self, state: DecodeState, cache: SiblingCache, rungs: Rungs, budget: int
    ) -> tuple[StepResult, torch.Tensor, torch.Tensor, torch.Tensor, Record]:
        """The same with `budget` rows in all; the logits are those of the chosen candidate, whatever the place."""
        width, counts = rungs.carried.shape[1], rungs.counts
        assert counts is not None
        several = state.active & (state.pending < 0)
        packed = pack(rungs.carried, torch.where(several, counts.clamp_max(width), 1), budget)
        logits = forward_rows(self.model, cache, packed.tokens, packed.rows, packed.slots, cache.capacity)
        following = self.record(logits)
        window = self._window(state, following.probs[packed.first], following.ids[packed.first])
        result, chosen, moved = self.decide(state, rungs, window, width, packed.carried)
        rows = packed.first + chosen
        of_each = logits.index_select(0, rows)[:, None].expand(-1, width, -1)
        return result, chosen, moved, of_each, following.take(rows)

    def _window(self, state: DecodeState, probs: torch.Tensor, ids: torch.Tensor) -> Window:
        """What the evaluator reads, oldest first; probs, ids: of the originals' records."""
        assert self.evaluator is not None
        spec = self.evaluator.spec
        before = [*reversed(state.history[: spec.previous]), state.current]
        return [*((record.probs, record.ids) for record in before), *[(probs, ids)][: spec.next]]

    def rungs_of(self, state: DecodeState, slots: int) -> Rungs:
        """The ladder of each row and its first `slots` candidates, or the one that waits."""
        watermark = self.watermark
        # a format that `ladder_step` does not know, or each row up to the greatest strength of its own
        if watermark is not None and (watermark.native is None or self.limits.factors):
            ladder, waiting = self.ladder(state), state.pending[:, None]
            carried = torch.where(waiting >= 0, waiting, ladder.candidates[:, :slots])
            return Rungs(ladder.candidates.contiguous(), ladder.needs.contiguous(), ladder.counts, carried)
        scores, warped = self.choice_logits(state)
        record = state.current if scores is state.logits else self.record(scores)
        if self.watermark is None:
            return Rungs(record.ids[:, :1], record.values[:, :1], None, record.ids[:, :1])
        race = record.values if scores is warped else warped.gather(1, record.ids.clamp_min(0))
        native = self.watermark.native
        assert native is not None
        ends = state.rows.ends if self.limits.ends and not self.plan.mark_eos else None
        return Rungs(*ops.ladder_step(
            record.values, record.ids, race, scores, state.padded_tokens, state.counts, state.rows.keys, state.pending,
            ends, state.window, native.scheme, native.threshold, self.watermark.full, self.max_strength,
            self.watermark.deduplicates, slots,
        ))  # fmt: skip

    def gate(self, state: DecodeState) -> tuple[Gate, torch.Tensor]:
        """Strengths by a policy that needs no look-ahead: where, and float32 [B], what they are multiplied by."""
        signals = Signals(state.current, state.logits)
        gate = Gate(0.0) if self.watermark is None else gate_of(self.policy, signals)
        return (Gate(1.0), self.policy.strength(signals) * state.factors) if gate is None else (gate, state.factors)

    def decide(
        self,
        state: DecodeState,
        rungs: Rungs,
        window: Window,
        width: int,
        carried: torch.Tensor | None = None,
    ) -> tuple[StepResult, torch.Tensor, torch.Tensor]:
        """(what happened, sibling int64 [B] to commit where bool [B] is true).

        window: what the evaluator reads, oldest first; empty: the policy gives the strength. width: candidates that
        can be chosen without waiting; carried: int64 [B], if those differ.
        """
        network, table, given, factors, policy = [], None, None, state.factors, self.policy
        k, transform, classes, scale = 1, 0, 0, [0.0, 0.0]
        rule, full = ("reweight", 0.0) if self.watermark is None else (self.watermark.rule, self.watermark.full)
        if window:
            assert self.evaluator is not None and isinstance(policy, CapacityPolicy)
            spec, network, scale = self.evaluator.spec, self.evaluator.weights(), [policy.theta, policy.beta]
            k, transform, classes = spec.k, TRANSFORMS.index(spec.transform), spec.classes
            table = self.evaluator.token_class if classes else None
        else:
            gate, factors = self.gate(state)
            given, scale = gate.signal, [gate.threshold, gate.value]
        ring = self.ring
        assert ring is not None
        tokens, choice, chosen, shown, strength, capacity, emitted, moved, broken = ops.decision_step(
            [probs for probs, _ in window], [ids for _, ids in window], network, table, *rungs[:3], state.pending,
            state.pending_strength, state.pending_capacity, factors, given, state.current.logsumexp,
            state.padded_tokens, state.counts, state.budgets, state.rows.ends, state.active, ring.integers, ring.floats,
            ring.cursor, width, state.window, k, transform, classes, *map(float, scale), RULES.index(rule), full,
            carried,
        )  # fmt: skip
        ring.forwarded = width if window else 1
        seen = rungs.candidates, shown, strength, capacity
        return StepResult(emitted, tokens, choice, *seen, broken, ring.forwarded), chosen, moved
