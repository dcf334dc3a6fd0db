"""Run prompts once: fill their rows of the cache and keep the distributions of the first new position and before.

Long prompts go through the model in chunks, which bounds the activations, unless they have to be read whole. What all
prompts begin with (the examples of a few-shot evaluation) goes through it once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from caw.decoding.branchable import refusal
from caw.decoding.forward.attention import Layout
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.prompt_cache import KeptPrompt, PromptCache, positions_back
from caw.record import Record

MAX_ROWS = 8  # rows per forward; each keeps up to (history + 1) * rows rows of logits
MAX_TOKENS = 8192  # padded tokens per forward; bounds the activations
CHUNK = 2048  # tokens of a row per forward
MIN_SHARED = 32  # a shorter beginning is not worth a forward of its own


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
        _fill_shared(model, cache, rows, prompts[0][:shared], kept)
    reach = positions_back(history, kept)
    logits = _recall(cache, rows, prompts, shared, kept) if kept is not None else {}
    order = sorted((i for i in range(len(rows)) if i not in logits), key=lambda i: -len(prompts[i]))
    while order:
        longest = len(prompts[order[0]]) - shared
        chunk = longest if whole else min(longest, CHUNK)
        group = order[: max(1, min(MAX_ROWS, MAX_TOKENS // chunk))]
        order = order[len(group) :]
        row_ids = torch.tensor([rows[i] for i in group], device=device)
        found = _forward(model, cache, row_ids, [prompts[i] for i in group], reach, shared, chunk)
        logits |= zip(group, found, strict=True)
        if kept is not None and not kept.full:
            _keep(cache, {rows[i]: prompts[i] for i in group}, found, shared, kept)
    stacked = torch.stack([logits[i][: history + 1] for i in range(len(rows))])  # [R, history + 1, V]
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    records = []
    for back in range(history + 1):
        record = Record.from_logits(stacked[:, back], kernels=cache.kernels)
        records.append(record.where(lengths - 1 - back < 0, Record.empty(len(rows), device)))
    return stacked[:, 0], records


def read_again(model: Any, cache: SiblingCache, row: int, tokens: Sequence[int]) -> None:
    """Replace a row's keys and values by what they are in a text of one token more; all of it in one forward."""
    place = torch.tensor([row], device=cache.lengths.device)
    _forward(model, cache, place, [[*tokens, tokens[-1]]], 0, 0, len(tokens) + 1)
    cache.lengths[place] = len(tokens)


def common_length(rows: Sequence[Sequence[int]]) -> int:
    """How many tokens all rows (at least one) begin with."""
    ordered = [tuple(row) for row in rows]
    first, last = min(ordered), max(ordered)  # in lexicographic order: what these two share all share
    differing = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return next(differing, min(map(len, ordered)))


def shared_beginning(prompts: Sequence[Sequence[int]], history: int) -> int:
    """How many tokens all prompts begin with, the positions whose distributions are wanted left out; 0 if few."""
    if len(prompts) < 2:
        return 0
    shared = min(common_length(prompts), min(map(len, prompts)) - 1 - history)
    return shared if shared >= MIN_SHARED else 0


def _fill_shared(
    model: Any, cache: SiblingCache, rows: Sequence[int], beginning: Sequence[int], kept: PromptCache | None
) -> None:
    """Put the keys and values of the shared beginning into `rows`; the model sees it once per cache, or never again."""
    if cache.shared is None and kept is not None:
        cache.shared = kept.beginning(beginning)
    if cache.shared is None:
        row = torch.tensor(rows[:1], device=cache.lengths.device)
        found = _forward(model, cache, row, [beginning], 0, 0, CHUNK)
        cache.shared = cache.copy_out(rows[0], 0, len(beginning))
        if kept is not None and bool(found.isfinite().all()):
            kept.keep_beginning(beginning, cache.shared)
    for row in rows:
        cache.copy_in(row, 0, cache.shared)


def _recall(
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


def _keep(
    cache: SiblingCache, prompts: dict[int, Sequence[int]], found: torch.Tensor, shared: int, kept: PromptCache
) -> None:
    """Keep the prompts of these rows, whose logits are found [R, REACH + 1, V]; broken ones would stay broken."""
    finite = found.isfinite().flatten(1).all(1).tolist()
    for (row, prompt), logits, good in zip(prompts.items(), found, finite, strict=True):
        if good:
            kept.keep(prompt, KeptPrompt(shared, cache.copy_out(row, shared, len(prompt)), logits.clone()))


def _forward(
    model: Any,
    cache: SiblingCache,
    rows: torch.Tensor,
    prompts: Sequence[Sequence[int]],
    history: int,
    start: int,
    chunk: int,
) -> torch.Tensor:
    """Logits float32 [R, history + 1, V] of the last positions of each prompt, the newest first; positions below
    `start` are in the cache already."""
    device = rows.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    longest = max(len(p) for p in prompts)
    # right padding: a causal row never sees what comes after it, so no mask is needed
    ids = torch.tensor([[*p[start:], *[p[-1]] * (longest - len(p))] for p in prompts], device=device)
    wanted = (lengths[:, None] - 1 - torch.arange(history + 1, device=device)[None]).clamp_min(0)
    found: torch.Tensor | None = None
    for begin in range(start, longest, chunk):
        end = min(begin + chunk, longest)
        inside = (wanted >= begin) & (wanted < end)
        # one list of positions for all rows: transformers 5.17 knows no per-row choice
        kept = torch.unique(torch.where(inside, wanted - begin, end - begin - 1))
        logits = _chunk(model, cache, rows, ids[:, begin - start : end - start], begin, kept)
        if found is None:
            found = logits.new_zeros(*wanted.shape, logits.shape[-1])
        row, column = inside.nonzero(as_tuple=True)
        found[row, column] = logits[row, torch.searchsorted(kept, wanted[row, column] - begin)]
    cache.end_prefill(lengths)
    assert found is not None
    return found


def _chunk(
    model: Any, cache: SiblingCache, rows: torch.Tensor, ids: torch.Tensor, begin: int, kept: torch.Tensor
) -> torch.Tensor:
    """One forward over ids [R, T] at positions begin, begin + 1, …; logits float32 [R, kept, V]."""
    cache.begin_prefill(rows, begin)
    positions = torch.arange(begin, begin + ids.shape[1], device=ids.device)
    output = model(
        ids,
        position_ids=positions.expand_as(ids),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=kept,
        caw_layout=Layout(cache, start=begin),
    )
    silent = sum(not layer.attended for layer in cache.layers)
    if silent:
        raise refusal(model.config.model_type, f"{silent} of its layers do not attend through transformers' interface")
    logits: torch.Tensor = output.logits
    return logits.float()
