"""Agreement of two label files: precision, recall and F1 of key characters and key tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from caw_lab.training.labels import LabelledText, encode


def agreement(
    found: Sequence[LabelledText], reference: Sequence[LabelledText], tokenizer: Any | None = None
) -> dict[str, Any]:
    """Measure labels `found` against `reference`, on the documents that both have.

    Characters are those that are no white space; with a tokenizer also tokens, by `labels.key_tokens`. Returns
    {"documents", "characters": {"precision", "recall", "f1", "base_rate", "count"}, "tokens": the same}; base_rate is
    the reference's share of key: calling everything key has that precision, recall 1 and F1 2r / (1 + r).

    Raises ValueError if the files share no document or their texts differ.
    """
    by_name = {text.name: text for text in reference}
    pairs = [(text, by_name[text.name]) for text in found if text.name in by_name]
    if not pairs:
        raise ValueError("label files must have common documents, got files that share none; compare others")
    for mine, theirs in pairs:
        if mine.solution != theirs.solution:
            raise ValueError(f"{mine.name} must be the same text in both files, it is not; use one --data-dir")
    result: dict[str, Any] = {"documents": len(pairs)}
    result["characters"] = _figures([(key_characters(a), key_characters(b)) for a, b in pairs])
    if tokenizer is not None:
        result["tokens"] = _figures(
            [(np.array(encode(tokenizer, a).key), np.array(encode(tokenizer, b).key)) for a, b in pairs]
        )
    return result


def key_characters(text: LabelledText) -> np.ndarray:
    """Return whether each non-white-space character of the solution is in a span, bool [n]."""
    mark = np.zeros(len(text.solution), dtype=bool)
    for start, end in text.spans:
        mark[start:end] = True
    return mark[[not c.isspace() for c in text.solution]]


def _figures(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    found, reference = (np.concatenate(side) for side in zip(*pairs, strict=True))
    both = int((found & reference).sum())
    precision, recall = both / max(int(found.sum()), 1), both / max(int(reference.sum()), 1)
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    figures = {"precision": precision, "recall": recall, "f1": f1, "base_rate": float(reference.mean())}
    return {**{name: round(value, 4) for name, value in figures.items()}, "count": len(reference)}
