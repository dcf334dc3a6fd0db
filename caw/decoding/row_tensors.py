"""The settings in which the texts of a batch differ, as tensors that a step reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from caw.decoding.row_settings import RowSettings
from caw.decoding.sampling import noise_key
from caw.record import kept_rows
from caw.watermarks import Watermark

NO_TOKEN = -1


@dataclass
class RowTensors:
    """Settings of B rows, written in place.

    sampled: bool [B]. noise_keys: int64 [B], of the sampling noise.
    temperatures: float32 [B]. top_ks: int64 [B], 0 = all tokens. tails: float32 [B], 1 - top_p; -1 = nothing is cut.
    minima: int64 [B], new tokens before an end token may come.
    ends: int64 [B, M], tokens that end the text; a row with fewer repeats its first one, a row with none has -1.
    factors: float32 [B], what strengths are multiplied by. margins: float64 [B], added to the z that a target takes.
    keys: int64 [B], the 64 bits of the native key; 0 where the format has none.
    marks: B watermarks, on the host: a row's key where only PyTorch code serves the format; None without a text.
    """

    sampled: torch.Tensor
    noise_keys: torch.Tensor
    temperatures: torch.Tensor
    top_ks: torch.Tensor
    tails: torch.Tensor
    minima: torch.Tensor
    ends: torch.Tensor
    factors: torch.Tensor
    margins: torch.Tensor
    keys: torch.Tensor
    marks: list[Watermark | None]

    @classmethod
    def empty(cls, batch: int, ends: int, device: torch.device) -> RowTensors:
        """Rows without a text; ends: M."""

        def whole() -> torch.Tensor:
            return torch.zeros(batch, dtype=torch.int64, device=device)

        return cls(
            sampled=torch.zeros(batch, dtype=torch.bool, device=device),
            noise_keys=whole(),
            temperatures=torch.ones(batch, device=device),
            top_ks=whole(),
            tails=torch.full((batch,), -1.0, device=device),
            minima=whole(),
            ends=torch.full((batch, ends), NO_TOKEN, dtype=torch.int64, device=device),
            factors=torch.ones(batch, device=device),
            margins=torch.zeros(batch, dtype=torch.float64, device=device),
            keys=whole(),
            marks=[None] * batch,
        )

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "marks"]

    def start(
        self,
        rows: torch.Tensor,
        settings: Sequence[RowSettings],
        ends: Sequence[Sequence[int]],
        marks: Sequence[Watermark | None],
    ) -> None:
        """New texts in `rows` (int64 [R]); ends: the token ids that end each, at most M. marks: their watermarks."""
        for row, mark in zip(rows.tolist(), marks, strict=True):
            self.marks[row] = mark
        natives = [None if mark is None else mark.native for mark in marks]
        sampled = [row.do_sample for row in settings]
        width = self.ends.shape[1]

        def of_sampled(values: list[Any], otherwise: Any) -> list[Any]:
            """Rows that do not sample have what changes nothing."""
            return [value if samples else otherwise for value, samples in zip(values, sampled, strict=True)]

        columns: list[list[Any]] = [
            sampled,
            of_sampled([noise_key(row.seed) for row in settings], 0),
            of_sampled([row.temperature for row in settings], 1.0),
            of_sampled([row.top_k for row in settings], 0),
            of_sampled([1 - row.top_p if row.top_p < 1 else -1.0 for row in settings], -1.0),
            [row.min_new_tokens for row in settings],
            [[*own, *[own[0] if own else NO_TOKEN] * (width - len(own))] for own in ends],
            [row.strength_factor for row in settings],
            [row.margin for row in settings],
            [0 if native is None else native.signed_key for native in natives],
        ]
        for tensor, column in zip(self.tensors, columns, strict=True):
            tensor[rows] = torch.tensor(column, dtype=tensor.dtype, device=tensor.device)

    def ended(self, tokens: torch.Tensor) -> torch.Tensor:
        """Which of tokens int64 [B, N] end their row's text, bool [B, N]."""
        return (tokens[:, :, None] == self.ends[:, None]).any(dim=2)

    def without_ends(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] with -inf for the end tokens of `rows` (bool [B])."""
        places = self.ends.clamp_min(0)
        masked = rows[:, None] & (self.ends >= 0)
        # equal places of a row get equal values, so their order does not matter
        return logits.scatter(1, places, torch.where(masked, -torch.inf, logits.gather(1, places)))

    def keep(self, rows: torch.Tensor) -> None:
        """Drop every row but these (int64 [B'], ascending), which move to the front of the same memory."""
        for field in dataclasses.fields(self):
            kept = getattr(self, field.name)
            chosen = [kept[row] for row in rows.tolist()] if field.name == "marks" else kept_rows(kept, rows)
            setattr(self, field.name, chosen)
