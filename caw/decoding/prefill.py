"""Run prompts once: fill their rows of the cache and keep the distributions of the first new position and before.

What all prompts begin with (the examples of a few-shot evaluation) goes through the model once for all of them, and
what a prompt cache knows does not go through it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.prompt_cache import PromptCache, positions_back
from caw.decoding.reading import CHUNK, MAX_ROWS, MAX_TOKENS, read
from caw.decoding.sharing import copy_equals, fill_shared, first_of_equals, keep, recall
from caw.record import Record


def prefill(
    model: Any,
    cache: SiblingCache,
    rows: Sequence[int],
    prompts: Sequence[Sequence[int]],
    history: int,
    shared: int = 0,
    kept: PromptCache | None = None,
    whole: bool = False,
) -> tuple[torch.Tensor, list[Record]]:
    """Fill cache rows with prompts.

    Args:
        rows: R row numbers. prompts: R non-empty lists of token ids.
        history: how many positions before the first new one are wanted (N-).
        shared: tokens that all prompts of this cache begin with (`shared_beginning`); they run at the first call.
        kept: what is known of these prompts is taken from there, and what is read goes there. Then `shared` has to
            leave out as many positions as are kept (`positions_back`).
        whole: long prompts are not cut into chunks.

    Returns:
        (logits float32 [R, V] of the first new position, records of p_i, p_{i-1}, …, p_{i-history}); a position
        before the model's first distribution is an empty record.
    """
    device = cache.lengths.device
    if shared:
        fill_shared(model, cache, rows, prompts[0][:shared], kept)
    reach = positions_back(history, kept)
    logits = recall(cache, rows, prompts, shared, kept) if kept is not None else {}
    first = first_of_equals(prompts)
    order = sorted((i for i in set(first) if i not in logits), key=lambda i: -len(prompts[i]))
    while order:
        longest = len(prompts[order[0]]) - shared
        chunk = longest if whole else min(longest, CHUNK)
        group = order[: max(1, min(MAX_ROWS, MAX_TOKENS // chunk))]
        order = order[len(group) :]
        row_ids = torch.tensor([rows[i] for i in group], device=device)
        found = read(model, cache, row_ids, [prompts[i] for i in group], reach, shared, chunk)
        logits |= zip(group, found, strict=True)
        if kept is not None and not kept.full:
            keep(cache, {rows[i]: prompts[i] for i in group}, found, shared, kept)
    logits |= copy_equals(cache, rows, prompts, shared, first, logits)
    stacked = torch.stack([logits[i][: history + 1] for i in range(len(rows))])  # [R, history + 1, V]
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    records = []
    for back in range(history + 1):
        record = Record.from_logits(stacked[:, back], kernels=cache.kernels)
        records.append(record.where(lengths - 1 - back < 0, Record.empty(len(rows), device)))
    return stacked[:, 0], records
