"""A step whose forward carries drafts, and which then continues as far as they were right.

Every token is decided by the same code from the same numbers as in a step of its own. Where the next token (with a look
ahead: the original one) is the next drafted one, its logits are known, and no forward is needed to decide. Where the
decision falls on another token, that one waits (`DecodeState.pending`): it is the only candidate of the next forward.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from caw.decoding.choosing import Choice
from caw.decoding.drafts.proposer import Proposer
from caw.decoding.eager_step import EagerStep, Rows
from caw.decoding.forward.branching import forward_drafted
from caw.decoding.forward.draft_tree import Chain, DraftTree
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.state import DecodeState
from caw.decoding.step import Forwarded
from caw.decoding.texts import Texts
from caw.decoding.trace import StepResult
from caw.ladder import Ladder
from caw.record import Record


class Drafted(NamedTuple):
    """A token that lies in the cache: its row of logits, and its place."""

    token: int
    row: int
    place: int


@dataclass
class Ahead:
    """What the last forward computed for positions that are not reached yet: drafted tokens of B sequences that lie in
    the cache, and the logits behind them.

    logits: [N, V], in the model's dtype. drafts: of each sequence, the tokens that are left of its draft. trusts: of
    each draft's guess. drafted, accepted: of each how many there were, and were right.
    """

    logits: torch.Tensor
    drafts: list[list[Drafted]]
    trusts: Sequence[int]
    drafted: list[int]
    accepted: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls, logits: torch.Tensor, tree: DraftTree, chains: Sequence[Chain], trusts: Sequence[int], follow: list[bool]
    ) -> "Ahead":
        """Behind a forward; follow: whether each sequence chose the root of its draft."""
        tokens, places = tree.tokens.tolist(), tree.places.tolist()
        drafted = [len(chain.tokens) for chain in chains]
        drafts = [
            [Drafted(tokens[at], at, places[at]) for at in range(start, start + (count if chosen else 0))]
            for start, count, chosen in zip(tree.drafts, drafted, follow, strict=True)
        ]
        return cls(logits, drafts, trusts, drafted, [0] * len(drafts))

    def waiting(self) -> torch.Tensor:
        """Tell which sequences have a draft left, bool [B]."""
        return torch.tensor([bool(draft) for draft in self.drafts])

    def find(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tell whether tokens int64 [B] are the next of their drafts, bool [B]; their rows and places int64 [B], 0
        where they are not."""
        matches = [
            draft[0] if draft and draft[0].token == token else None
            for draft, token in zip(self.drafts, tokens.tolist(), strict=True)
        ]
        known = torch.tensor([one is not None for one in matches])
        rows, places = (torch.tensor([one[what] if one else 0 for one in matches]) for what in (1, 2))
        return known, rows, places

    def advance(self, moved: torch.Tensor) -> None:
        """The next tokens of the drafts joined the texts where moved (bool [B]); other drafts end."""
        for number, right in enumerate(moved.tolist()):
            self.accepted[number] += right
            self.drafts[number] = self.drafts[number][1:] if right else []

    def outcomes(self, active: Sequence[bool]) -> list[tuple[int, int, int]]:
        """Return (trust, tokens drafted, tokens accepted) of each draft; what a text's end left over was not wrong."""
        rows = zip(self.trusts, self.drafted, self.accepted, active, strict=True)
        return [(trust, drafted if goes_on else right, right) for trust, drafted, right, goes_on in rows if drafted]


