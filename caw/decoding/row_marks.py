"""Which watermark each text has: that of the call, or the same under a key that the text brought."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from caw.decoding.row_settings import RowKey
from caw.triton_kernels.ladder_ref import Ladder
from caw.watermarks import Position, Watermark


class RowMarks:
    """The watermarks of a decoder's texts; one object for each key, because what it works out is kept there."""

    def __init__(self, watermark: Watermark | None) -> None:
        self.by_key: dict[RowKey | None, Watermark | None] = {None: watermark}

    def under(self, key: RowKey | None) -> Watermark | None:
        """The watermark under a key, None = its own; TypeError or ValueError for a key that it cannot have."""
        if key not in self.by_key:
            watermark = self.by_key[None]
            if watermark is None:
                raise ValueError("a text with a key of its own needs a watermark, got None; leave the key out")
            self.by_key[key] = watermark.with_key(key)
        return self.by_key[key]


def ladder_of_each(marks: Sequence[Watermark], position: Position, max_strength: float) -> Ladder:
    """The ladder of each row by its own watermark, which differ in nothing but their keys, in plain PyTorch."""
    if len(set(marks)) == 1:
        return marks[0].ladder(position, max_strength)
    groups = rows_by_mark(marks, position.context.device)
    parts = [mark.ladder(position.take(at), max_strength) for mark, at in groups]
    width = max(part.candidates.shape[1] for part in parts)
    candidates, needs, counts = in_row_order(groups, [_columns(part, width) for part in parts])
    return Ladder(candidates, needs, counts, parts[0].rule, parts[0].full)


Groups = list[tuple[Watermark, torch.Tensor]]


def rows_by_mark(marks: Sequence[Watermark], device: torch.device) -> Groups:
    """Each watermark once, with its rows (int64 [R], ascending)."""
    rows: dict[Watermark, list[int]] = {}
    for row, mark in enumerate(marks):
        rows.setdefault(mark, []).append(row)
    return [(mark, torch.tensor(group, device=device)) for mark, group in rows.items()]


def in_row_order(groups: Groups, parts: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """Columns [B, ...] of all rows from those of each group, whose rows stand in the group's order."""
    order = torch.cat([rows for _, rows in groups]).argsort()
    return tuple(torch.cat(columns)[order] for columns in zip(*parts, strict=True))


def _columns(ladder: Ladder, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Candidates, needs and counts of a ladder made `width` columns wide."""
    missing = width - ladder.candidates.shape[1]
    candidates = torch.cat([ladder.candidates, ladder.candidates[:, :1].expand(-1, missing)], dim=1)
    return candidates, torch.nn.functional.pad(ladder.needs, (0, missing), value=torch.inf), ladder.counts
