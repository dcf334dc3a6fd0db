"""Cache of prompts: keys, values, last distributions, which depend on the model alone and cost much to make."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.memory import memory_budget
from caw.decoding.reading import set_lengths
from caw.evaluator.features import DECODABLE_PREVIOUS

REACH = DECODABLE_PREVIOUS  # positions before the last whose distributions some policy may ask for later
UNKNOWN_MEMORY = 2 << 30  # bytes; a share of what a system does not say


@dataclass(frozen=True, eq=False)
class KeptPrompt:
    """A cached prompt: keys and values from position `start` on, as the cache's `copy_out` gave them, and logits
    float32 [REACH + 1, V] of its last positions, the newest first."""

    start: int
    keys_values: list[torch.Tensor]
    logits: torch.Tensor

    @property
    def size(self) -> int:
        """Bytes."""
        return _size(*self.keys_values, self.logits)


class PromptCache:
    """Cache prompts across calls: pass one to several calls of `caw.generate` with one model.

    Args:
        max_memory: maximum size: bytes, a share of the memory that is free at its first use (on the model's main
            device) as a float in (0, 1], or text such as "2GiB". It never takes memory that a call needs for
            decoding. Once full, it evicts nothing: prompts that recur in a fixed order would evict each other.

    A prompt is looked up by all of its token ids. It was prefilled by the first call that had it, with that call's
    `prefill_attention` and backend, beside other prompts. On a CPU with the compiled extension that changes nothing;
    elsewhere rounding may differ: no text changes in float32, a near tie may in bfloat16. Prompts whose logits are not
    finite are not cached, nor is any while texts may reach the length at which the model's rotary embedding changes
    ("longrope", "dynamic").

    It belongs to the model that it was first used with, in that state. Changed weights are detected; switched
    adapters, hooks and model settings are not: make a new cache then. Use it from one thread at a time.

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

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a PromptCache holds one process's keys and values, got a request to pickle it; make a new one there"
        )

    def bind(self, model: Any, device: torch.device, left: int | None = None) -> None:
        """Begin a call with this model, which leaves `left` bytes (None = unknown) beside what is cached already.

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
        """Return the keys and values of a shared beginning, if cached."""
        return self._beginnings.get(tuple(tokens))

    def keep_beginning(self, tokens: Sequence[int], keys_values: list[torch.Tensor], logits: torch.Tensor) -> None:
        """Cache them if there is room and the logits behind them are finite."""
        if bool(logits.isfinite().all()) and self._takes(_size(*keys_values)):
            self._beginnings[tuple(tokens)] = keys_values

    def recall(
        self, cache: SiblingCache, rows: Sequence[int], prompts: Sequence[Sequence[int]], start: int
    ) -> dict[int, torch.Tensor]:
        """Fill the rows of prompts cached from `start` or before; return each one's logits float32 [REACH + 1, V]."""
        known = {i: entry for i, ids in enumerate(prompts) if (entry := self._prompts.get(tuple(ids)))}
        known = {i: entry for i, entry in known.items() if entry.start <= start}
        self.found, self.missed = self.found + len(known), self.missed + len(prompts) - len(known)
        for i, entry in known.items():
            cache.copy_in(rows[i], entry.start, entry.keys_values)
        set_lengths(cache, [rows[i] for i in known], [len(prompts[i]) for i in known])
        return {i: entry.logits for i, entry in known.items()}

    def keep(self, cache: SiblingCache, prompts: dict[int, Sequence[int]], logits: torch.Tensor, start: int) -> None:
        """Cache the prompts of these rows from position `start` on, while there is room.

        logits: [R, REACH + 1, V]; prompts whose own are broken are left out.
        """
        if self.full:
            return
        finite = logits.isfinite().flatten(1).all(1).tolist()
        for (row, prompt), last, good in zip(prompts.items(), logits, finite, strict=True):
            if good:
                self._keep(prompt, KeptPrompt(start, cache.copy_out(row, start, len(prompt)), last.clone()))

    def _keep(self, prompt: Sequence[int], entry: KeptPrompt) -> None:
        """Cache it if there is room, replacing one that starts later."""
        before = self._prompts.get(tuple(prompt))
        if before is not None and before.start <= entry.start:
            return
        if self._takes(entry.size - (before.size if before is not None else 0)):
            self._prompts[tuple(prompt)] = entry

    def forget(self, prompt: Sequence[int]) -> None:
        """Free a prompt that is no longer needed within a call."""
        entry = self._prompts.pop(tuple(prompt), None)
        if entry is not None:
            self.size, self.full = self.size - entry.size, False

    def _takes(self, size: int) -> bool:
        fits = self.size + size <= self._now
        self.size += size if fits else 0
        self.full = self.full or not fits
        return fits


def positions_back(history: int, prompt_cache: PromptCache | None) -> int:
    """Count the positions before the last that prefill keeps: those this call wants, or all that a later one may."""
    return history if prompt_cache is None else max(history, REACH)


def _size(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _state(model: Any, device: torch.device) -> Any:
    """Return what changes when a model gets other weights, in place or not."""
    if getattr(model, "hf_device_map", None):  # accelerate may load weights from memory or disk again for each forward
        return model.dtype, device
    versions = tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters())
    return model.dtype, device, versions
