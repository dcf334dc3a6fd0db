"""Effect of replacing one token on the rest of a text, which is otherwise unchanged.

Used by the counterfactual labeler and by the evaluator without labels. The text before a replaced token is read once;
each replacement is a row of one forward over a horizon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from caw.models.shared_prefix import SharedPrefix
from caw.models.teacher import forward

BATCH_TOKENS = 512
FORWARD = 24  # tokens that cost as much as beginning another forward, which reads all weights

Change = tuple[int, int]  # place, the token that stands there instead


def replaced_logits(
    model: Any,
    ids: Sequence[int],
    changes: Sequence[Change],
    read: SharedPrefix,
    horizon: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (index, logits [n, V]) of each change: the distributions of the n tokens that follow its position.

    Args:
        ids: the text. changes: by ascending place. read: what was read of the text (`teacher.read_and_keep`).
        horizon: the most following tokens to look at; None = all. A change of the last token has n = 0.
        batch_tokens: tokens of a forward, over all its rows (at least one row).

    Call it in inference mode. Deterministic for the same arguments; logits depend on the batch by rounding only.
    """
    for first, last, stop in _groups([place for place, _ in changes], len(ids), horizon, batch_tokens):
        begin = changes[first][0]
        rows = [[*ids[:place], token, *ids[place + 1 : stop]] for place, token in changes[first:last]]
        logits, start = forward(model, rows, begin, replace(read, length=begin))
        for row, (place, _) in enumerate(changes[first:last]):
            behind = len(ids) - place - 1 if horizon is None else min(horizon, len(ids) - place - 1)
            # row j of the forward's logits is of the token at start + j + 1
            yield first + row, logits[row, place - start : place - start + behind]


def _groups(
    places: Sequence[int], length: int, horizon: int | None, batch_tokens: int
) -> Iterator[tuple[int, int, int]]:
    """Yield runs [first, last) of changes whose rows fit a forward, and where those rows end."""
    behind = length if horizon is None else horizon
    first = 0
    while first < len(places):
        last, begin = first + 1, places[first]
        while last < len(places):
            now, more = (
                rows * (min(length, places[first + rows - 1] + 1 + behind) - begin)
                for rows in (last - first, last + 1 - first)
            )
            alone = min(length, places[last] + 1 + behind) - places[last]
            if more > batch_tokens or more > now + alone + FORWARD:  # what is read again would cost more than a forward
                break
            last += 1
        yield first, last, min(length, places[last - 1] + 1 + behind)
        first = last
