"""The captured step in the fewest launches: ladder, forward, records, decision, commit.

What `FixedStep` does with some fifty small operations is here two operators, `ladder_step` and `decision_step`; the
records of all candidates are made at once where they are few, and the commit takes the chosen one's. Settings that ask
for more (`fusible`) keep `FixedStep`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from caw import ops
from caw.decoding.capture.fixed_step import FixedStep
from caw.decoding.forward.branching import forward_rows
from caw.decoding.forward.fused_layers import GPU_ROWS
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.plan_defaults import exact_rows
from caw.decoding.state import DecodeState
from caw.decoding.step import Forwarded
from caw.decoding.texts import Texts
from caw.decoding.trace import StepResult
from caw.ladder import Carried, Ladder
from caw.op_indices import RULES, TRANSFORMS
from caw.policies import CapacityPolicy, Signals
from caw.policies.gate import Gate, gate_of
from caw.record import Record

Window = list[tuple[torch.Tensor, torch.Tensor]]  # probabilities and ids of each position's record
ALL_ROWS = 16  # of so many candidates all records are made at once; 64 of 128,256 logits take 138 us on an H100, 2 20


def fusible(plan: Plan) -> bool:
    """Tell whether the two operators suffice: no target, no log-probabilities, one mark."""
    return plan.loop is None and not plan.mixed and not plan.limits.log_probs and plan.kernels.native


@dataclass
class Rungs(Ladder):
    """A ladder with what a forward carries of it, int64 [B, Q]; counts None = one candidate each."""

    counts: torch.Tensor | None
    carried: torch.Tensor


class FusedStep(FixedStep):
    """Two operators in place of `ladder` and `decide`; the second also ends texts and writes to the ring.

    carried: candidates that a look-ahead forwards. packs: whether it may leave out those that do not exist. packed:
    how the forward under way packs them, None = all of them are there.
    """

    def __init__(self, model: Any, plan: Plan, texts: Texts) -> None:
        super().__init__(model, plan, texts)
        self.carried = min(self.slots, plan.rungs) if plan.looks_ahead else 1
        # compiled bodies and layers of others take the same number of candidates of every sequence
        self.packs = plan.looks_ahead and not plan.settings.compile and exact_rows(model)
        self.packed: Packed | None = None

    def conclude(self, cache: SiblingCache, result: StepResult) -> None:
        return

    def ladder(self, state: DecodeState) -> Rungs:
        """Build the ladder of each row, with its first candidates or the one that waits."""
        choosing, texts = self.choosing, self.choosing.texts
        watermark = choosing.watermark
        # what `ladder_step` does not know: formats, races at full strength, each row up to a strength of its own
        if watermark is not None and (watermark.native is None or self.plan.limits.factors or choosing.race):
            ladder, waiting = super().ladder(state), state.pending[:, None]
            carried = torch.where(waiting >= 0, waiting, ladder.candidates[:, : self.carried])
            given = ladder.candidates.contiguous(), ladder.needs.contiguous(), ladder.counts
            return Rungs(*given, ladder.rule, ladder.full, carried)
        record, scores, warped = choosing.drawn(state)
        if watermark is None:
            return Rungs(record.ids[:, :1], record.values[:, :1], None, "reweight", 0.0, record.ids[:, :1])
        race = record.values if scores is warped else warped.gather(1, record.ids.clamp_min(0))
        native = watermark.native
        assert native is not None
        ends = texts.ends if self.plan.limits.ends and not self.plan.mark_eos else None
        candidates, needs, counts, carried = ops.ladder_step(
            record.values, record.ids, race, scores, texts.padded_tokens, texts.counts, texts.keys, state.pending,
            ends, texts.window, native.scheme, native.threshold, watermark.full, self.plan.max_strength,
            watermark.deduplicates, self.carried,
        )  # fmt: skip
        return Rungs(candidates, needs, counts, watermark.rule, watermark.full, carried)

    def carry(self, state: DecodeState, ladder: Ladder) -> Carried:
        assert isinstance(ladder, Rungs)
        tokens, counts = ladder.carried, ladder.counts
        assert counts is not None
        budget = row_budget(*tokens.shape) if self.packs else None
        if budget is None:
            return Carried(tokens, counts)
        several = self.choosing.texts.active & (state.pending < 0)
        self.packed = pack(tokens, torch.where(several, counts.clamp_max(tokens.shape[1]), 1), budget)
        return Carried(tokens, self.packed.carried)

    def logits(
        self, state: DecodeState, cache: SiblingCache, candidates: torch.Tensor, counts: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.packed is not None:
            packed = self.packed
            return forward_rows(self.model, cache, packed.tokens, packed.rows, packed.slots, cache.capacity), None
        logits, (batch, width) = self.rectangle(cache, candidates), candidates.shape
        few = width == 1 or batch * width <= ALL_ROWS
        return logits, None if few else torch.arange(batch, device=logits.device) * width

    def commit(
        self, state: DecodeState, cache: SiblingCache, forwarded: Forwarded, chosen: torch.Tensor, moved: torch.Tensor
    ) -> None:
        logits, first, following = forwarded
        if self.packed is not None:
            rows = self.packed.first + chosen
            logits = logits.index_select(0, rows)[:, None].expand(-1, self.carried, -1)
            following, self.packed = following.take(rows), None
        elif first is not None:
            following = self.record(logits, first + chosen)
        logits = logits.view(state.batch, -1, logits.shape[-1]) if logits.dim() == 2 else logits
        active = self.choosing.texts.active
        cache.commit_step(chosen, moved, state.logits, logits, state.records, following.tensors, active)

    def _window(self, state: DecodeState, following: Record | None) -> Window:
        """Return what the evaluator reads, oldest first. following: of the forward's rows."""
        assert self.choosing.evaluator is not None
        spec = self.choosing.evaluator.spec
        records = [*reversed(state.history[: spec.previous]), state.current]
        window = [(record.probs, record.ids) for record in records]
        if spec.next and following is not None:  # of them those of the originals
            parts = following.probs, following.ids
            if self.packed is None:
                probs, ids = (t.view(state.batch, -1, t.shape[1])[:, 0] for t in parts)
            else:
                probs, ids = (t[self.packed.first] for t in parts)
            window.append((probs, ids))
        return window

    def gate(self, state: DecodeState) -> tuple[Gate, torch.Tensor]:
        """Strengths by a policy that needs no look-ahead: where, and float32 [B], what they are multiplied by."""
        choosing, factors = self.choosing, self.choosing.texts.factors
        signals = Signals(state.current, state.logits)
        gate = Gate(0.0) if choosing.watermark is None else gate_of(self.plan.policy, signals)
        return (Gate(1.0), choosing.strengths(state) * factors) if gate is None else (gate, factors)

    def decide(
        self, state: DecodeState, ladder: Ladder, carried: Carried | None = None, following: Record | None = None
    ) -> tuple[StepResult, torch.Tensor, torch.Tensor]:
        choosing, texts = self.choosing, self.choosing.texts
        network, table, given, factors, policy = [], None, None, texts.factors, self.plan.policy
        evaluator, window = choosing.evaluator, self._window(state, following) if self.plan.evaluates else []
        k, transform, classes, scale = 1, 0, 0, [0.0, 0.0]
        if window:
            assert evaluator is not None and isinstance(policy, CapacityPolicy)
            spec, network, scale = evaluator.spec, evaluator.weights(), [policy.theta, policy.beta]
            k, transform, classes = spec.k, TRANSFORMS.index(spec.transform), spec.classes
            table = evaluator.token_class if classes else None
        else:
            gate, factors = self.gate(state)
            given, scale = gate.signal, [gate.threshold, gate.value]
        logsumexp = state.current.logsumexp
        if self.plan.unbounded:  # the kernel knows one sign of a token that means nothing
            logsumexp = torch.where(texts.refused == 0, logsumexp, torch.nan)
        ring = self.ring
        assert ring is not None
        # a token beyond what was carried waits; without a look-ahead none does
        width = ladder.candidates.shape[1] if carried is None else carried.tokens.shape[1]
        tokens, choice, chosen, shown, strength, capacity, emitted, moved, broken = ops.decision_step(
            [probs for probs, _ in window], [ids for _, ids in window], network, table, ladder.candidates, ladder.needs,
            ladder.counts, [state.pending, state.pending_strength, state.pending_capacity], factors, given, logsumexp,
            texts.padded_tokens, texts.counts, texts.budgets, texts.ends, texts.active, ring.integers, ring.floats,
            ring.cursor, width, texts.window, k, transform, classes, *map(float, scale), RULES.index(ladder.rule),
            ladder.full, None if self.packed is None else self.packed.carried,
        )  # fmt: skip
        choosing.spend(tokens, emitted)
        ring.forwarded = 1 if carried is None else width
        seen = ladder.candidates, shown, strength, capacity
        chosen = torch.zeros_like(chosen) if carried is None and window else chosen  # the token alone is forwarded
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

    The least tile of products with two rows a text, of which texts need 1.5, else the largest.
    """
    rows = next((tile for tile in (16, 32) if tile >= 2 * batch), GPU_ROWS)
    return rows if batch * width > rows >= LEAST * batch else None


def pack(candidates: torch.Tensor, wanted: torch.Tensor, budget: int) -> Packed:
    """Pack the first `wanted` (int64 [B], 1..Q) candidates of int64 [B, Q] into R = budget rows; reads nothing back."""
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
