"""Teacher-forced pass: what the target model's distributions are along a reference answer.

One forward of the model over prompt + reference; the logits at position i - 1 give p_i, the record of token i. Records
are made by `Record.from_logits`, features later by `FeatureSpec.assemble`: decoding's own code.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from caw.decoding.sharing import common_length
from caw.evaluator.features import MAX_PREVIOUS
from caw.fitting.labels import TEMPLATE, EncodedText, LabelledText, digest, encode
from caw.fitting.positions import Positions
from caw.io.progress import Bar
from caw.models.rope import rope_limit
from caw.policies.entropy import entropy
from caw.record import Record

BATCH_TOKENS = 1024
MIN_SHARED = 32  # tokens; less costs more to copy than to read
PREFIX_COPIES = 4  # 4096 tokens of keys and values at most: 9 copies of 450 tokens
ROWS = 8  # logit rows per op call: they stay in the CPU's cache


def record_positions(
    model: Any,
    tokenizer: Any,
    texts: Sequence[LabelledText],
    folder: str | Path,
    *,
    template: str = TEMPLATE,
    prefix: str = "",
    batch_tokens: int = BATCH_TOKENS,
    progress: bool = True,
) -> Positions:
    """Run the model over every text and store the records of its reference tokens and their neighbours in `folder`.

    Args:
        model, tokenizer: as `caw.load_model` gives them. The model reads texts in batches of like length, padded on
            the right, where a causal model cannot see it.
        template, prefix: the prompt; see `labels.encode`.
        batch_tokens: tokens per forward, padding included (at least one text). What all texts begin with is read once;
            copies of its keys and values take the place of at most PREFIX_COPIES times as many tokens.
        progress: show a bar if stderr is a terminal.

    Overwrites what `folder` held. Raises ValueError for a text longer than the model's positions, a tokenizer without
    offsets, or logits that are not finite.
    """
    if not texts:
        raise ValueError("expected at least one labelled text, got none; check the label file")
    coded = [encode(tokenizer, text, template, prefix) for text in texts]
    made_from = {
        "template": template,
        "prefix_sha256": digest(prefix) if prefix else None,
        "labels_sha256": digest(texts),
    }
    return record_encoded(model, coded, folder, made_from, batch_tokens=batch_tokens, progress=progress)


def record_encoded(
    model: Any,
    coded: Sequence[EncodedText],
    folder: str | Path,
    made_from: dict[str, Any] | None = None,
    *,
    batch_tokens: int = BATCH_TOKENS,
    progress: bool = True,
) -> Positions:
    """`record_positions` of texts that are tokens already; `made_from` goes into the folder's meta data."""
    _check_lengths(model, coded)
    folder = Path(folder)
    # p_j exists for j >= 1 only: nothing comes before the first token
    firsts = np.array([max(1, c.first - MAX_PREVIOUS) for c in coded])
    ends = np.array([len(c.ids) + 1 for c in coded])  # the last kept position is the one behind the reference
    store = Positions.create(folder, ends - firsts, sum(len(c.key) for c in coded))
    _store_tokens(store, coded, firsts)
    order = sorted(range(len(coded)), key=lambda i: (len(coded[i].ids), i))
    with Bar(len(coded), "reading references", "documents", enabled=progress) as advance, torch.inference_mode():
        prefix = SharedPrefix.read(model, [c.ids[: first - 1] for c, first in zip(coded, firsts, strict=True)])
        lengths = [len(c.ids) - prefix.length for c in coded]
        for batch in _batches(order, lengths, batch_tokens, prefix.most_rows(batch_tokens)):
            logits, start = _forward(model, prefix, [coded[i].ids for i in batch], int(firsts[batch].min()) - 1)
            for b, i in enumerate(batch):
                own = logits[b, firsts[i] - 1 - start : ends[i] - 1 - start]  # logits of place j - 1 are those of p_j
                _store_rows(store, own, int(store.bounds[i]), coded[i])
                advance()
    meta = {
        "model": str(model.config._name_or_path),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        **(made_from or {}),
        "documents": [c.text.name for c in coded],
        "tokens": len(store),
        "key_tokens": int(store.key.sum()),
    }
    return store.close(folder, meta)


