"""The watermark of each text of a batch, and what each says where they differ."""

import dataclasses
import threading
from collections.abc import Sequence

import torch

from caw.decoding.row_settings import RowKey
from caw.ladder import Ladder
from caw.policies.mark import Mark
from caw.watermarks import Position, Watermark

MOST_KEYS = 64  # that a `RowMarks` remembers beside the watermark's own


def mark_that_races(main: Mark, other: Mark | None) -> Mark | None:
    """Return the mark of the two (`other` may be None) that races at full strength; ValueError if not always."""
    if other is None:
        return main if main.may_race else None
    if not other.always_races or main.may_race:
        raise ValueError(
            "a batch of two marks has a race at full strength, caw.EXP(strength='scale') under FixedStrength(1.0), "
            f"beside one that does not race, got {other.watermark!r} under {type(other.policy).__name__}; plan two"
        )
    return other


class RowMarks:
    """Watermarks of a decoder's texts: one object per key, because it caches what it computes.

    Holds the `MOST_KEYS` keys used last (LRU). May be used from several threads.

    watermark: of texts that bring none. race: another that a text may bring; None = there is none.
    """

    def __init__(self, watermark: Watermark | None, race: Watermark | None = None) -> None:
        self.by_key: dict[RowKey | None, Watermark | None] = {None: watermark}
        self._planned = [mark for mark in (watermark, race) if mark is not None]
        self._lock = threading.Lock()

    @property
    def window(self) -> int:
        """W of the watermark that reads most; 0 without one."""
        return max((mark.window for mark in self._planned), default=0)

    def under(self, key: RowKey | None) -> Watermark | None:
        """Return the watermark under a key, None = its own; TypeError or ValueError for a key that it cannot have."""
        main = self.by_key[None]
        if key is None:
            return main
        if main is None:
            raise ValueError("a text with a key of its own needs a watermark, got None; leave the key out")
        with self._lock:
            self.by_key[key] = mark = self.by_key.pop(key, None) or main.with_key(key)
            if len(self.by_key) > 1 + MOST_KEYS:
                del self.by_key[next(old for old in self.by_key if old is not None)]
        return mark

    def of(self, mark: Mark | None, key: RowKey | None) -> Watermark | None:
        """Return a text's watermark: its own, or this one under a key. ValueError if more than the key is other."""
        if mark is None:
            return self.under(key)
        mine = mark.watermark
        if mine is None or not any(_same_but_for_key(mine, planned) for planned in self._planned):
            raise ValueError(f"a text must be marked as its decoder was planned for, got {mine!r}; plan for it")
        return mine


def _same_but_for_key(mark: Watermark, planned: Watermark) -> bool:
    """Whether a mark is the planned one, or one of its sub-keys alone, under whatever key."""
    plain, number = planned.with_key(mark.key), getattr(mark, "subkey", 0)
    return mark == plain or (number < plain.family and mark == plain.under_subkey(number))


def placed_on(device: torch.device, mark: Watermark) -> Watermark:
    """Return a watermark for fixed ladders; the plan captures no other."""
    placed = mark.placed(device)
    assert placed is not None
    return placed


def within(mark: Watermark, context: torch.Tensor) -> torch.Tensor:
    """Return the part of contexts int64 [B, W] that a watermark reads."""
    return context if context.shape[1] == mark.window else context[:, context.shape[1] - mark.window :].contiguous()


def seen_by(mark: Watermark, position: Position) -> Position:
    """Return a position with the part of its contexts that a watermark reads."""
    context = within(mark, position.context)
    return position if context is position.context else dataclasses.replace(position, context=context)


def of_kind(mark: Watermark, marks: Sequence[Watermark | None]) -> list[Watermark]:
    """Return the watermark of each row; `mark` for rows without one, and beside it for those of another family."""
    return [one if isinstance(one, type(mark)) else mark for one in marks]


def winner_of_each(marks: Sequence[Watermark], position: Position, *, native: bool) -> torch.Tensor:
    """Find the winner of the race over each whole row (`Watermark.whole_winner`), int64 [B], by its own watermark."""
    if len(set(marks)) == 1:
        return marks[0].whole_winner(position, native=native)
    groups = rows_by_mark(marks, position.context.device)
    [winner] = in_row_order(groups, [[mark.whole_winner(position.take(at), native=native)] for mark, at in groups])
    return winner


def ladder_of_each(marks: Sequence[Watermark], position: Position, max_strength: float) -> Ladder:
    """Build the ladder of each row with its own watermark, in plain PyTorch; they differ only in their keys."""
    if len(set(marks)) == 1:
        return marks[0].ladder(position, max_strength)
    groups = rows_by_mark(marks, position.context.device)
    parts = [mark.ladder(position.take(at), max_strength) for mark, at in groups]
    width = max(part.candidates.shape[1] for part in parts)
    candidates, needs, counts = in_row_order(groups, [_columns(part, width) for part in parts])
    return Ladder(candidates, needs, counts, parts[0].rule, parts[0].full)


Groups = list[tuple[Watermark, torch.Tensor]]


def rows_by_mark(marks: Sequence[Watermark], device: torch.device) -> Groups:
    """Return each watermark once, with its rows (int64 [R], ascending)."""
    rows: dict[Watermark, list[int]] = {}
    for row, mark in enumerate(marks):
        rows.setdefault(mark, []).append(row)
    return [(mark, torch.tensor(group, device=device)) for mark, group in rows.items()]


def in_row_order(groups: Groups, parts: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """Merge the columns [B, ...] of groups back into the order of rows."""
    order = torch.cat([rows for _, rows in groups]).argsort()
    return tuple(torch.cat(columns)[order] for columns in zip(*parts, strict=True))


def _columns(ladder: Ladder, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return candidates, needs and counts of a ladder, padded to `width` columns."""
    missing = width - ladder.candidates.shape[1]
    candidates = torch.cat([ladder.candidates, ladder.candidates[:, :1].expand(-1, missing)], dim=1)
    return candidates, torch.nn.functional.pad(ladder.needs, (0, missing), value=torch.inf), ladder.counts
