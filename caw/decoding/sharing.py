"""What need not be read again: what all prompts begin with, and what a prompt cache has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.prompt_cache import KeptPrompt, PromptCache
from caw.decoding.reading import CHUNK, read
from caw.models.shared_prefix import common_length

MIN_SHARED = 32  # a shorter beginning is not worth a separate forward


def shared_beginning(prompts: Sequence[Sequence[int]], history: int) -> int:
    """How many tokens all prompts begin with, the positions whose distributions are wanted left out; 0 if few."""
    if len(prompts) < 2:
        return 0
    shared = min(common_length(prompts), min(map(len, prompts)) - 1 - history)
    return shared if shared >= MIN_SHARED else 0


def fill_shared(
    model: Any, cache: SiblingCache, rows: Sequence[int], beginning: Sequence[int], kept: PromptCache | None
) -> None:
    """Put the keys and values of the shared beginning into `rows`; the model sees it once per cache, or never again."""
    if cache.shared is None and kept is not None:
        cache.shared = kept.beginning(beginning)
    if cache.shared is None:
        row = torch.tensor(rows[:1], device=cache.lengths.device)
        found = read(model, cache, row, [beginning], 0, 0, CHUNK)
        cache.shared = cache.copy_out(rows[0], 0, len(beginning))
        if kept is not None and bool(found.isfinite().all()):
            kept.keep_beginning(beginning, cache.shared)
    for row in rows:
        cache.copy_in(row, 0, cache.shared)


def recall(
    cache: SiblingCache, rows: Sequence[int], prompts: Sequence[Sequence[int]], shared: int, kept: PromptCache
) -> dict[int, torch.Tensor]:
    """Fill the rows of prompts that are kept; of each, by its place, the logits float32 [REACH + 1, V]."""
    known = {i: found for i, prompt in enumerate(prompts) if (found := kept.find(prompt, shared)) is not None}
    if known:
        device = cache.lengths.device
        for i, found in known.items():
            cache.copy_in(rows[i], found.start, found.keys_values)
        cache.begin_prefill(torch.tensor([rows[i] for i in known], device=device))
        cache.end_prefill(torch.tensor([len(prompts[i]) for i in known], device=device))
    return {i: found.logits for i, found in known.items()}


def keep(
    cache: SiblingCache, prompts: dict[int, Sequence[int]], found: torch.Tensor, shared: int, kept: PromptCache
) -> None:
    """Keep the prompts of these rows, whose logits are found [R, REACH + 1, V]; broken ones would stay broken."""
    finite = found.isfinite().flatten(1).all(1).tolist()
    for (row, prompt), logits, good in zip(prompts.items(), found, finite, strict=True):
        if good:
            kept.keep(prompt, KeptPrompt(shared, cache.copy_out(row, shared, len(prompt)), logits.clone()))


def first_of_equals(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Of each prompt, the place of the first that equals it."""
    places: dict[tuple[int, ...], int] = {}
    return [places.setdefault(tuple(prompt), i) for i, prompt in enumerate(prompts)]


def copy_equals(
    cache: SiblingCache,
    rows: Sequence[int],
    prompts: Sequence[Sequence[int]],
    shared: int,
    first: Sequence[int],
    known: dict[int, torch.Tensor],
) -> dict[int, torch.Tensor]:
    """Fill the rows of prompts that equal an earlier one, which was read; their logits, by place."""
    again = [i for i in range(len(first)) if i not in known]
    if again:
        device = cache.lengths.device
        for i in again:
            cache.copy_in(rows[i], shared, cache.copy_out(rows[first[i]], shared, len(prompts[i])))
        cache.begin_prefill(torch.tensor([rows[i] for i in again], device=device))
        cache.end_prefill(torch.tensor([len(prompts[i]) for i in again], device=device))
    return {i: known[first[i]] for i in again}
