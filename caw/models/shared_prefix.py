"""Shared beginnings of texts, such as few-shot examples, read once and copied into the rows of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from caw.models.eval_mode import EvalMode
from caw.models.facts import decoding_device, rope_limit

MIN_SHARED = 32  # tokens; less costs more to copy than to read
PREFIX_COPIES = 4  # 4096 tokens of keys and values at most: 9 copies of 450 tokens


@dataclass(frozen=True)
class SharedPrefix:
    """length: its tokens; 0 = every text is read in full. cache: keys and values of at least that many, in one row."""

    length: int = 0
    cache: Any = None

    @classmethod
    def read(cls, model: Any, beginnings: Sequence[Sequence[int]]) -> "SharedPrefix":
        """Read the common prefix of all `beginnings`, whose logits are not needed.

        Empty if it is not worth it, if the model stores something other than plain keys and values (windows, recurrent
        states), or if its rotary embedding depends on the text's total length.
        """
        length = common_length(beginnings) if len(beginnings) > 1 else 0
        if length < MIN_SHARED or rope_limit(model) is not None:
            return NO_PREFIX
        ids = torch.tensor([beginnings[0][:length]], device=decoding_device(model))
        with EvalMode(model):
            cache = getattr(model.base_model(input_ids=ids, use_cache=True), "past_key_values", None)
        plain = isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)
        return cls(length, cache) if plain else NO_PREFIX

    def most_rows(self, batch_tokens: int) -> int:
        """Return the most rows whose copies of the prefix take the memory of PREFIX_COPIES batches without one."""
        return max(1, PREFIX_COPIES * batch_tokens // max(self.length, 1))

    def copies(self, rows: int) -> DynamicCache | None:
        """Return a writable cache with the prefix for this many rows; None without a prefix."""
        if not self.length:
            return None
        copied = DynamicCache()
        for index, layer in enumerate(self.cache.layers):
            keys, values = (x[:, :, : self.length].expand(rows, -1, -1, -1) for x in (layer.keys, layer.values))
            copied.update(keys, values, index)
        return copied


NO_PREFIX = SharedPrefix()


def common_length(rows: Sequence[Sequence[int]]) -> int:
    """Return the number of tokens that all rows (at least one) begin with."""
    ordered = [tuple(row) for row in rows]
    first, last = min(ordered), max(ordered)  # in lexicographic order: what these two share all share
    differing = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return next(differing, min(map(len, ordered)))