def _check_lengths(model: Any, coded: Sequence[EncodedText]) -> None:
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    for c in coded:
        if limit and len(c.ids) > limit:
            raise ValueError(
                f"prompt and reference must fit the model's {limit} positions, {c.text.name} has {len(c.ids)} tokens; "
                "use a shorter prefix or leave the document out"
            )


def _store_tokens(store: Positions, coded: Sequence[EncodedText], firsts: np.ndarray) -> None:
    done = 0
    for i, c in enumerate(coded):
        here = slice(done, done + len(c.key))
        store.arrays["token"][here] = c.ids[c.first :]
        store.arrays["key"][here] = c.key
        store.arrays["row"][here] = store.bounds[i] + c.first - firsts[i] + np.arange(len(c.key))
        store.arrays["document"][here] = i
        done = here.stop


def _batches(order: Sequence[int], lengths: Sequence[int], batch_tokens: int, most_rows: int) -> Iterator[list[int]]:
    """Runs of `order` (by length) whose padded size stays within batch_tokens and their number within most_rows."""
    batch: list[int] = []
    for i in order:
        if batch and ((len(batch) + 1) * lengths[i] > batch_tokens or len(batch) == most_rows):
            yield batch
            batch = []
        batch.append(i)
    yield batch


@dataclass(frozen=True)
class SharedPrefix:
    """What all texts begin with, few-shot examples say, read once. length: its tokens; 0 = every text is read whole."""

    length: int = 0
    cache: Any = None

    @classmethod
    def read(cls, model: Any, beginnings: Sequence[Sequence[int]]) -> SharedPrefix:
        """The prefix of all `beginnings`, which no row of logits is needed of.

        None where it is not worth it, where the model keeps something else than plain keys and values (windows,
        recurrent states), and where its rotary embedding depends on how long the whole text is.
        """
        length = common_length(beginnings)
        if len(beginnings) < 2 or length < MIN_SHARED or rope_limit(model) is not None:
            return cls()
        ids = torch.tensor([beginnings[0][:length]], device=model.device)
        cache = getattr(model.base_model(input_ids=ids, use_cache=True), "past_key_values", None)
        plain = isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)
        return cls(length, cache) if plain else cls()

    def most_rows(self, batch_tokens: int) -> int:
        """Rows whose copies of the prefix hold no more keys and values than PREFIX_COPIES batches without one."""
        return max(1, PREFIX_COPIES * batch_tokens // max(self.length, 1))

    def of(self, rows: int) -> Any:
        """A copy of the cache for so many rows, to be written to; None without one."""
        if self.cache is None:
            return None
        copied = copy.deepcopy(self.cache)
        copied.batch_repeat_interleave(rows)
        return copied


def _forward(model: Any, prefix: SharedPrefix, rows: Sequence[tuple[int, ...]], first: int) -> tuple[torch.Tensor, int]:
    """Logits [B, n, V] of right-padded rows and the place of the first of them, at most `first`."""
    longest = max(len(row) for row in rows)
    padded = [[*row[prefix.length :], *[row[-1]] * (longest - len(row))] for row in rows]
    ids = torch.tensor(padded, device=model.device)
    cache = prefix.of(len(rows))
    arguments: dict[str, Any] = {"input_ids": ids, "use_cache": cache is not None, "past_key_values": cache}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        # the vocabulary's rows cost most of the memory. By index, not by count: that would hand a strided slice to the
        # head, which torch multiplies 16 times slower in bfloat16 on a CPU
        arguments["logits_to_keep"] = torch.arange(first - prefix.length, ids.shape[1], device=ids.device)
    logits = model(**arguments).logits
    return logits, longest - logits.shape[1]


def _store_rows(store: Positions, logits: torch.Tensor, start: int, coded: EncodedText) -> None:
    """Write the records of logits [n, V] into rows start..start + n."""
    for begin in range(0, logits.shape[0], ROWS):
        some = logits[begin : begin + ROWS]
        record = Record.from_logits(some)
        if not bool(record.logsumexp.isfinite().all()):
            raise ValueError(f"expected finite logits, the model gives others on {coded.text.name}; use float32")
        here = slice(start + begin, start + begin + some.shape[0])
        store.arrays["values"][here] = record.values.cpu().numpy()
        store.arrays["ids"][here] = record.ids.cpu().numpy()
        store.arrays["logsumexp"][here] = record.logsumexp.cpu().numpy()
        store.arrays["entropy"][here] = entropy(some).cpu().numpy()
