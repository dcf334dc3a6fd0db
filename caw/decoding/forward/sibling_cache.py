"""Cache of keys and values: committed tokens in the store, candidates of the current step in scratch.

    store   [L, 2, B, HK, S, D]   row b holds its first lengths[b] tokens, left-aligned
    scratch [L, 2, B, C, HK, D]   keys and values of the C candidates of one step

The store never holds a rejected sibling: commit copies the chosen one.

A model whose layers lie on several devices (`device_map`) has one cache per layer, where the layer is. It decodes by
steps that read back: no graph spans devices. Lengths live on the main device, where ids go in and logits come out; each
layer has a copy of them.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from caw import ops
from caw.models.huge_pages import mapped
from caw.record import kept_rows
from caw.settings import PrefillAttention


class SiblingLayer(CacheLayerMixin):
    """One layer's face to transformers: takes the new keys and values, hands them straight back.

    The committed prefix goes to the attention function through the layout, so that nothing is concatenated.
    """

    is_compileable = True
    is_sliding = False

    def __init__(self, owner: "SiblingCache", index: int) -> None:
        super().__init__()
        self.owner, self.index = owner, index
        self.attended = False  # whether attention over this layer has ever come to this library's function

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.owner.allocate(key_states, value_states)
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.owner.put(self.index, key_states, value_states)
        self.keys, self.values = key_states, value_states  # what attention must be given, unchanged
        return key_states, value_states

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        # only consulted where a mask is built, which our attention function never asks for
        return int(query_length), 0

    def get_seq_length(self) -> int:
        return 0  # position ids are always given

    def get_max_length(self) -> int:
        return self.owner.capacity

    get_max_cache_shape = get_max_length


class SiblingCache(Cache):
    """Keys and values of B sequences with C candidate slots each.

    Args:
        num_layers: L. batch: B. capacity: S, tokens a sequence can hold. slots: C.
        device: where lengths live; keys and values follow the model. kernels: implementation of the ops.
        prefill_attention: see `prefill_attention.causal_attention`.
    """

    def __init__(
        self, num_layers: int, batch: int, capacity: int, slots: int, device: torch.device,
        kernels: ops.Ops | None = None, prefill_attention: PrefillAttention = "sdpa",
    ) -> None:  # fmt: skip
        self.num_layers, self.batch, self.capacity, self.slots = num_layers, batch, capacity, slots
        self.kernels, self.prefill_attention = kernels or ops.dispatched(), prefill_attention
        self.store: torch.Tensor | None = None
        self.scratch: torch.Tensor | None = None
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=device)
        self._prefill_rows: torch.Tensor | None = None
        self._prefill_start = 0
        self.shared: list[torch.Tensor] | None = None  # keys and values of what all prompts begin with
        self.slot = 0
        self._packed: tuple[torch.Tensor, torch.Tensor] | None = None
        self._drafted: tuple[torch.Tensor, torch.Tensor] | None = None
        super().__init__(layers=[SiblingLayer(self, i) for i in range(num_layers)])

    @property
    def packs(self) -> bool:
        """True if a forward may carry different numbers of candidates per sequence; pays where arithmetic does."""
        return self.lengths.device.type == "cpu"

    def allocate(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Make store and scratch for keys and values shaped [rows, HK, tokens, D]; a second call changes nothing."""
        if self.store is not None:
            return
        if key.shape != value.shape:
            raise NotImplementedError(
                f"keys and values must have one shape, got {tuple(key.shape)} and {tuple(value.shape)}; this "
                "architecture (latent attention) is not supported"
            )
        heads, dim = key.shape[1], key.shape[3]
        self.lengths = self.lengths.to(key.device)
        self.store = _zeros(key, (self.num_layers, 2, self.batch, heads, self.capacity, dim))
        self.scratch = key.new_zeros(self.num_layers, 2, self.batch, self.slots, heads, dim)

    def put(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Keys and values [rows, HK, tokens, D] of a forward: to the store in prefill, to scratch (1) in a step."""
        assert self.store is not None and self.scratch is not None
        if self._prefill_rows is not None:
            places = slice(self._prefill_start, self._prefill_start + key.shape[2])
            self.store[layer, 0, self._prefill_rows, :, places] = key
            self.store[layer, 1, self._prefill_rows, :, places] = value
            return
        if self._drafted is not None:
            rows, positions = self._drafted
            self.store[layer, 0][rows, :, positions] = key[:, :, 0]
            self.store[layer, 1][rows, :, positions] = value[:, :, 0]
            return
        if self._packed is not None:
            self.scratch[layer, 0][self._packed], self.scratch[layer, 1][self._packed] = key[:, :, 0], value[:, :, 0]
            return
        end = self.slot + key.shape[2]
        self.scratch[layer, 0, : key.shape[0], self.slot : end] = key.transpose(1, 2)
        self.scratch[layer, 1, : key.shape[0], self.slot : end] = value.transpose(1, 2)

    def begin_prefill(self, rows: torch.Tensor, start: int = 0) -> None:
        """Let the next forward fill these rows (int64 [R']) from position `start` on; right padding is never read."""
        self._prefill_rows, self._prefill_start = rows, start

    def prefill_places(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cache row and the position, int64, of each of the R' * tokens rows of the current forward."""
        assert self._prefill_rows is not None
        positions = torch.arange(self._prefill_start, self._prefill_start + tokens, device=self._prefill_rows.device)
        return self._prefill_rows.repeat_interleave(tokens), positions.repeat(self._prefill_rows.shape[0])

    def before(self, layer: int) -> torch.Tensor:
        """Keys and values [2, R', HK, start, D] of the rows being filled, before the present forward."""
        assert self._prefill_rows is not None and self.store is not None
        return self.store[layer, :, self._prefill_rows, :, : self._prefill_start]

    def end_prefill(self, lengths: torch.Tensor) -> None:
        """Set the lengths (int64 [R']) of the prompts just filled in."""
        assert self._prefill_rows is not None and self.store is not None
        rows, self._prefill_rows = self._prefill_rows, None
        self.lengths[rows] = lengths

    def copy_out(self, row: int, start: int, end: int) -> list[torch.Tensor]:
        """Copy the keys and values of a row's positions start to end: one tensor [L, 2, HK, end - start, D]."""
        assert self.store is not None
        return [self.store[:, :, row, :, start:end].clone()]

    def copy_in(self, row: int, start: int, copies: Sequence[torch.Tensor]) -> None:
        """Write what `copy_out` took into a row, from position `start` on."""
        [keys_values] = copies
        self.allocate(keys_values[0, :1], keys_values[0, 1:])
        assert self.store is not None
        self.store[:, :, row, :, start : start + keys_values.shape[3]] = keys_values

    def begin_forward(self, slot: int = 0, packed: tuple[torch.Tensor, torch.Tensor] | None = None) -> None:
        """Let the next forward carry candidates slot, slot + 1, … of each sequence.

        packed: of candidate n the sequence and the slot, int64 [N] each, where there is not the same number of each.
        """
        self.slot, self._packed, self._drafted = slot, packed, None

    def begin_drafts(self, rows: torch.Tensor, places: torch.Tensor) -> None:
        """Let the next forward carry drafts: row n is of sequence rows[n], at places[n] of the store, int64 [N]."""
        self.slot, self._packed, self._drafted = 0, None, (rows, places)

    def accept(self, places: torch.Tensor, active: torch.Tensor) -> None:
        """Append the token at places[b] (int64 [B]) of the store, not before the end, to sequence b where active."""
        assert self.store is not None
        for row in (active & (places != self.lengths)).nonzero()[:, 0].tolist():
            self.store[:, :, row, :, self.lengths[row]] = self.store[:, :, row, :, places[row]]
        self.lengths += active

    def commit(self, choice: torch.Tensor, active: torch.Tensor) -> None:
        """Append candidate choice[b] (int64 [B]) to sequence b where active (bool [B])."""
        assert self.store is not None and self.scratch is not None
        self.kernels.commit_kv(self.store, self.scratch, choice, self.lengths, active)

    def commit_step(
        self, choice: torch.Tensor, active: torch.Tensor, logits: torch.Tensor, step_logits: torch.Tensor,
        records: list[torch.Tensor], following: list[torch.Tensor], alive: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """`commit`, and logits and records move along in the same launch; arguments as in `commit_step_ref`."""
        assert self.store is not None and self.scratch is not None
        self.kernels.commit_step(
            self.store, self.scratch, choice, self.lengths, active, logits, step_logits, records, following, alive
        )

    def keep(self, rows: torch.Tensor) -> None:
        """Drop every sequence but `rows` (int64 [B'], ascending), which move to the front of the same memory."""
        assert self.store is not None and self.scratch is not None
        for place, row in enumerate(rows.tolist()):  # ascending: what is overwritten has moved already, or is dropped
            if place != row:
                self.store[:, :, place] = self.store[:, :, row]
        self.store, self.scratch = self.store[:, :, : rows.numel()], self.scratch[:, :, : rows.numel()]
        self.lengths, self.batch = kept_rows(self.lengths, rows), rows.numel()

    def release(self) -> None:
        """Free keys and values at once: a traceback may hold this object for long."""
        self.store = self.scratch = self.shared = None
        for layer in self.layers:
            layer.keys = layer.values = None


def _zeros(like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return zeros that take memory on a CPU only where something is written: texts end long before the capacity.

    In pages of the usual size: huge ones would reach over several heads' places, and made no step faster.
    """
    count = math.prod(shape)
    try:
        area = mapped(count * like.itemsize) if like.device.type == "cpu" and count else None
    except OSError as error:
        found = f"expected {count * like.itemsize} bytes for keys and values, found fewer"
        raise torch.OutOfMemoryError(f"{found}; lower batch_size or max_new_tokens") from error
    return like.new_zeros(shape) if area is None else torch.frombuffer(area, dtype=like.dtype, count=count).view(shape)


class SpreadCache(Cache):
    """`SiblingCache` over several devices; arguments as there, `device` is the main one."""

    def __init__(
        self, num_layers: int, batch: int, capacity: int, slots: int, device: torch.device,
        kernels: ops.Ops | None = None, prefill_attention: PrefillAttention = "sdpa",
    ) -> None:  # fmt: skip
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

    def copy_in(self, row: int, start: int, copies: Sequence[torch.Tensor]) -> None:
        for part, copy in zip(self.parts, copies, strict=True):
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
