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

from caw.decoding.memory import memory_budget


@dataclass(frozen=True, eq=False)
class KeptPrompt:
    """What a prompt left: keys and values from position `start` on, one tensor [L, 2, HK, T - start, D] per device of
    the cache, and logits float32 [N + 1, V] of its last N + 1 positions, the newest first."""

    start: int
    keys_values: list[torch.Tensor]
    logits: torch.Tensor

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(t.numel() * t.element_size() for t in (*self.keys_values, self.logits))


class PromptCache:
    """Give the same one to several calls of `caw.generate` with one model, and each prompt is read only once.

    Args:
        max_memory: what it may hold: bytes, a share of the memory that is free at its first use as a float in (0, 1],
            or a text such as "2GiB". Once full it keeps what it has: prompts that come round in one order would push
            each other out.

    A prompt is found again by all of its token ids. Keys and values are those of the call that read it, whose batch
    may have rounded otherwise: in float32 no text changes, in bfloat16 a near tie may. It belongs to the model that it
    was first used with, as that was then: after a change of weights make a new one. Not for several threads at once.

    Raises TypeError or ValueError for any other max_memory.
    """

    def __init__(self, max_memory: int | float | str = 0.25) -> None:
        self.max_memory, self.size = max_memory, 0
        self.found = self.missed = 0  # prompts
        memory_budget(max_memory, torch.device("cpu"))  # what is wrong with it is said here
        self._prompts: dict[tuple[int, ...], KeptPrompt] = {}
        self._beginnings: dict[tuple[int, ...], list[torch.Tensor]] = {}
        self._owner: tuple[weakref.ref[Any], torch.dtype, torch.device] | None = None
        self._most: int | None = None

    def __len__(self) -> int:
        return len(self._prompts)

    def bind(self, model: Any, device: torch.device) -> None:
        """Belong to this model; ValueError if it belongs to another one, or to this one in another form."""
        now: torch.dtype = model.dtype
        if self._owner is None:
            self._owner = (weakref.ref(model), now, device)
            self._most = memory_budget(self.max_memory, device)
            return
        owner, dtype, place = self._owner
        if owner() is not model or (dtype, place) != (now, device):
            raise ValueError(
                "expected prompt_cache with the model it was first used with, as that was then, found another model, "
                "dtype or device; make a new caw.PromptCache()"
            )

    @property
    def room(self) -> int:
        """Bytes it may still take; 0 before its first use."""
        return 0 if self._owner is None or self._most is None else max(0, self._most - self.size)

    def beginning(self, tokens: Sequence[int]) -> list[torch.Tensor] | None:
        """Keys and values of what several prompts begin with, if they are kept."""
        return self._beginnings.get(tuple(tokens))

    def keep_beginning(self, tokens: Sequence[int], keys_values: list[torch.Tensor]) -> None:
        """Keep them if there is room."""
        if self._takes(sum(t.numel() * t.element_size() for t in keys_values)):
            self._beginnings[tuple(tokens)] = keys_values

    def find(self, prompt: Sequence[int], start: int, history: int) -> KeptPrompt | None:
        """The prompt, if it is kept from position `start` or before, with history + 1 distributions."""
        kept = self._prompts.get(tuple(prompt))
        known = kept is not None and kept.start <= start and len(kept.logits) > history
        self.found, self.missed = self.found + known, self.missed + (not known)
        return kept if known else None

    def keep(self, prompt: Sequence[int], kept: KeptPrompt) -> None:
        """Keep it if there is room; it takes the place of what was known of the same prompt."""
        before = self._prompts.get(tuple(prompt))
        if self._takes(kept.size - (before.size if before is not None else 0)):
            self._prompts[tuple(prompt)] = kept

    def _takes(self, size: int) -> bool:
        fits = self._most is None or self.size + size <= self._most
        self.size += size if fits else 0
        return fits
