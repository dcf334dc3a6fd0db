"""What the last forward knows of positions that are not reached yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from caw.decoding.forward.draft_tree import Chain, DraftTree


@dataclass
class Ahead:
    """Drafted tokens of B sequences that lie in the cache, and the logits behind them.

    logits: [N, V], in the model's dtype. drafts: of each sequence the tokens that are left. rows: of each the row of
    logits of its first one. trusts: of each draft's guess. drafted, accepted: of each how many there were, and were
    right.
    """

    logits: torch.Tensor
    drafts: list[list[int]]
    rows: list[int]
    trusts: Sequence[int]
    drafted: list[int]
    accepted: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls, logits: torch.Tensor, tree: DraftTree, chains: Sequence[Chain], trusts: Sequence[int], follow: list[bool]
    ) -> Ahead:
        """Behind a forward; follow: whether each sequence chose the root of its draft."""
        drafts = [list(chain.tokens) if own else [] for chain, own in zip(chains, follow, strict=True)]
        drafted = [len(chain.tokens) for chain in chains]
        return cls(logits, drafts, list(tree.drafts), trusts, drafted, [0] * len(drafts))

    def waiting(self) -> torch.Tensor:
        """Which sequences have a draft left, bool [B]."""
        return torch.tensor([bool(draft) for draft in self.drafts])

    def right(self, tokens: torch.Tensor) -> torch.Tensor:
        """Whether tokens int64 [B] are the next ones drafted, bool [B]."""
        pairs = zip(self.drafts, tokens.tolist(), strict=True)
        return torch.tensor([bool(draft) and draft[0] == token for draft, token in pairs])

    @property
    def first(self) -> torch.Tensor:
        """The row of logits behind the next drafted token of each sequence, int64 [B]; any where there is none."""
        return torch.tensor([row if draft else 0 for row, draft in zip(self.rows, self.drafts, strict=True)])

    def advance(self, moved: torch.Tensor) -> None:
        """The next drafted token of each sequence joined its text where moved (bool [B]); elsewhere the draft ends."""
        for number, own in enumerate(moved.tolist()):
            if own:
                del self.drafts[number][0]
                self.rows[number] += 1
                self.accepted[number] += 1
            else:
                self.drafts[number] = []

    def outcomes(self, active: Sequence[bool]) -> list[tuple[int, int, int]]:
        """(trust, tokens drafted, how many of them were right) of each draft, at the end.

        What was left where a text ended (it is not active) was not wrong.
        """
        rows = zip(self.trusts, self.drafted, self.accepted, active, strict=True)
        return [(trust, drafted if goes_on else right, right) for trust, drafted, right, goes_on in rows if drafted]
