"""What the last forward computed for positions that are not reached yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from caw.decoding.forward.draft_tree import Chain, DraftTree


class Forwarded(NamedTuple):
    """A token that lies in the cache: its row of logits, and its place."""

    token: int
    row: int
    place: int


@dataclass
class Ahead:
    """Drafted tokens of B sequences that lie in the cache, and the logits behind them.

    logits: [N, V], in the model's dtype. drafts: of each sequence, for each place that is left, the token that its
    draft goes on with and, if there is one, the original beside it. trusts: of each draft's guess. drafted, accepted:
    of each how many there were, and were right.
    """

    logits: torch.Tensor
    drafts: list[list[list[Forwarded]]]
    trusts: Sequence[int]
    drafted: list[int]
    accepted: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls, logits: torch.Tensor, tree: DraftTree, chains: Sequence[Chain], trusts: Sequence[int], follow: list[bool]
    ) -> Ahead:
        """Behind a forward; follow: whether each sequence chose the root of its draft."""
        tokens, places = tree.tokens.tolist(), tree.places.tolist()
        drafts = [
            [
                [Forwarded(tokens[at], at, places[at]) for at in (start + number, other) if at is not None]
                for number, other in enumerate(beside if own else [])
            ]
            for start, beside, own in zip(tree.drafts, tree.beside, follow, strict=True)
        ]
        drafted = [len(chain.tokens) for chain in chains]
        return cls(logits, drafts, trusts, drafted, [0] * len(drafts))

    def waiting(self) -> torch.Tensor:
        """Tell which sequences have a draft left, bool [B]."""
        return torch.tensor([bool(draft) for draft in self.drafts])

    def find(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tell whether tokens int64 [B] were forwarded for the next place, bool [B]; their rows and places int64 [B], 0
        where they were not."""
        found = [self._next(number, token) for number, token in enumerate(tokens.tolist())]
        known = torch.tensor([one is not None for one in found])
        rows, places = (torch.tensor([one[what] if one else 0 for one in found]) for what in (1, 2))
        return known, rows, places

    def advance(self, moved: torch.Tensor, tokens: torch.Tensor, pending: torch.Tensor) -> None:
        """Tokens int64 [B] joined the texts where moved (bool [B]).

        A draft goes on behind the token that it expected, and waits where a chosen one (pending, int64 [B], -1 = none)
        was forwarded; else it ends.
        """
        for number, (own, token, chosen) in enumerate(
            zip(moved.tolist(), tokens.tolist(), pending.tolist(), strict=True)
        ):
            draft = self.drafts[number]
            self.accepted[number] += own
            if own and draft and draft[0][0].token == token:
                del draft[0]
            elif own or chosen < 0 or self._next(number, chosen) is None:
                self.drafts[number] = []

    def _next(self, number: int, token: int) -> Forwarded | None:
        draft = self.drafts[number]
        return next((one for one in (draft[0] if draft else ()) if one.token == token), None)

    def outcomes(self, active: Sequence[bool]) -> list[tuple[int, int, int, int]]:
        """Return (number of the sequence, trust, tokens drafted, tokens accepted) of each draft, at the end.

        What was left where a text ended (it is not active) was not wrong.
        """
        rows = enumerate(zip(self.trusts, self.drafted, self.accepted, active, strict=True))
        return [
            (number, trust, drafted if goes_on else right, right)
            for number, (trust, drafted, right, goes_on) in rows if drafted
        ]  # fmt: skip
