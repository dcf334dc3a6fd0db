"""Settings of each text of a batch as tensors that a step reads, and the watermark of each."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from caw.decoding.row_settings import RowKey, RowSettings
from caw.decoding.sampling import noise_key
from caw.ladder import Ladder
from caw.policies.mark import Mark
from caw.record import kept_rows
from caw.settings import Drawn
from caw.watermarks import Position, Watermark

NO_TOKEN = -1
MOST_KEYS = 64  # that a `RowMarks` remembers beside the watermark's own


@dataclass
class RowTensors:
    """Settings of B rows, written in place.

    sampled: bool [B]. races: bool [B], rows whose watermark races at full strength where its policy lets it.
    noise_keys: int64 [B], of the sampling noise.
    temperatures: float32 [B]. top_ks: int64 [B], 0 = all tokens. tails: float32 [B], 1 - top_p; -1 = nothing is cut.
    floors: float32 [B], of min-p, 0 = nothing is cut. minima: int64 [B], new tokens before an end token may come.
    ends: int64 [B, M], tokens that end the text; a row with fewer repeats its first one, a row with none has -1.
    factors: float32 [B], factors of strengths. margins: float64 [B], added to the z that a target needs.
    keys: int64 [B], the 64 bits of the native key; 0 where the format has none.
    beginnings: float64 [B], nats after which the key begins to draw; 0 = at the first token.
    marks: B watermarks, on the host: a row's key where only PyTorch code serves the format; None without a text.
    """

    sampled: torch.Tensor
    races: torch.Tensor
    noise_keys: torch.Tensor
    temperatures: torch.Tensor
    top_ks: torch.Tensor
    tails: torch.Tensor
    floors: torch.Tensor
    minima: torch.Tensor
    ends: torch.Tensor
    factors: torch.Tensor
    margins: torch.Tensor
    keys: torch.Tensor
    beginnings: torch.Tensor
    marks: list[Watermark | None]

    @classmethod
    def empty(cls, batch: int, ends: int, device: torch.device) -> RowTensors:
        """Make rows without a text; ends: M."""

        def whole() -> torch.Tensor:
            return torch.zeros(batch, dtype=torch.int64, device=device)

        return cls(
            sampled=torch.zeros(batch, dtype=torch.bool, device=device),
            races=torch.zeros(batch, dtype=torch.bool, device=device),
            noise_keys=whole(),
            temperatures=torch.ones(batch, device=device),
            top_ks=whole(),
            tails=torch.full((batch,), -1.0, device=device),
            floors=torch.zeros(batch, device=device),
            minima=whole(),
            ends=torch.full((batch, ends), NO_TOKEN, dtype=torch.int64, device=device),
            factors=torch.ones(batch, device=device),
            margins=torch.zeros(batch, dtype=torch.float64, device=device),
            keys=whole(),
            beginnings=torch.zeros(batch, dtype=torch.float64, device=device),
            marks=[None] * batch,
        )

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [getattr(self, name) for name in NAMES]

    def start(
        self,
        rows: torch.Tensor,
        settings: Sequence[RowSettings],
        ends: Sequence[Sequence[int]],
        marks: Sequence[Watermark | None],
    ) -> None:
        """Begin new texts in `rows` (int64 [R]); ends: token ids that end each, at most M. marks: their watermarks."""
        for row, mark in zip(rows.tolist(), marks, strict=True):
            self.marks[row] = mark
        natives = [None if mark is None else mark.native for mark in marks]
        sampled = [row.do_sample for row in settings]
        width = self.ends.shape[1]

        def of_sampled(values: list[Any], otherwise: Any) -> list[Any]:
            """Rows that do not sample have what changes nothing."""
            return [value if samples else otherwise for value, samples in zip(values, sampled, strict=True)]

        pairs = list(zip(marks, settings, strict=True))
        cuts = of_sampled([Drawn.of(row).cuts for row in settings], Drawn(1.0).cuts)
        columns: list[list[Any]] = [
            sampled,
            [mark is not None and mark.races_whole for mark in marks],
            of_sampled([noise_key(row.known_seed) for row in settings], 0),
            *([row[place] for row in cuts] for place in range(4)),
            [row.min_new_tokens for row in settings],
            [[*own, *[own[0] if own else NO_TOKEN] * (width - len(own))] for own in ends],
            [row.strength_factor for row in settings],
            [row.margin for row in settings],
            [0 if native is None else native.signed_key for native in natives],
            of_sampled([mark.beginning if mark and row.begins else 0.0 for mark, row in pairs], 0.0),
        ]
        for tensor, column in zip(self.tensors, columns, strict=True):
            tensor[rows] = torch.tensor(column, dtype=tensor.dtype, device=tensor.device)

    def ended(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tell which of tokens int64 [B, N] end their row's text, bool [B, N]."""
        return (tokens[:, :, None] == self.ends[:, None]).any(dim=2)

    def without_ends(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return logits [B, V] with -inf for the end tokens of `rows` (bool [B])."""
        places = self.ends.clamp_min(0)
        masked = rows[:, None] & (self.ends >= 0)
        # equal places of a row get equal values, so their order does not matter
        return logits.scatter(1, places, torch.where(masked, -torch.inf, logits.gather(1, places)))

    def widen(self, ends: int) -> None:
        """Make room for M = `ends` end tokens of each row, in new memory; never shrinks."""
        missing = ends - self.ends.shape[1]
        if missing > 0:
            first = self.ends[:, :1] if self.ends.shape[1] else self.ends.new_full((self.ends.shape[0], 1), NO_TOKEN)
            self.ends = torch.cat([self.ends, first.expand(-1, missing)], dim=1)

    def take(self, rows: torch.Tensor | slice) -> RowTensors:
        """A copy of these rows (int64 [R]); of a slice, the same memory."""
        marks = self.marks[rows] if isinstance(rows, slice) else [self.marks[row] for row in rows.tolist()]
        tensors = (tensor[rows] for tensor in self.tensors)
        return RowTensors(**dict(zip(NAMES, tensors, strict=True)), marks=marks)

    def keep(self, rows: torch.Tensor) -> None:
        """Drop every row but these (int64 [B'], ascending), which move to the front of the same memory."""
        for field in dataclasses.fields(self):
            kept = getattr(self, field.name)
            chosen = [kept[row] for row in rows.tolist()] if field.name == "marks" else kept_rows(kept, rows)
            setattr(self, field.name, chosen)


NAMES = [field.name for field in dataclasses.fields(RowTensors) if field.name != "marks"]


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
        own = self.by_key[None]
        if key is None:
            return own
        if own is None:
            raise ValueError("a text with a key of its own needs a watermark, got None; leave the key out")
        with self._lock:
            self.by_key[key] = mark = self.by_key.pop(key, None) or own.with_key(key)
            if len(self.by_key) > 1 + MOST_KEYS:
                del self.by_key[next(old for old in self.by_key if old is not None)]
        return mark

    def of(self, mark: Mark | None, key: RowKey | None) -> Watermark | None:
        """Return the watermark of a text: the one that it brings, or else this one under a key.

        Raises ValueError for one that differs from those planned for in more than its key.
        """
        if mark is None:
            return self.under(key)
        found = mark.watermark
        if found is None or all(found.with_key(own.key) != own for own in self._planned):
            raise ValueError(f"a text must be marked as its decoder was planned for, got {found!r}; plan for that mark")
        return found


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
