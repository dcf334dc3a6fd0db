"""Run prompts once: fill their rows of the cache and keep the distributions of the first new position and before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from caw.decoding.attention import Layout
from caw.decoding.kv_cache import SiblingCache
from caw.decoding.support import refusal
from caw.record import Record

MAX_ROWS = 8  # rows per forward; each keeps up to (history + 1) * rows rows of logits
MAX_TOKENS = 8192  # padded tokens per forward; bounds the activations of long prompts


def prefill(
    model: Any, cache: SiblingCache, rows: Sequence[int], prompts: Sequence[Sequence[int]], history: int
) -> tuple[torch.Tensor, list[Record]]:
    """Fill cache rows with prompts.

    Args:
        rows: R row numbers. prompts: R non-empty lists of token ids.
        history: how many positions before the first new one are wanted (N-).

    Returns:
        (logits float32 [R, V] of the first new position, records of p_i, p_{i-1}, …, p_{i-history}); a position
        before the model's first distribution is an empty record.
    """
    device = cache.lengths.device
    order = sorted(range(len(rows)), key=lambda i: -len(prompts[i]))
    logits: list[torch.Tensor] = [torch.empty(0)] * len(rows)
    while order:
        longest = len(prompts[order[0]])
        group = order[: max(1, min(MAX_ROWS, MAX_TOKENS // longest))]
        order = order[len(group) :]
        row_ids = torch.tensor([rows[i] for i in group], device=device)
        found = _forward(model, cache, row_ids, [prompts[i] for i in group], history)
        for i, row in zip(group, found, strict=True):
            logits[i] = row
    stacked = torch.stack(logits)  # [R, history + 1, V]
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    records = []
    for back in range(history + 1):
        record = Record.from_logits(stacked[:, back], kernels=cache.kernels)
        records.append(record.where(lengths - 1 - back < 0, Record.empty(len(rows), device)))
    return stacked[:, 0], records


def _forward(
    model: Any, cache: SiblingCache, rows: torch.Tensor, prompts: Sequence[Sequence[int]], history: int
) -> torch.Tensor:
    """Logits float32 [R, history + 1, V] of the last positions of each prompt, the newest first."""
    device = rows.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    longest = int(lengths.max())
    # right padding: a causal row never sees what comes after it, so no mask is needed
    ids = torch.tensor([[*p, *[p[-1]] * (longest - len(p))] for p in prompts], device=device)
    wanted = (lengths[:, None] - 1 - torch.arange(history + 1, device=device)[None]).clamp_min(0)
    # one list of positions for all rows: transformers 5.17 knows no per-row choice
    kept, column = torch.unique(wanted, return_inverse=True)
    cache.begin_prefill(rows)
    output = model(
        ids,
        position_ids=torch.arange(longest, device=device).expand_as(ids),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=kept,
        caw_layout=Layout(cache),
    )
    silent = sum(not layer.attended for layer in cache.layers)
    if silent:
        raise refusal(model.config.model_type, f"{silent} of its layers do not attend through transformers' interface")
    cache.end_prefill(lengths)
    return output.logits[torch.arange(len(prompts), device=device)[:, None], column.view_as(wanted)].float()
