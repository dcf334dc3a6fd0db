"""Prefill prompts: fill rows of the cache, return the last positions' distributions; read shared parts once."""

from collections.abc import Sequence
from typing import Any

import torch

from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.prompt_cache import PromptCache, positions_back
from caw.decoding.reading import CHUNK, MAX_ROWS, MAX_TOKENS, read, set_lengths
from caw.models.shared_prefix import common_length
from caw.record import Record


def prefill(
    model: Any, cache: SiblingCache, rows: Sequence[int], prompts: Sequence[Sequence[int]], history: int,
    shared: int = 0, prompt_cache: PromptCache | None = None, whole: bool = False,
) -> tuple[torch.Tensor, list[Record]]:  # fmt: skip
    """Fill cache rows with prompts.

    Args:
        rows: R row numbers. prompts: R non-empty lists of token ids.
        history: N-, number of positions wanted before the first new one.
        shared: number of tokens that all prompts begin with (`shared_beginning`); they run at the first call.
        prompt_cache: to read from and write to. Then `shared` has to leave out as many positions as it keeps
            (`positions_back`).
        whole: long prompts are not cut into chunks.

    Returns:
        (logits float32 [R, V] of the first new position, records of p_i, p_{i-1}, …, p_{i-history}); a position
        before the model's first distribution is an empty record.
    """
    device = cache.lengths.device
    if shared:
        fill_shared(model, cache, rows, prompts[0][:shared], prompt_cache)
    reach = positions_back(history, prompt_cache)
    logits = prompt_cache.recall(cache, rows, prompts, shared) if prompt_cache is not None else {}
    first = first_of_equals(prompts)
    order = sorted((i for i in set(first) if i not in logits), key=lambda i: -len(prompts[i]))
    while order:
        longest = len(prompts[order[0]]) - shared
        chunk = longest if whole else min(longest, CHUNK)
        group = order[: max(1, min(MAX_ROWS, MAX_TOKENS // chunk))]
        order = order[len(group) :]
        row_ids = torch.tensor([rows[i] for i in group], device=device)
        last = read(model, cache, row_ids, [prompts[i] for i in group], reach, shared, chunk)
        logits |= zip(group, last, strict=True)
        if prompt_cache is not None:
            prompt_cache.keep(cache, {rows[i]: prompts[i] for i in group}, last, shared)
    again = [i for i in range(len(rows)) if i not in logits]
    for i in again:
        cache.copy_in(rows[i], shared, cache.copy_out(rows[first[i]], shared, len(prompts[i])))
        logits[i] = logits[first[i]]
    set_lengths(cache, [rows[i] for i in again], [len(prompts[i]) for i in again])
    stacked = torch.stack([logits[i][: history + 1] for i in range(len(rows))])  # [R, history + 1, V]
    return first_records(cache, stacked, [len(p) for p in prompts])


def first_records(
    cache: SiblingCache, logits: torch.Tensor, lengths: Sequence[int]
) -> tuple[torch.Tensor, list[Record]]:
    """Return logits [R, V] and records of what `read` found, [R, history + 1, V], of prompts of these lengths."""
    device = cache.lengths.device
    given, records = torch.tensor(lengths, device=device), []
    for back in range(logits.shape[1]):
        record = Record.from_logits(logits[:, back], kernels=cache.kernels)
        records.append(record.where(given - 1 - back < 0, Record.empty(len(lengths), device)))
    return logits[:, 0], records


MIN_SHARED = 32  # a shorter beginning is not worth a separate forward


def shared_beginning(prompts: Sequence[Sequence[int]], history: int) -> int:
    """Count the tokens that all prompts begin with, less the positions whose distributions are wanted; 0 if few."""
    if len(prompts) < 2:
        return 0
    shared = min(common_length(prompts), min(map(len, prompts)) - 1 - history)
    return shared if shared >= MIN_SHARED else 0


def fill_shared(
    model: Any, cache: SiblingCache, rows: Sequence[int], beginning: Sequence[int], prompt_cache: PromptCache | None
) -> None:
    """Put the keys and values of the shared beginning into `rows`; the model reads it once per cache, if at all."""
    if cache.shared is None and prompt_cache is not None:
        cache.shared = prompt_cache.beginning(beginning)
    if cache.shared is None:
        row = torch.tensor(rows[:1], device=cache.lengths.device)
        last = read(model, cache, row, [beginning], 0, 0, CHUNK)
        cache.shared = cache.copy_out(rows[0], 0, len(beginning))
        if prompt_cache is not None:
            prompt_cache.keep_beginning(beginning, cache.shared, last)
    for row in rows:
        cache.copy_in(row, 0, cache.shared)


def first_of_equals(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Return, for each prompt, the place of the first that equals it."""
    places: dict[tuple[int, ...], int] = {}
    return [places.setdefault(tuple(prompt), i) for i, prompt in enumerate(prompts)]
