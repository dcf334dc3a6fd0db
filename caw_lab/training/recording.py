"""Record a model's distributions along reference answers, by decoding's own code: training data of evaluators."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from caw.evaluator.features import MAX_PREVIOUS
from caw.io.progress import Bar
from caw.models.teacher import BATCH_TOKENS, teacher_forced
from caw.policies.entropy import entropy
from caw.record import Record
from caw_lab.training.labels import TEMPLATE, EncodedText, LabelledText, digest, encode
from caw_lab.training.positions import Positions

ROWS = 8  # logit rows per op call: they stay in the CPU's cache


def record_positions(
    model: Any,
    tokenizer: Any,
    texts: Sequence[LabelledText],
    folder: str | Path,
    *,
    template: str = TEMPLATE,
    prefix: str = "",
    quantization: str | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: bool = True,
) -> Positions:
    """Run the model over every text and store the records of its reference tokens and their neighbours in `folder`.

    Args:
        model, tokenizer: as `caw.load_model` gives them.
        template, prefix: the prompt; see `labels.encode`.
        quantization: the `weights` that the model was loaded with, for the folder's meta data.
        batch_tokens: tokens of a forward; see `teacher_forced`. What all texts begin with is read once.
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
        "quantization": quantization,
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
    """Run `record_positions` on texts that are tokens already; `made_from` goes into the folder's metadata."""
    # p_j exists for j >= 1 only: nothing comes before the first token
    firsts = [max(1, c.first - MAX_PREVIOUS) for c in coded]
    names = [c.text.name for c in coded]
    given = [(c.ids, first) for c, first in zip(coded, firsts, strict=True)]
    read = teacher_forced(model, given, names=names, batch_tokens=batch_tokens, share=True)
    folder = Path(folder)
    store = _begin_store(coded, firsts, folder)
    with Bar(len(coded), "reading texts", "texts", enabled=progress, announced=True) as advance, torch.inference_mode():
        for i, logits in read:
            _store_rows(store, logits, int(store.bounds[i]), names[i])
            advance()
    meta = {
        "model": str(model.config._name_or_path),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        **(made_from or {}),
        "documents": names,
        "tokens": len(store),
        "key_tokens": int(store.key.sum()),
    }
    return store.close(folder, meta)


def _begin_store(coded: Sequence[EncodedText], firsts: Sequence[int], folder: Path) -> Positions:
    """Make the arrays of these texts, whose records are kept from `firsts` on, without the records."""
    ends = [len(c.ids) + 1 for c in coded]  # the last kept position is the one behind the reference
    store, done = Positions.create(folder, np.subtract(ends, firsts), sum(len(c.key) for c in coded)), 0
    for i, c in enumerate(coded):
        here = slice(done, done + len(c.key))
        store.arrays["token"][here] = c.ids[c.first :]
        store.arrays["key"][here] = c.key
        store.arrays["row"][here] = store.bounds[i] + c.first - firsts[i] + np.arange(len(c.key))
        store.arrays["document"][here] = i
        done = here.stop
    return store


def _store_rows(store: Positions, logits: torch.Tensor, start: int, name: str) -> None:
    """Write the records of logits [n, V] into rows start..start + n."""
    for begin in range(0, logits.shape[0], ROWS):
        some = logits[begin : begin + ROWS]
        record = Record.from_logits(some)
        if not bool(record.logsumexp.isfinite().all()):
            raise ValueError(f"the model's logits must be finite, they are not on {name}; use float32")
        here = slice(start + begin, start + begin + some.shape[0])
        store.arrays["values"][here] = record.values.cpu().numpy()
        store.arrays["ids"][here] = record.ids.cpu().numpy()
        store.arrays["logsumexp"][here] = record.logsumexp.cpu().numpy()
        store.arrays["entropy"][here] = entropy(some).cpu().numpy()
