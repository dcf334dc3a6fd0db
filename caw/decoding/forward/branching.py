"""Run the look-ahead: all candidates in one forward (tree), or the paper's two baselines.

tree        one forward of Q siblings per sequence
sequential  Q forwards of one candidate per sequence
batch       one forward of B * Q one-token rows, each with a copy of the prefix, made for the step

The baselines run eagerly, without drafts.
"""

from typing import Any

import torch

from caw.decoding.forward.attention import Layout
from caw.decoding.forward.draft_tree import DraftTree
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.settings import Branching


def forward_candidates(
    model: Any, cache: SiblingCache, candidates: torch.Tensor, branching: Branching, limit: int
) -> torch.Tensor:
    """Compute the next-position logits of every candidate.

    Args:
        candidates: int64 [B, Q], siblings at position cache.lengths[b]; their keys and values land in scratch.
        limit: places of the cache that any sequence uses; the rest is not read.

    Returns:
        [B, Q, V] in the model's dtype.
    """
    if branching == "batch":
        return _forward_batch(model, cache, candidates, limit)
    if branching == "tree":
        return _forward(model, cache, candidates, cache.lengths, limit, slot=0)
    parts = [
        _forward(model, cache, column[:, None], cache.lengths, limit, slot=j)
        for j, column in enumerate(candidates.unbind(dim=1))
    ]
    return torch.cat(parts, dim=1)


def forward_all(
    model: Any, cache: SiblingCache, candidates: torch.Tensor, branching: Branching, limit: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `forward_packed`, with equally many candidates of each; spare rows carry their original, unused."""
    logits = forward_candidates(model, cache, candidates, branching, limit)
    batch, width = candidates.shape
    return logits.flatten(0, 1), torch.arange(batch, device=candidates.device) * width


def _forward_batch(model: Any, cache: SiblingCache, candidates: torch.Tensor, limit: int) -> torch.Tensor:
    batch, count = candidates.shape
    copies = SiblingCache(
        cache.num_layers, batch * count, cache.capacity, 1, cache.lengths.device, cache.kernels, cache.prefill_attention
    )
    assert cache.store is not None and cache.scratch is not None
    copies.store = cache.store.repeat_interleave(count, dim=2)
    copies.scratch = cache.scratch.new_empty(*cache.scratch.shape[:2], batch * count, 1, *cache.scratch.shape[4:])
    copies.lengths = cache.lengths.repeat_interleave(count)
    logits = _forward(model, copies, candidates.reshape(-1, 1), copies.lengths, limit, slot=0)
    cache.scratch[:, :, :, :count] = copies.scratch.unflatten(2, (batch, count))[:, :, :, :, 0]
    return logits.view(batch, count, -1)


def forward_packed(
    model: Any, cache: SiblingCache, candidates: torch.Tensor, counts: torch.Tensor, limit: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the tree, but only the first counts[b] candidates of sequence b go through the model, one row each.

    Args:
        candidates: int64 [B, Q]. counts: int64 [B] in [0, Q], at least one of them > 0.

    Returns:
        Logits [N, V] in the model's dtype, N = counts.sum(), and the row of each sequence's first candidate, int64
        [B]; meaningless where it has none.
    """
    chosen = torch.arange(candidates.shape[1]) < counts[:, None]
    rows, slots = chosen.nonzero(as_tuple=True)
    logits = forward_rows(model, cache, candidates[chosen], rows, slots, limit)
    return logits, (counts.cumsum(dim=0) - counts).clamp_max(rows.shape[0] - 1)


def forward_rows(
    model: Any, cache: SiblingCache, tokens: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, limit: int
) -> torch.Tensor:
    """Logits [N, V], in the model's dtype, of tokens int64 [N]: candidate slots[n] of sequence rows[n], int64 [N].

    Rows are ascending, slots of each sequence 0, 1, ...
    """
    cache.begin_forward(packed=(rows, slots))
    output = model(
        tokens[:, None],
        position_ids=cache.lengths[rows][:, None],
        past_key_values=cache,
        use_cache=True,
        caw_layout=Layout(cache, cache.lengths, limit, rows=rows),
    )
    return output.logits[:, 0]


def forward_drafted(model: Any, cache: SiblingCache, tree: DraftTree) -> torch.Tensor:
    """Logits [N, V], in the model's dtype, of every row of a tree; keys and values land in the store."""
    cache.begin_drafts(tree.rows, tree.places)
    output = model(
        tree.tokens[:, None],
        position_ids=tree.positions[:, None],
        past_key_values=cache,
        use_cache=True,
        caw_layout=Layout(cache, tree.positions, rows=tree.rows, places=tree.places),
    )
    return output.logits[:, 0]


def _forward(
    model: Any, cache: SiblingCache, tokens: torch.Tensor, lengths: torch.Tensor, limit: int, slot: int
) -> torch.Tensor:
    cache.begin_forward(slot)
    output = model(
        tokens,
        position_ids=lengths[:, None].expand_as(tokens),
        past_key_values=cache,
        use_cache=True,
        caw_layout=Layout(cache, lengths, limit),
    )
    return output.logits
