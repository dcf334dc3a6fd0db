"""Settings of each text of a batch as tensors that a step reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from caw.decoding.row_settings import RowSettings
from caw.decoding.sampling import noise_key
from caw.record import Rows
from caw.settings import Drawn
from caw.watermarks import Watermark

NO_TOKEN = -1


@dataclass
class RowTensors(Rows):
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
        shapes = {name: (batch, ends) if name == "ends" else (batch,) for name in EMPTY}
        tensors = {
            name: torch.full(shapes[name], value, dtype=dtype, device=device) for name, (dtype, value) in EMPTY.items()
        }
        return cls(**tensors, marks=[None] * batch)

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
        numbers = [_numbers(*one, self.ends.shape[1]) for one in zip(settings, ends, marks, strict=True)]
        for name, (dtype, empty) in EMPTY.items():
            tensor: torch.Tensor = getattr(self, name)
            tensor[rows] = torch.tensor([row.get(name, empty) for row in numbers], dtype=dtype, device=tensor.device)

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


# of a row without a text, and of one that does not sample: what changes nothing
EMPTY: dict[str, tuple[torch.dtype, Any]] = {
    "sampled": (torch.bool, False), "races": (torch.bool, False), "noise_keys": (torch.int64, 0),
    "temperatures": (torch.float32, 1.0), "top_ks": (torch.int64, 0), "tails": (torch.float32, -1.0),
    "floors": (torch.float32, 0.0), "minima": (torch.int64, 0), "ends": (torch.int64, NO_TOKEN),
    "factors": (torch.float32, 1.0), "margins": (torch.float64, 0.0), "keys": (torch.int64, 0),
    "beginnings": (torch.float64, 0.0),
}  # fmt: skip


def _numbers(row: RowSettings, ends: Sequence[int], mark: Watermark | None, width: int) -> dict[str, Any]:
    """Return the numbers of a text, without those of EMPTY. width: M."""
    native = None if mark is None else mark.native
    numbers = {
        "races": mark is not None and mark.races_whole,
        "minima": row.min_new_tokens,
        "ends": [*ends, *[ends[0] if ends else NO_TOKEN] * (width - len(ends))],
        "factors": row.strength_factor,
        "margins": row.margin,
        "keys": 0 if native is None else native.signed_key,
    }
    if not row.do_sample:
        return numbers
    cuts = dict(zip(("temperatures", "top_ks", "tails", "floors"), Drawn.of(row).cuts, strict=True))
    return (
        numbers
        | cuts
        | {
            "sampled": True,
            "noise_keys": noise_key(row.known_seed),
            "beginnings": mark.beginning if mark and row.begins else 0.0,
        }
    )
