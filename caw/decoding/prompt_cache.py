"""Prompts that were read before: their keys, values and last distributions, kept for later calls.

To compare settings is to continue the same prompts again and again, and on a CPU a prompt costs nearly as much as that
many new tokens. What a prompt leaves behind depends on the model alone, not on watermark, policy or sampling.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from caw.decoding.free_memory import memory_budget
from caw.evaluator.features import DECODABLE_PREVIOUS

REACH = DECODABLE_PREVIOUS  # positions before the last whose distributions some policy may ask for later
UNKNOWN_MEMORY = 2 << 30  # bytes; a share of what a system does not say


@dataclass(frozen=True, eq=False)
class KeptPrompt:
    """What a prompt left: keys and values from position `start` on, as the cache's `copy_out` gave them, and logits
    float32 [REACH + 1, V] of its last positions, the newest first."""

    start: int
    keys_values: list[torch.Tensor]
    logits: torch.Tensor

    @property
    def size(self) -> int:
        """Bytes."""
        return _size(*self.keys_values, self.logits)


class PromptCache:
    """Give the same one to several calls of `caw.generate` with one model, and each prompt is read only once.

    Args:
        max_memory: the most it may hold: bytes, a share of the memory that is free at its first use (on the model's
            main device) as a float in (0, 1], or a text such as "2GiB". It never takes what a call needs for
            decoding. Once full it keeps what it has: prompts that come round in one order would push each other out.

    A prompt is found again by all of its token ids. It was read in the call that came first, with that call's
    `prefill_attention` and backend, and beside other prompts, which changes nothing on a CPU with the compiled
    extension; elsewhere it may round differently: in float32 no text changes, in bfloat16 a near tie may. Prompts
    whose logits are not finite are not kept, and none is while texts may reach the length from which the model's
    rotary embedding changes ("longrope", "dynamic").

    It belongs to the model that it was first used with, in that state. Other weights are noticed; adapters that are
    switched, hooks and settings of the model are not: make a new one then. One thread at a time.

    Raises TypeError or ValueError for any other max_memory.
    """

    def __init__(self, max_memory: int | float | str = 0.25) -> None:
        self.max_memory, self.size = max_memory, 0
        self.found = self.missed = 0  # prompts
        self.full = True  # until a model is there
        memory_budget(max_memory, torch.device("cpu"))  # what is wrong with it is said here
        self._prompts: dict[tuple[int, ...], KeptPrompt] = {}
        self._beginnings: dict[tuple[int, ...], list[torch.Tensor]] = {}
        self._owner: tuple[weakref.ref[Any], Any] | None = None
        self._most = self._now = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def bind(self, model: Any, device: torch.device, left: int | None = None) -> None:
        """Begin a call with this model, which leaves `left` bytes (None = unknown) beside what is kept already.

        Raises ValueError if it belongs to another model, or to this one with other weights.
        """
        state = _state(model, device)
        if self._owner is None:
            most = memory_budget(self.max_memory, device)
            self._owner, self._most = (weakref.ref(model), state), UNKNOWN_MEMORY if most is None else most
        owner, known = self._owner
        if owner() is not model or known != state:
            raise ValueError(
                "expected prompt_cache with the model it was first used with, as that was then, found another model, "
                "other weights, dtype or device; make a new caw.PromptCache()"
            )
        self._now = self._most if left is None else min(self._most, self.size + max(0, left))
        self.full = False

    def beginning(self, tokens: Sequence[int]) -> list[torch.Tensor] | None:
        """Keys and values of what several prompts begin with, if they are kept."""
        return self._beginnings.get(tuple(tokens))

    def keep_beginning(self, tokens: Sequence[int], keys_values: list[torch.Tensor]) -> None:
        """Keep them if there is room."""
        if self._takes(_size(*keys_values)):
            self._beginnings[tuple(tokens)] = keys_values

    def find(self, prompt: Sequence[int], start: int) -> KeptPrompt | None:
        """The prompt, if it is kept from position `start` or before."""
        kept = self._prompts.get(tuple(prompt))
        known = kept is not None and kept.start <= start
        self.found, self.missed = self.found + known, self.missed + (not known)
        return kept if known else None

    def keep(self, prompt: Sequence[int], kept: KeptPrompt) -> None:
        """Keep it if there is room; one that starts later gives way to it."""
        before = self._prompts.get(tuple(prompt))
        if before is not None and before.start <= kept.start:
            return
        if self._takes(kept.size - (before.size if before is not None else 0)):
            self._prompts[tuple(prompt)] = kept

    def forget(self, prompt: Sequence[int]) -> None:
        """Give back what a prompt holds that is not needed any more, within a call."""
        kept = self._prompts.pop(tuple(prompt), None)
        if kept is not None:
            self.size, self.full = self.size - kept.size, False

    def _takes(self, size: int) -> bool:
        fits = self.size + size <= self._now
        self.size += size if fits else 0
        self.full = self.full or not fits
        return fits


def positions_back(history: int, kept: PromptCache | None) -> int:
    """How many positions before the last a prompt is read for: those this call wants, or all that a later one may."""
    return history if kept is None else max(history, REACH)


def _size(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _state(model: Any, device: torch.device) -> Any:
    """What changes where a model gets other weights, in place or not."""
    if getattr(model, "hf_device_map", None):  # accelerate may load weights from memory or disk again for each forward
        return model.dtype, device
    versions = tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters())
    return model.dtype, device, versions
