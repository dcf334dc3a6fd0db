"""Cache of a model whose layers lie on several devices (`device_map`): one cache per layer, where the layer is.

Such a model decodes by steps that read back: no graph spans devices. Lengths live on the main device, where ids go in
and logits come out; each layer has a copy of them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache

from caw import ops
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.record import kept_rows
from caw.settings import PrefillAttention


class SpreadCache(Cache):
    """`SiblingCache` over several devices; arguments as there, `device` is the main one."""

    def __init__(
        self,
        num_layers: int,
        batch: int,
        capacity: int,
        slots: int,
        device: torch.device,
        kernels: ops.Ops | None = None,
        prefill_attention: PrefillAttention = "sdpa",
    ) -> None:
        self.batch, self.capacity, self.slots = batch, capacity, slots
        self.kernels, self.prefill_attention = kernels or ops.dispatched(), prefill_attention
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=device)
        self.parts = [
            SiblingCache(1, batch, capacity, slots, device, kernels, prefill_attention) for _ in range(num_layers)
        ]
        self.shared: list[torch.Tensor] | None = None
        super().__init__(layers=[part.layers[0] for part in self.parts])

    @property
    def packs(self) -> bool:
        return False  # its layers may lie on devices whose attention takes the same number for each sequence

    def begin_prefill(self, rows: torch.Tensor, start: int = 0) -> None:
        self._prefill_rows = rows
        for part in self.parts:
            part.begin_prefill(rows.to(part.lengths.device), start)

    def end_prefill(self, lengths: torch.Tensor) -> None:
        for part in self.parts:
            part.end_prefill(lengths.to(part.lengths.device))
        self.lengths[self._prefill_rows] = lengths

    def copy_out(self, row: int, start: int, end: int) -> list[torch.Tensor]:
        return [copy for part in self.parts for copy in part.copy_out(row, start, end)]

    def copy_in(self, row: int, start: int, kept: Sequence[torch.Tensor]) -> None:
        for part, copy in zip(self.parts, kept, strict=True):
            part.copy_in(row, start, [copy])

    def begin_forward(self, slot: int = 0) -> None:
        for part in self.parts:
            part.begin_forward(slot)

    def commit(self, choice: torch.Tensor, active: torch.Tensor) -> None:
        for part in self.parts:
            part.lengths.copy_(self.lengths)  # the host sets those of rows that became empty to 0
            part.commit(choice.to(part.lengths.device), active.to(part.lengths.device))
        self.lengths += active

    def commit_step(self, *arguments: Any) -> None:
        raise AssertionError("a step over several devices is not captured")

    def keep(self, rows: torch.Tensor) -> None:
        for part in self.parts:
            part.keep(rows.to(part.lengths.device))
        self.lengths, self.batch = kept_rows(self.lengths, rows), rows.numel()

    def release(self) -> None:
        self.shared = None
        for part in self.parts:
            part.release()
