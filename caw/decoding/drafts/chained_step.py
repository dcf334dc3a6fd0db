"""Captured steps whose forward carries a chain of drafts: what they need beyond `FixedStep` and `FusedStep`.

A forward has, of each sequence, its candidates and behind the first of them a fixed number of drafted tokens. The first
decision takes the candidates' logits; each later one takes those behind the next draft (`behind`), where the text has
come to that draft. Who calls them is `DraftedStep`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from caw.decoding.capture.fixed_step import FixedStep
from caw.decoding.capture.fused_step import FusedStep, Rungs, Window
from caw.decoding.choosing import Choice
from caw.decoding.drafts.proposer import Proposer
from caw.decoding.forward.branching import forward_chained
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.row_tensors import RowMarks
from caw.decoding.state import DecodeState
from caw.decoding.texts import Texts
from caw.decoding.trace import StepResult
from caw.ladder import Ladder
from caw.policies.gate import Gate


class ChainedStep(FixedStep):
    """proposer: what is drafted. guesses: int64 [B, drafts], the tokens, -1 = none; set by whoever calls the step.

    peeked: the next position's ladder, once `peek` has looked at it, until it is used. picked: the choice found with
    it, where no look-ahead is needed. The decision behind a draft takes them as they are: chosen
    again, by other code, a token might not be the draft whose keys and values are committed.
    """

    peeked: Any = None
    picked: Choice | None = None

    def __init__(self, model: Any, plan: Plan, proposer: Proposer, texts: Texts, marks: RowMarks | None = None) -> None:
        super().__init__(model, plan, texts, marks)
        self.proposer, self.drafts = proposer, plan.drafts
        self.width = 1  # candidates that each sequence's forward carries before its drafts
        self.guesses: torch.Tensor | None = None
        self._rows: torch.Tensor | None = None
        self._draft: int | None = None

    def logits(self, cache: SiblingCache, candidates: torch.Tensor) -> torch.Tensor:
        """Return the logits behind the candidates, or behind the draft that decides now."""
        if self._draft is not None:
            assert self._rows is not None
            return self._rows[:, self.width + self._draft]
        assert self.guesses is not None
        chain = torch.where(self.guesses >= 0, self.guesses, candidates[:, :1])  # without a guess any token will do
        tokens = torch.cat([candidates, chain], dim=1)
        self.width, positions = candidates.shape[1], self.plan.facts.positions
        self._rows = forward_chained(self.model, cache, tokens, self.drafts, cache.capacity, positions)
        return self._rows[:, : self.width].flatten(0, 1)

    @contextlib.contextmanager
    def behind(self, cache: SiblingCache, draft: int) -> Iterator[None]:
        """Make steps inside the block decide with the logits behind this draft, without a forward."""
        self._draft, cache.first = draft, self.width + draft
        self.slots = 1
        try:
            yield
        finally:
            self._draft, cache.first, self.slots = None, 0, self.plan.slots
            self.forget()

    def forget(self) -> None:
        """Drop what `peek` found."""
        self.peeked = self.picked = None

    def choose(self, state: DecodeState, ladder: Ladder) -> Choice:
        return super().choose(state, ladder) if self.picked is None else self.picked

    def peek(self, state: DecodeState) -> torch.Tensor:
        """The token at the next position that its logits must be known of, int64 [B]: where the strength asks for a
        look-ahead the original one, else the one chosen. Changes nothing that a step would not compute again."""
        raise NotImplementedError

    def _wanted(self, state: DecodeState, ladder: Ladder) -> torch.Tensor:
        if self.plan.looks_ahead or self.choosing.watermark is None:
            return ladder.candidates[:, 0]
        self.picked = super().choose(state, ladder)
        return ladder.candidates.gather(1, self.picked.candidate[:, None])[:, 0]


class ChainedFixedStep(ChainedStep):
    def ladder(self, state: DecodeState) -> Ladder:
        return super().ladder(state) if self.peeked is None else self.peeked

    def peek(self, state: DecodeState) -> torch.Tensor:
        self.choosing.steer()
        self.peeked = super().ladder(state)
        return self._wanted(state, self.peeked)


class ChainedFusedStep(ChainedStep, FusedStep):
    def __init__(self, model: Any, plan: Plan, proposer: Proposer, texts: Texts, marks: RowMarks | None = None) -> None:
        super().__init__(model, plan, proposer, texts, marks)
        self.packs = False  # every sequence has as many rows

    @contextlib.contextmanager
    def behind(self, cache: SiblingCache, draft: int) -> Iterator[None]:
        carried, self.carried = self.carried, 1
        try:
            with super().behind(cache, draft):
                yield
        finally:
            self.carried = carried

    def rungs_of(self, state: DecodeState, slots: int) -> Rungs:
        return super().rungs_of(state, slots) if self.peeked is None else self.peeked

    def peek(self, state: DecodeState) -> torch.Tensor:
        rungs = self.peeked = super().rungs_of(state, 1)
        watermark = self.choosing.watermark
        if watermark is None or rungs.counts is None:
            return rungs.candidates[:, 0]
        ladder = Ladder(rungs.candidates, rungs.needs, rungs.counts, watermark.rule, watermark.full)
        return self._wanted(state, ladder)

    def gate(self, state: DecodeState) -> tuple[Gate, torch.Tensor]:
        return super().gate(state) if self.picked is None else (Gate(1.0), self.picked.strength)

    def decide(
        self,
        state: DecodeState,
        rungs: Rungs,
        window: Window,
        width: int,
        carried: torch.Tensor | None = None,
    ) -> tuple[StepResult, torch.Tensor, torch.Tensor]:
        """As `FusedStep.decide`; behind a draft that `peek` has chosen, with that token as the only candidate."""
        if self.picked is None:
            return super().decide(state, rungs, window, width, carried)
        assert rungs.counts is not None and self.ring is not None
        choice = self.picked.candidate
        only = rungs.candidates.gather(1, choice[:, None]).expand_as(rungs.candidates).contiguous()
        told = rungs._replace(candidates=only, counts=torch.ones_like(rungs.counts))
        result, chosen, moved = super().decide(state, told, [], width, carried)
        shown = replace(
            result, choice=choice, candidates=rungs.candidates, counts=rungs.counts, capacity=self.picked.capacity
        )
        self.ring.amend(shown, evaluated=self.plan.evaluates)
        return shown, chosen, moved
