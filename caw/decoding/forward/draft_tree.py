"""Rows of one forward with drafts: the candidates of each sequence, and a chain behind one of them.

    position    i            i + 1       i + 2
                a_0
                a_1 ------>  draft 1 ->  draft 2        the chain follows one candidate, its root

The root and its chain are written to the places of the cache where they belong, so that each draft reads its ancestors
as it would read committed tokens: the same spans, lanes and rounding. The other candidates stand beside: they read the
committed tokens alone, and their keys and values are kept behind the chain, where nobody reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Chain:
    """Tokens drafted behind a candidate; root: its number among the candidates."""

    root: int = 0
    tokens: Sequence[int] = ()


@dataclass(frozen=True)
class DraftTree:
    """N rows, sequence by sequence: its candidates in their order, then its chain.

    tokens, rows, positions, places: int64 [N], see `Layout`. first: int64 [B], the row of each sequence's first
    candidate; drafts: B numbers, the row of its first draft.
    """

    tokens: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    places: torch.Tensor
    first: torch.Tensor
    drafts: list[int]

    @classmethod
    def of(cls, candidates: Sequence[Sequence[int]], chains: Sequence[Chain], lengths: Sequence[int]) -> "DraftTree":
        """Make the tree of B sequences of lengths[b] committed tokens each; one without candidates has no row."""
        columns: tuple[list[int], ...] = ([], [], [], [])
        first, drafts = [], []
        for row, (tokens_here, chain, length) in enumerate(zip(candidates, chains, lengths, strict=True)):
            beside = length + 1 + len(chain.tokens)  # the next place for a candidate that is not the root
            first.append(len(columns[0]))
            for number, token in enumerate(tokens_here):
                place = length if number == chain.root else beside
                beside += number != chain.root
                _append(columns, token, row, length, place)
            drafts.append(len(columns[0]))
            for behind, token in enumerate(chain.tokens, 1):
                _append(columns, token, row, length + behind, length + behind)
        tokens, rows, positions, places = (torch.tensor(column, dtype=torch.int64) for column in columns)
        start = torch.tensor(first, dtype=torch.int64).clamp_max(max(len(columns[0]) - 1, 0))
        return cls(tokens, rows, positions, places, start, drafts)


def _append(columns: tuple[list[int], ...], *values: int) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)