class DraftStep(EagerStep):
    """proposer: which drafts to carry. rows: the sequences of the state's rows."""

    def __init__(self, model: Any, plan: Plan, proposer: Proposer, texts: Texts) -> None:
        super().__init__(model, plan, texts)
        self.proposer, self.beside = proposer, plan.slots - 1
        self.rows: Rows = ()
        self._tree: tuple[DraftTree, list[Chain], list[int]] | None = None
        self._ahead: Ahead | None = None
        # of the rows that go on without a forward: their numbers int64 [M], and of all rows those of logits and places
        self._walking: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self._picked: Choice | None = None  # what they take next, where no look-ahead is needed

    def advance(self, rows: Rows) -> Iterator[tuple[StepResult, Rows]]:
        """Results of one forward, in order, each with the sequences that were in the rows when it started.

        The forward has been made when this returns; what it decides after the first token is decided when asked for.
        """
        current = list(rows)
        self._leave(current)
        self.rows, self._tree, self._ahead = current, None, None
        first = self.decode(self.state, self.cache)
        self.choosing.texts.finish(first.tokens, first.emitted)
        return ((result, current) for result in itertools.chain([first], self.go_on(self.state, self.cache)))

    def close(self) -> None:
        self._leave(())
        super().close()

    def _leave(self, rows: Rows) -> None:
        """Texts that were in the batch and are no more are finished."""
        for sequence in self.rows:
            if sequence is not None and not any(sequence is other for other in rows):
                self.proposer.finished(sequence)
        self.rows = rows

    def go_on(self, state: DecodeState, cache: SiblingCache) -> Iterator[StepResult]:
        """Yield the other tokens that it decides, in order, without the model.

        Whoever reads them may end texts, or change what is asked of the next token, between any two.
        """
        ahead, texts = self._ahead, self.choosing.texts
        # a text that ended may have a draft left: nothing is decided for it
        while ahead is not None and (texts.active & ahead.waiting()).any():
            result = self._walk(state, cache, ahead)
            if result is None:
                break
            yield result
        if ahead is not None:
            for outcome in ahead.outcomes(texts.active.tolist()):
                self.proposer.saw(*outcome)

    def _walk(self, state: DecodeState, cache: SiblingCache, ahead: Ahead) -> StepResult | None:
        """Decide the next token of every text whose draft is right so far; None if there is none."""
        texts = self.choosing.texts
        with _only(texts, state, ahead.waiting()):
            self.choosing.steer()
            ladder = self.ladder(state)
            tokens, picked = ladder.candidates[:, 0], None
            if not self.plan.looks_ahead:
                picked = self.choose(state, ladder)
                tokens = ladder.candidates.gather(1, picked[2][:, None])[:, 0]
            known, rows, places = ahead.find(tokens)
            texts.active &= known
            if not texts.active.any():
                return None
            state.pending.masked_fill_(~texts.active, 0)  # nothing is evaluated for a row that waits
            self.slots, self._walking, self._picked = 1, (texts.active.nonzero()[:, 0], rows, places), picked
            try:
                result = self.complete(state, cache, ladder)
            finally:
                self.slots, self._walking, self._picked = self.plan.slots, None, None
        texts.finish(result.tokens, result.emitted)
        ahead.advance(result.emitted)
        for sequence, moved in zip(self.rows, result.emitted.tolist(), strict=True):
            if moved and sequence is not None and sequence.trace.drafts is not None:
                sequence.trace.drafts.accepted += 1
        return result

    def choose(self, state: DecodeState, ladder: Ladder) -> Choice:
        return super().choose(state, ladder) if self._picked is None else self._picked

    def logits(
        self, state: DecodeState, cache: SiblingCache, candidates: torch.Tensor, counts: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self._walking is not None:
            assert self._ahead is not None
            return self._ahead.logits, self._walking[1]
        numbers = torch.where(self.choosing.texts.active, 1 if counts is None else counts, 0).tolist()
        carried = [row[:number] for row, number in zip(candidates.tolist(), numbers, strict=True)]
        chains, trusts = self._propose(carried)
        if not any(chain.tokens for chain in chains):
            return super().logits(state, cache, candidates, counts)
        tree = DraftTree.of(carried, chains, cache.lengths.tolist())
        self._tree = tree, chains, trusts
        return forward_drafted(self.model, cache, tree), tree.first

    def record(self, logits: torch.Tensor, rows: torch.Tensor | None = None) -> Record:
        """Make records; in a walk only of the few rows that continue."""
        if self._walking is None or rows is None:
            return super().record(logits, rows)
        assert rows.numel() == len(self.rows), "a walk chooses the token that was forwarded"
        records = Record.empty(rows.numel(), rows.device)
        walking = self._walking[0]
        records.write(walking, super().record(logits, rows[walking]))
        return records

    def _propose(self, candidates: list[list[int]]) -> tuple[list[Chain], list[int]]:
        """A draft and its trust for every row."""
        batch, chains, trusts = sum(map(bool, candidates)), list[Chain](), list[int]()
        for sequence, tokens in zip(self.rows, candidates, strict=True):
            chain, trust = Chain(), 0
            if sequence is not None and tokens:
                chain, trust = self.proposer.chain(sequence, tokens, batch)
                if sequence.trace.drafts is not None:
                    sequence.trace.drafts.add(len(tokens) + len(chain.tokens), len(chain.tokens))
            chains.append(chain)
            trusts.append(trust)
        return chains, trusts

    def commit(
        self, state: DecodeState, cache: SiblingCache, forwarded: Forwarded, chosen: torch.Tensor, moved: torch.Tensor
    ) -> None:
        super().commit(state, cache, forwarded, chosen, moved)
        if self._tree is not None and self._walking is None:
            tree, chains, trusts = self._tree
            pairs = zip(chosen.tolist(), moved.tolist(), chains, strict=True)
            follow = [right and choice == chain.root for choice, right, chain in pairs]
            self._ahead = Ahead.of(forwarded.logits, tree, chains, trusts, follow)

    def join(self, cache: SiblingCache, chosen: torch.Tensor, moved: torch.Tensor) -> None:
        if self._walking is not None:
            cache.accept(self._walking[2], moved)
        elif self._tree is not None:
            tree = self._tree[0]
            cache.accept(tree.places[tree.first + chosen], moved)
        else:
            super().join(cache, chosen, moved)


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
