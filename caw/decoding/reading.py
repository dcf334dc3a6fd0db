"""Run prompts through the model in chunks, which bounds the activations, unless they have to be read whole."""

from collections.abc import Sequence
from typing import Any

import torch

from caw.decoding.forward.attention import Layout
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.models.branchable import refusal

MAX_ROWS = 8  # rows per forward; each keeps up to (history + 1) * rows rows of logits
MAX_TOKENS = 8192  # padded tokens per forward; bounds the activations
CHUNK = 2048  # tokens of a row per forward


def read(
    model: Any, cache: SiblingCache, rows: torch.Tensor, prompts: Sequence[Sequence[int]], history: int, start: int,
    chunk: int,
) -> torch.Tensor:  # fmt: skip
    """Return logits float32 [R, history + 1, V] of the last positions of each prompt, newest first; positions below
    `start` are in the cache already."""
    device = rows.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    longest = max(len(p) for p in prompts)
    # right padding: a causal row never sees what comes after it, so no mask is needed
    ids = torch.tensor([[*p[start:], *[p[-1]] * (longest - len(p))] for p in prompts], device=device)
    wanted = (lengths[:, None] - 1 - torch.arange(history + 1, device=device)[None]).clamp_min(0)
    last: torch.Tensor | None = None
    for begin in range(start, longest, chunk):
        end = min(begin + chunk, longest)
        inside = (wanted >= begin) & (wanted < end)
        # one list of positions for all rows: transformers 5.17 knows no per-row choice
        columns = torch.unique(torch.where(inside, wanted - begin, end - begin - 1))
        logits = chunk_logits(model, cache, rows, ids[:, begin - start : end - start], begin, columns)
        if last is None:
            last = logits.new_zeros(*wanted.shape, logits.shape[-1])
        row, column = inside.nonzero(as_tuple=True)
        last[row, column] = logits[row, torch.searchsorted(columns, wanted[row, column] - begin)]
    cache.end_prefill(lengths)
    assert last is not None
    return last


def chunk_logits(
    model: Any, cache: SiblingCache, rows: torch.Tensor, ids: torch.Tensor, begin: int, columns: torch.Tensor
) -> torch.Tensor:
    """Run one forward over ids [R, T] at positions begin, begin + 1, …; returns logits float32 [R, columns, V]."""
    cache.begin_prefill(rows, begin)
    positions = torch.arange(begin, begin + ids.shape[1], device=ids.device)
    output = model(
        ids,
        position_ids=positions.expand_as(ids),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=columns,
        caw_layout=Layout(cache, start=begin),
    )
    silent = sum(not layer.attended for layer in cache.layers)
    if silent:
        raise refusal(model.config.model_type, f"{silent} of its layers do not attend through transformers' interface")
    logits: torch.Tensor = output.logits
    return logits.float()


def set_lengths(cache: SiblingCache, rows: Sequence[int], lengths: Sequence[int]) -> None:
    """Set the lengths of rows whose keys and values were copied."""
    if rows:
        cache.begin_prefill(torch.tensor(rows, device=cache.lengths.device))
        cache.end_prefill(torch.tensor(lengths, device=cache.lengths.device))


def read_again(model: Any, cache: SiblingCache, row: int, tokens: Sequence[int]) -> None:
    """Recompute a row's keys and values as in a text of one more token, in one forward."""
    place = torch.tensor([row], device=cache.lengths.device)
    read(model, cache, place, [[*tokens, tokens[-1]]], 0, 0, len(tokens) + 1)
    cache.lengths[place] = len(tokens)
