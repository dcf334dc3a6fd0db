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
from caw.decoding.forward.branching import forward_rows
from caw.decoding.forward.fused_layers import GPU_ROWS
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.plan_defaults import exact_rows
from caw.decoding.row_tensors import RowMarks
from caw.decoding.state import DecodeState
from caw.decoding.texts import Texts
from caw.decoding.trace import StepResult
from caw.op_indices import RULES, TRANSFORMS
from caw.policies import CapacityPolicy, Signals
from caw.policies.gate import Gate, gate_of
from caw.record import Record

Window = list[tuple[torch.Tensor, torch.Tensor]]  # probabilities and ids of each position's record
ALL_ROWS = 64  # of so many candidates all records cost what those of the original ones cost


def fusible(plan: Plan) -> bool:
    """Tell whether the two operators suffice: no target, no log-probabilities, one mark."""
    return plan.loop is None and not plan.mixed and not plan.limits.log_probs and plan.kernels.native


class Rungs(NamedTuple):
    """A ladder, as `caw.ladder.Ladder`; counts None = one candidate each. carried: int64 [B, Q]."""

    candidates: torch.Tensor
    needs: torch.Tensor
    counts: torch.Tensor | None
    carried: torch.Tensor


class FusedStep(FixedStep):
    """Run the step as two operators, which also end texts and write to the ring.

    carried: candidates that a look-ahead forwards. packs: whether it may leave out those that do not exist.
    """

    def __init__(self, model: Any, plan: Plan, texts: Texts, marks: RowMarks | None = None) -> None:
        super().__init__(model, plan, texts, marks)
        self.carried = min(self.slots, self.choosing.rungs)
        # compiled bodies and layers of others take the same number of candidates of every sequence
        self.packs = not plan.settings.compile and exact_rows(model)

    def decode(self, state: DecodeState, cache: SiblingCache) -> StepResult:
        """Decode one token of every active sequence; mutates state, cache and ring."""
        if self.plan.looks_ahead:
            rungs = self.rungs_of(state, self.carried)
            budget = row_budget(*rungs.carried.shape) if self.packs else None
            result, chosen, moved, logits, following = (
                self._evaluated(state, cache, rungs) if budget is None else self._packed(state, cache, rungs, budget)
            )
        else:
            rungs = self.rungs_of(state, 1)
            window = self._window(state) if self.plan.evaluates else []
            result, chosen, moved = self.decide(state, rungs, window, rungs.candidates.shape[1])
            chosen = torch.zeros_like(chosen) if window else chosen  # the token alone is forwarded
            logits = self.logits(cache, result.tokens[:, None]).view(state.batch, 1, -1)
            following = self.record(logits[:, 0])
        active = self.choosing.texts.active
        cache.commit_step(chosen, moved, state.logits, logits, state.records, following.tensors, active)
        return result

    def conclude(self, cache: SiblingCache, result: StepResult) -> None:
        return

    def _evaluated(
        self, state: DecodeState, cache: SiblingCache, rungs: Rungs
    ) -> tuple[StepResult, torch.Tensor, torch.Tensor, torch.Tensor, Record]:
        """Return what `decide` gives, the candidates' logits [B, Q, V], and the record of each or of the chosen one."""
        batch, width = rungs.carried.shape
        logits = self.logits(cache, rungs.carried)
        first = torch.arange(batch, device=logits.device) * width if batch * width > ALL_ROWS else None
        following = self.record(logits, first)
        probs, ids = (t.view(batch, -1, t.shape[1])[:, 0] for t in (following.probs, following.ids))
        result, chosen, moved = self.decide(state, rungs, self._window(state, (probs, ids)), width)
        if first is not None:
            following = self.record(logits, first + chosen)
        return result, chosen, moved, logits.view(batch, width, -1), following

    def _packed(
        self, state: DecodeState, cache: SiblingCache, rungs: Rungs, budget: int
    ) -> tuple[StepResult, torch.Tensor, torch.Tensor, torch.Tensor, Record]:
        """As `_evaluated`, with `budget` rows in all; the logits are those of the chosen candidate in every place."""
        width, counts = rungs.carried.shape[1], rungs.counts
        assert counts is not None
        several = self.choosing.texts.active & (state.pending < 0)
        packed = pack(rungs.carried, torch.where(several, counts.clamp_max(width), 1), budget)
        logits = forward_rows(self.model, cache, packed.tokens, packed.rows, packed.slots, cache.capacity)
        following = self.record(logits)
        window = self._window(state, (following.probs[packed.first], following.ids[packed.first]))
        result, chosen, moved = self.decide(state, rungs, window, width, packed.carried)
        rows = packed.first + chosen
        of_each = logits.index_select(0, rows)[:, None].expand(-1, width, -1)
        return result, chosen, moved, of_each, following.take(rows)

    def _window(self, state: DecodeState, following: tuple[torch.Tensor, torch.Tensor] | None = None) -> Window:
        """Return what the evaluator reads, oldest first. following: of the originals' records, if it reads them."""
        assert self.choosing.evaluator is not None
        spec = self.choosing.evaluator.spec
        before = [*reversed(state.history[: spec.previous]), state.current]
        return [*((record.probs, record.ids) for record in before), *([following] if spec.next and following else [])]

    def rungs_of(self, state: DecodeState, slots: int) -> Rungs:
        """Build the ladder of each row, with its first `slots` candidates or the one that waits."""
        choosing, texts = self.choosing, self.choosing.texts
        watermark = choosing.watermark
        # what `ladder_step` does not know: formats, races at full strength, each row up to a strength of its own
        if watermark is not None and (watermark.native is None or choosing.limits.factors or choosing.race):
            ladder, waiting = self.ladder(state), state.pending[:, None]
            carried = torch.where(waiting >= 0, waiting, ladder.candidates[:, :slots])
            return Rungs(ladder.candidates.contiguous(), ladder.needs.contiguous(), ladder.counts, carried)
        record, scores, warped = choosing.drawn(state)
        if watermark is None:
            return Rungs(record.ids[:, :1], record.values[:, :1], None, record.ids[:, :1])
        race = record.values if scores is warped else warped.gather(1, record.ids.clamp_min(0))
        native = watermark.native
        assert native is not None
        ends = texts.rows.ends if choosing.limits.ends and not self.plan.mark_eos else None
        return Rungs(*ops.ladder_step(
            record.values, record.ids, race, scores, texts.padded_tokens, texts.counts, texts.rows.keys, state.pending,
            ends, texts.window, native.scheme, native.threshold, watermark.full, choosing.max_strength,
            watermark.deduplicates, slots,
        ))  # fmt: skip

    def gate(self, state: DecodeState) -> tuple[Gate, torch.Tensor]:
        """Strengths by a policy that needs no look-ahead: where, and float32 [B], what they are multiplied by."""
        choosing, factors = self.choosing, self.choosing.texts.factors
        signals = Signals(state.current, state.logits)
        gate = Gate(0.0) if choosing.watermark is None else gate_of(choosing.policy, signals)
        return (Gate(1.0), choosing.own_strengths(state) * factors) if gate is None else (gate, factors)

    def decide(
        self, state: DecodeState, rungs: Rungs, window: Window, width: int, carried: torch.Tensor | None = None
    ) -> tuple[StepResult, torch.Tensor, torch.Tensor]:
        """Decide the step: returns (result, sibling int64 [B] to commit, where to commit bool [B]).

        window: what the evaluator reads, oldest first; empty: the policy gives the strength. width: candidates that
        can be chosen without waiting; carried: int64 [B], if those differ.
        """
        choosing, texts = self.choosing, self.choosing.texts
        network, table, given, factors, policy = [], None, None, texts.factors, choosing.policy
        watermark, evaluator = choosing.watermark, choosing.evaluator
        k, transform, classes, scale = 1, 0, 0, [0.0, 0.0]
        rule, full = ("reweight", 0.0) if watermark is None else (watermark.rule, watermark.full)
        if window:
            assert evaluator is not None and isinstance(policy, CapacityPolicy)
            spec, network, scale = evaluator.spec, evaluator.weights(), [policy.theta, policy.beta]
            k, transform, classes = spec.k, TRANSFORMS.index(spec.transform), spec.classes
            table = evaluator.token_class if classes else None
        else:
            gate, factors = self.gate(state)
            given, scale = gate.signal, [gate.threshold, gate.value]
        logsumexp = state.current.logsumexp
        if choosing.unbounded:  # the kernel knows one sign of a token that means nothing
            logsumexp = torch.where(texts.refused == 0, logsumexp, torch.nan)
        ring = self.ring
        assert ring is not None
        tokens, choice, chosen, shown, strength, capacity, emitted, moved, broken = ops.decision_step(
            [probs for probs, _ in window], [ids for _, ids in window], network, table, *rungs[:3],
            [state.pending, state.pending_strength, state.pending_capacity], factors, given, logsumexp,
            texts.padded_tokens, texts.counts, texts.budgets, texts.rows.ends, texts.active, ring.integers, ring.floats,
            ring.cursor, width, texts.window, k, transform, classes, *map(float, scale), RULES.index(rule), full,
            carried,
        )  # fmt: skip
        choosing.spend(tokens, emitted)
        ring.forwarded = width if self.plan.looks_ahead else 1
        seen = rungs.candidates, shown, strength, capacity
        return StepResult(emitted, tokens, choice, *seen, broken, ring.forwarded), chosen, moved


