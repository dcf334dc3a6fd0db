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

    logits: [N, V], in the model's dtype. drafts: of each sequence, the tokens that are left of its draft. trusts: of
    each draft's guess. drafted, accepted: of each how many there were, and were right.
    """

    logits: torch.Tensor
    drafts: list[list[Forwarded]]
    trusts: Sequence[int]
    drafted: list[int]
    accepted: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls, logits: torch.Tensor, tree: DraftTree, chains: Sequence[Chain], trusts: Sequence[int], follow: list[bool]
    ) -> Ahead:
        """Behind a forward; follow: whether each sequence chose the root of its draft."""
        tokens, places = tree.tokens.tolist(), tree.places.tolist()
        drafted = [len(chain.tokens) for chain in chains]
        drafts = [
            [Forwarded(tokens[at], at, places[at]) for at in range(start, start + (count if chosen else 0))]
            for start, count, chosen in zip(tree.drafts, drafted, follow, strict=True)
        ]
        return cls(logits, drafts, trusts, drafted, [0] * len(drafts))

    def waiting(self) -> torch.Tensor:
        """Tell which sequences have a draft left, bool [B]."""
        return torch.tensor([bool(draft) for draft in self.drafts])

    def find(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tell whether tokens int64 [B] are the next of their drafts, bool [B]; their rows and places int64 [B], 0
        where they are not."""
        found = [
            draft[0] if draft and draft[0].token == token else None
            for draft, token in zip(self.drafts, tokens.tolist(), strict=True)
        ]
        known = torch.tensor([one is not None for one in found])
        rows, places = (torch.tensor([one[what] if one else 0 for one in found]) for what in (1, 2))
        return known, rows, places

    def advance(self, moved: torch.Tensor) -> None:
        """The next tokens of the drafts joined the texts where moved (bool [B]); other drafts end."""
        for number, right in enumerate(moved.tolist()):
            self.accepted[number] += right
            self.drafts[number] = self.drafts[number][1:] if right else []

    def outcomes(self, active: Sequence[bool]) -> list[tuple[int, int, int]]:
        """Return (trust, tokens drafted, tokens accepted) of each draft, at the end.

        What was left where a text ended (it is not active) was not wrong.
        """
        rows = zip(self.trusts, self.drafted, self.accepted, active, strict=True)
        return [(trust, drafted if goes_on else right, right) for trust, drafted, right, goes_on in rows if drafted]
