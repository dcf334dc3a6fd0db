"""A step whose forward carries drafts, and which then continues as far as they were right.

Every token is decided by the same code from the same numbers as in a step of its own. Where the next token (with a look
ahead: the original one) is the next drafted one, its logits are known, and no forward is needed to decide. Where the
decision falls on another token, that one waits (`DecodeState.pending`). If it was drafted too, it joins the text at
once, else it is the only candidate of the next forward.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from caw.decoding.choosing import Choice
from caw.decoding.drafts.ahead import Ahead
from caw.decoding.drafts.price import RowPrice
from caw.decoding.drafts.proposer import Proposer
from caw.decoding.drafts.width import saved_by_each
from caw.decoding.eager_step import EagerStep, StepByStep
from caw.decoding.forward.branching import forward_drafted
from caw.decoding.forward.draft_tree import Chain, DraftTree
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.row_tensors import RowMarks
from caw.decoding.sequence import ActiveSequence
from caw.decoding.state import DecodeState
from caw.decoding.texts import Texts
from caw.decoding.trace import StepResult
from caw.ladder import Ladder, Shortlist
from caw.record import Record

Rows = Sequence[ActiveSequence | None]


class DraftStep(EagerStep):
    """proposer: which drafts to carry. price: told what takes how long. rows: the sequences of the state's rows.
    followed: whether other texts wait for a place in the batch."""

    def __init__(
        self,
        model: Any,
        plan: Plan,
        proposer: Proposer,
        price: RowPrice,
        texts: Texts,
        marks: RowMarks | None = None,
    ) -> None:
        super().__init__(model, plan, texts, marks)
        self.proposer, self.price = proposer, price
        self.beside = plan.slots - 1 + (proposer.width.most if plan.looks_ahead else 0)
        # that the next forward's candidates are of, and what strengths of each row are multiplied by, float32 [B]
        self._ladder: tuple[Ladder, torch.Tensor, Shortlist] | None = None
        self.rows: Rows = ()
        self.followed = True
        self._tree: tuple[DraftTree, list[Chain], list[int]] | None = None
        self._ahead: Ahead | None = None
        # of the rows that go on without a forward: their numbers int64 [M], and of all rows those of logits and places
        self._walking: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self._picked: Choice | None = None  # what they take next, where no look-ahead is needed
        self._carried, self._guessed = 0, 0.0  # rows of the last forward, and seconds that guessing took
        self._saves: dict[int, float] = {}  # by row with a text, see `saved_by_each`

    def start(self, state: DecodeState, cache: SiblingCache, rows: Rows) -> StepResult:
        """One forward and the first token that it decides; texts that end rest in the state."""
        self.rows, self._tree, self._ahead, start = rows, None, None, time.thread_time()
        result = self.decode(state, cache)
        self.choosing.texts.finish(result.tokens, result.emitted)
        self.price.saw(self._carried, time.thread_time() - start - self._guessed)
        return result

    def go_on(self, state: DecodeState, cache: SiblingCache) -> Iterator[StepResult]:
        """Yield the other tokens that it decides, in order, without the model.

        Whoever reads them may end texts, or change what is asked of the next token, between any two.
        """
        ahead, texts = self._ahead, self.choosing.texts
        # a text that ended may have a draft left: nothing is decided for it
        while ahead is not None and (waiting := int((texts.active & ahead.waiting()).sum())):
            start = time.thread_time()
            result = self._walk(state, cache, ahead)
            self.price.decided(waiting, time.thread_time() - start)
            if result is None:
                break
            yield result
        if ahead is not None:
            for number, trust, drafted, accepted in ahead.outcomes(texts.active.tolist()):
                self.proposer.saw(trust, drafted, accepted, len(self._saves), self._saves[number])

    def _walk(self, state: DecodeState, cache: SiblingCache, ahead: Ahead) -> StepResult | None:
        """Decide the next token of every text whose draft is right so far; None if there is none."""
        texts = self.choosing.texts
        with _only(texts, state, ahead.waiting()):
            self.choosing.steer()
            ladder = self.ladder(state)
            tokens, picked = ladder.candidates[:, 0], None
            if self.plan.looks_ahead:
                tokens = torch.where(state.pending >= 0, state.pending, tokens)
            else:
                picked = self.choose(state, ladder)
                tokens = ladder.candidates.gather(1, picked.candidate[:, None])[:, 0]
            known, rows, places = ahead.find(tokens)
            texts.active &= known
            if not texts.active.any():
                return None
            step = self.look_ahead if self.plan.looks_ahead else self.choose_first
            state.pending.masked_fill_(~texts.active, 0)  # nothing is evaluated for a row that waits
            self.slots, self._walking, self._picked = 1, (texts.active.nonzero()[:, 0], rows, places), picked
            try:
                result = step(state, cache, ladder)
            finally:
                self.slots, self._walking, self._picked = self.plan.slots, None, None
        texts.finish(result.tokens, result.emitted)
        ahead.advance(result.emitted, tokens, state.pending)
        for sequence, moved in zip(self.rows, result.emitted.tolist(), strict=True):
            if moved and sequence is not None and sequence.trace.drafts is not None:
                sequence.trace.drafts.accepted += 1
        return result

    def choose(self, state: DecodeState, ladder: Ladder) -> Choice:
        return super().choose(state, ladder) if self._picked is None else self._picked

    def shortlist(self, ladder: Ladder, counts: torch.Tensor) -> Shortlist:
        found = super().shortlist(ladder, counts)
        self._ladder = ladder, self.choosing.texts.factors, found
        return found

    def forward(
        self, state: DecodeState, cache: SiblingCache, candidates: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._walking is not None:
            assert self._ahead is not None
            return self._ahead.logits, self._walking[1]
        numbers = torch.where(self.choosing.texts.active, counts, 0).tolist()
        own = [row[:number] for row, number in zip(candidates.tolist(), numbers, strict=True)]
        start = time.thread_time()
        chains, trusts = self._propose(own)
        self._guessed = time.thread_time() - start
        if not any(chain.tokens for chain in chains):
            logits, first = super().forward(state, cache, candidates, counts)
        else:
            tree = DraftTree.of(own, chains, cache.lengths.tolist())
            self._tree = tree, chains, trusts
            logits, first = forward_drafted(self.model, cache, tree), tree.first
        self._carried = logits.shape[0]
        return logits, first

    def record(self, logits: torch.Tensor, rows: torch.Tensor | None = None) -> Record:
        """Make records; in a walk only of the few rows that continue."""
        if self._walking is None or rows is None:
            return super().record(logits, rows)
        assert rows.numel() == len(self.rows), "a walk chooses the token that was forwarded"
        found = Record.empty(rows.numel(), rows.device)
        walking = self._walking[0]
        found.write(walking, super().record(logits, rows[walking]))
        return found

    def _propose(self, candidates: list[list[int]]) -> tuple[list[Chain], list[int]]:
        """A draft and its trust for every row."""
        carried = [n for n, (sequence, own) in enumerate(zip(self.rows, candidates, strict=True)) if sequence and own]
        texts = [sequence for n in carried if (sequence := self.rows[n]) is not None]
        saves = saved_by_each([sequence.remaining for sequence in texts], followed=self.followed)
        self._saves = dict(zip(carried, saves, strict=True))
        found: list[tuple[Chain, int]] = [(Chain(), 0)] * len(candidates)
        for n, sequence, share in zip(carried, texts, saves, strict=True):
            choose = partial(self._chosen, n) if self._ladder is not None else None
            found[n] = self.proposer.chain(sequence, candidates[n], len(texts), share, choose)
        for sequence, own, (chain, _) in zip(self.rows, candidates, found, strict=True):
            if sequence is not None and own and sequence.trace.drafts is not None:
                sequence.trace.drafts.add(len(own) + chain.rows, len(chain.tokens))
        return [chain for chain, _ in found], [trust for _, trust in found]

    def _chosen(self, number: int, strength: float) -> int:
        """Return the candidate, as the forward carries them, that a strength would choose for a row, by its own key and
        factor."""
        assert self._ladder is not None
        ladder, factors, found = self._ladder
        return int(found.place_of(self.choosing.select(ladder, factors * strength))[number])

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
        super().commit(state, cache, logits, first, following, chosen, moved)
        if self._tree is not None and self._walking is None:
            tree, chains, trusts = self._tree
            pairs = zip(chosen.tolist(), moved.tolist(), chains, strict=True)
            follow = [own and choice == chain.root for choice, own, chain in pairs]
            self._ahead = Ahead.of(logits, tree, chains, trusts, follow)

    def join(self, cache: SiblingCache, chosen: torch.Tensor, moved: torch.Tensor) -> None:
        if self._walking is not None:
            cache.accept(self._walking[2], moved)
        elif self._tree is not None:
            tree = self._tree[0]
            cache.accept(tree.places[tree.first + chosen], moved)
        else:
            super().join(cache, chosen, moved)

    def caller(self, state: DecodeState, cache: SiblingCache, followed: Callable[[], bool]) -> StepByStep:
        return DraftByDraft(self, state, cache, followed)


@contextlib.contextmanager
def _only(texts: Texts, state: DecodeState, rows: torch.Tensor) -> Iterator[None]:
    """Make only these rows (bool [B]) active inside the block; other rows keep their pending tokens."""
    # a step writes these for all rows; a single row has no others
    names = ("pending", "pending_strength", "pending_capacity") if state.batch > 1 else ()
    before, active = [getattr(state, name).clone() for name in names], texts.active
    texts.active = active & rows
    try:
        yield
    finally:
        for name, old in zip(names, before, strict=True):
            tensor = getattr(state, name)
            tensor.copy_(torch.where(texts.active, tensor, old))
        texts.active = active


class DraftByDraft(StepByStep):
    """Calls the step; what a forward decides is read token by token."""

    def __init__(self, step: DraftStep, state: DecodeState, cache: SiblingCache, followed: Callable[[], bool]) -> None:
        super().__init__(step, state, cache)
        self.followed = followed
        self._before: Rows = ()

    def advance(self, rows: Rows) -> Iterator[tuple[StepResult, Rows]]:
        """Results of one forward, in order, each with the sequences that were in the rows when it started.

        The forward has been made when this returns; what it decides after the first token is decided when asked for.
        """
        assert isinstance(self.step, DraftStep)
        kept = list(rows)
        self._leave(kept)
        self.step.followed = self.followed()
        first = self.step.start(self.state, self.cache, kept)
        return ((result, kept) for result in itertools.chain([first], self.step.go_on(self.state, self.cache)))

    def close(self) -> None:
        self._leave([])

    def _leave(self, rows: Rows) -> None:
        """Texts that were in the batch and are no more are finished."""
        assert isinstance(self.step, DraftStep)
        for sequence in self._before:
            if sequence is not None and not any(sequence is other for other in rows):
                self.step.proposer.finished(sequence)
        self._before = rows
