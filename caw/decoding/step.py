"""One step of decoding, in the order of the algorithm: ladder, look ahead, evaluate, strength, select, commit.

Every (watermark, policy) pair is this one loop; no watermark at all is a ladder of one candidate. How a token is chosen
from given logits is `choosing.py`; a step adds the model's forward and its cache. Kinds of steps (`steps.py`):

- `EagerStep` (eager_step.py) reads a few numbers back, and skips work that would change nothing.
- `DraftStep` (drafts/verify.py) is one with drafted tokens behind the candidates.
- `FixedStep` (capture/fixed_step.py) reads nothing back from the device, so that a CUDA graph can hold it.
- `FusedStep` (capture/fused_step.py) is one whose `ladder` and `decide` are one operator each.

While a decoder computes, `FusedForwards` (forward/fused_forwards.py) replaces the forward functions of layers that it
knows with this library's operators.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch

from caw.decoding.choosing import Choice, Choosing
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.state import DecodeState
from caw.decoding.texts import Texts
from caw.decoding.trace import LogProbs, StepResult
from caw.ladder import Carried, Ladder
from caw.record import Record


class Forwarded(NamedTuple):
    """What a forward gave: logits [N, V], float32 or in the model's dtype.

    first: int64 [B], the row of each text's first candidate, which its others follow, and `record` is of those rows;
    None = all records were made.
    """

    logits: torch.Tensor
    first: torch.Tensor | None
    record: Record


class Step(ABC):
    """What a step needs, and the texts it writes. slots: most candidates. beside: positions behind the capacity."""

    def __init__(self, model: Any, plan: Plan, texts: Texts) -> None:
        self.model, self.plan, self.settings = model, plan, plan.settings
        self.choosing = Choosing(plan, texts)
        self.slots, self.beside = plan.slots, 0

    def decode(self, state: DecodeState, cache: SiblingCache) -> StepResult:
        """Decode one token of every active text; changes texts, state and cache in place."""
        self.choosing.steer()
        return self.complete(state, cache, self.ladder(state))

    def complete(self, state: DecodeState, cache: SiblingCache, ladder: Ladder) -> StepResult:
        """Choose from this ladder and commit, with the model's forward before the choice or behind it."""
        if self.plan.looks_ahead:
            carried = self.carry(state, ladder)
            forwarded = self.forward(state, cache, carried.tokens, carried.counts)
            result, chosen, moved = self.decide(state, ladder, carried, forwarded.record)
        else:
            result, chosen, moved = self.decide(state, ladder)
            forwarded = self.forward(state, cache, result.tokens[:, None])
        self.commit(state, cache, forwarded, chosen, moved)
        return result

    def ladder(self, state: DecodeState) -> Ladder:
        """Build the candidates of the next position."""
        return self.choosing.ladder(state)

    def carry(self, state: DecodeState, ladder: Ladder) -> Carried:
        """Take the candidates that a forward carries."""
        # where the last step chose a token it had not forwarded, that token is now the only one carried
        waiting = state.pending >= 0
        carried = self.reachable(ladder, torch.where(waiting, 1, ladder.counts))
        most = carried.tokens.shape[1]
        width = min(most, self.slots)
        tokens = torch.where(waiting[:, None], state.pending[:, None], carried.tokens[:, :width])
        return Carried(tokens, carried.counts.clamp_max(width), carried.places, most > 1)

    def decide(
        self, state: DecodeState, ladder: Ladder, carried: Carried | None = None, following: Record | None = None
    ) -> tuple[StepResult, torch.Tensor, torch.Tensor]:
        """Evaluate, find the strengths, select and emit.

        carried: what went through the model, and the record `following` each original token; None = nothing yet.

        Returns:
            (what the step did, the column int64 [B] of the carried token to commit, whether to commit it bool [B]).
        """
        active = self.choosing.texts.active
        if carried is None:
            capacity, strength, choice = self.choose(state, ladder)
            result = self.emit(state, ladder, choice, strength, capacity, active.clone(), 1)
            return result, torch.zeros_like(choice), result.emitted
        waiting, width = state.pending >= 0, carried.tokens.shape[1]
        if carried.several or self.settings.return_trace:
            capacity, strength, choice = self.choosing.evaluate_and_select(state, ladder, following)
        else:  # one candidate everywhere: no strength could change the choice
            capacity = torch.full_like(state.pending_capacity, torch.nan)
            strength = torch.where(waiting, state.pending_strength, 0.0)
            choice = self.choosing.select(ladder, strength)
        place = choice if carried.places is None else _column(carried.places, choice)
        overflow = (place >= width) & active & ~waiting
        state.pending.copy_(torch.where(overflow, _column(ladder.candidates, choice), -1))
        state.pending_strength.copy_(strength)
        state.pending_capacity.copy_(capacity)
        emitted = active & ~overflow
        chosen = torch.where(emitted & ~waiting, place, 0)
        return self.emit(state, ladder, choice, strength, capacity, emitted, width), chosen, emitted

    def choose(self, state: DecodeState, ladder: Ladder) -> Choice:
        """Choose at a position by a policy that needs no look-ahead."""
        return self.choosing.choose(state, ladder, traced=self.settings.return_trace)

    def record(self, logits: torch.Tensor, rows: torch.Tensor | None = None) -> Record:
        """Records of logits [N, V], or of some rows (int64 [B]) of them."""
        return self.choosing.record(logits, rows)

    def emit(
        self, state: DecodeState, ladder: Ladder, choice: torch.Tensor, strength: torch.Tensor, capacity: torch.Tensor,
        emitted: torch.Tensor, forwarded: int,
    ) -> StepResult:  # fmt: skip
        """Append the chosen tokens where emitted (bool [B]) and return what the step did."""
        choosing, tokens = self.choosing, _column(ladder.candidates, choice)
        choosing.accept(tokens, emitted)
        choosing.spend(tokens, emitted)
        # the logsumexp of a row with a NaN or +inf anywhere is one too: no second look at the logits
        sound = state.current.logsumexp.isfinite()
        broken = choosing.texts.active & ~(sound & (choosing.texts.refused == 0) if self.plan.unbounded else sound)
        shown = ladder.candidates, ladder.counts, strength, capacity
        log_probs = LogProbs.of(state.logits, state.current, tokens) if self.plan.limits.log_probs else None
        return StepResult(emitted, tokens, choice, *shown, broken, forwarded, log_probs)

    # What a kind of step decides ------------------------------------------------------------------------------------

    @abstractmethod
    def reachable(self, ladder: Ladder, counts: torch.Tensor) -> Carried:
        """Tokens of the first counts[b] rungs, in the order in which a forward carries as many as there are slots."""

    def forward(
        self, state: DecodeState, cache: SiblingCache, candidates: torch.Tensor, counts: torch.Tensor | None = None
    ) -> Forwarded:
        """Run the model on the first counts[b] (int64 [B]; None: 1) candidates [B, Q] of each text, or more of them."""
        logits, first = self.logits(state, cache, candidates, counts)
        return Forwarded(logits, first, self.record(logits, first))

    @abstractmethod
    def logits(
        self, state: DecodeState, cache: SiblingCache, candidates: torch.Tensor, counts: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `forward`, without the records."""

    @abstractmethod
    def commit(
        self, state: DecodeState, cache: SiblingCache, forwarded: Forwarded, chosen: torch.Tensor, moved: torch.Tensor
    ) -> None:
        """Put candidate chosen[b] into the cache, its logits and record in place of the last where moved (bool [B])."""


def _column(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """table[b, index[b]] -> [B]."""
    return table.gather(1, index[:, None])[:, 0]