LEAST = 1.5  # rows for each sequence with which packing pays: below, too many tokens would wait for a step of their own


class Packed(NamedTuple):
    """Candidates of all texts packed into a fixed number of rows, on the device.

    With many texts, most of the B * Q candidates that a step could carry do not exist: the ladder of a race has two or
    three rungs of eight. So the step carries R rows: the original token of every text, then all second candidates, then
    all third ones, texts in order; spare rows repeat originals. A token that was chosen but not carried waits for the
    next step, which carries it alone (`decision_step`). Packing may cost steps; it changes no token except through
    rounding.

    tokens: int64 [R], of sequence rows[n] (int64 [R], ascending) candidate slots[n] (int64 [R]).

    first: int64 [B], row of each sequence's first one. carried: int64 [B], how many it has, at least 1.
    """

    tokens: torch.Tensor
    rows: torch.Tensor
    slots: torch.Tensor
    first: torch.Tensor
    carried: torch.Tensor


def row_budget(batch: int, width: int) -> int | None:
    """Return R for B = batch texts of up to `width` candidates; None = all of them are carried.

    As many as the kernels of few rows take.
    """
    return GPU_ROWS if batch * width > GPU_ROWS >= LEAST * batch else None


def pack(candidates: torch.Tensor, wanted: torch.Tensor, budget: int) -> Packed:
    """Pack the first candidates of int64 [B, Q] into R = budget rows, B <= R <= B * Q.

    wanted: int64 [B], 1..Q, how many of each count.

    Reads nothing back: shapes depend on shapes alone.
    """
    batch, width = candidates.shape
    places = torch.arange(width, device=candidates.device)[:, None]
    counts = places < wanted[None]  # [Q, B]: all originals, all second candidates, ...
    there = torch.cat([counts, ~counts])  # in this order, so those that count first
    taken = there & (there.flatten().cumsum(0).view_as(there) <= budget)
    carried = taken.view(2, width, batch).sum(dim=(0, 1))
    ends = carried.cumsum(0)
    first, row = ends - carried, torch.arange(budget, device=candidates.device)
    rows = torch.searchsorted(ends, row, right=True)
    slots = row - first[rows]
    return Packed(candidates[rows, slots], rows, slots, first, carried)
