"""What a caller may hand to detection, and how it becomes arrays of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

ID_LIMIT = 1 << 31
SHAPES = "a str, one flat sequence of token ids, or a list of either"


def split_input(text_or_ids: Any) -> tuple[list[Any], bool]:
    """(texts, whether there is just one): a str, a flat sequence of ids, or a list of either; [] is no texts.

    A list is taken for what its first item is. Raises TypeError for other types.
    """
    if isinstance(text_or_ids, (str, np.ndarray, torch.Tensor)):
        return [text_or_ids], True
    if not isinstance(text_or_ids, (list, tuple)):
        raise TypeError(f"expected {SHAPES}, got {type(text_or_ids).__name__}; pass the generated text or its ids")
    single = len(text_or_ids) > 0 and not _is_text(text_or_ids[0])
    return ([text_or_ids], True) if single else (list(text_or_ids), False)


def to_ids(items: Sequence[Any], tokenizer: Any) -> list[np.ndarray]:
    """Token ids int64 [n] of each text; texts are tokenised in one call, without special tokens.

    Raises TypeError or ValueError: text without tokenizer, mixed or nested lists, ids that are not in [0, 2^31).
    """
    texts = [isinstance(item, str) for item in items]
    if not any(texts):
        return [_ids(item, i) for i, item in enumerate(items)]
    if not all(texts):
        raise TypeError("expected a list of texts or a list of id lists, got both in one list; make two calls")
    if tokenizer is None:
        raise TypeError("text needs the tokenizer of the model that wrote it, got None; pass it, or pass token ids")
    # verbose=False: a text longer than the model's positions is no problem here and deserves no warning
    encoded = tokenizer(list(items), add_special_tokens=False, verbose=False)["input_ids"]
    return [_ids(ids, i) for i, ids in enumerate(encoded)]


def _ids(item: Any, index: int) -> np.ndarray:
    where = f"token ids must be a flat sequence of integers in [0, 2**31), text {index} is"
    if isinstance(item, torch.Tensor):
        item = item.detach().cpu().numpy()
    if not isinstance(item, (list, tuple, np.ndarray)):
        raise TypeError(f"{where} of type {type(item).__name__}; pass {SHAPES}")
    try:
        array = np.asarray(item)
    except ValueError:  # ragged
        raise ValueError(f"{where} a nested one; pass a list of flat ones, without padding") from None
    if array.ndim != 1:
        raise ValueError(f"{where} of shape {array.shape}; pass a list of flat ones, without padding")
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{where} of {array.dtype} values; pass what the tokenizer returned as input_ids")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= ID_LIMIT:
        bad = low if low < 0 else high
        raise ValueError(f"{where} one with {bad}; remove padding, and labels such as -100")
    return array.astype(np.int64)


def _is_text(item: Any) -> bool:
    """Whether an item of a list is a text of its own, not a token id (ids may be NumPy scalars or 0-d tensors)."""
    if isinstance(item, (np.ndarray, torch.Tensor)):
        return item.ndim > 0
    return isinstance(item, (str, list, tuple))
