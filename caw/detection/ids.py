"""What a caller may hand to detection, and how it becomes arrays of token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from caw.io.unicode import is_unicode

ID_LIMIT = 1 << 31
SHAPES = "a str, one flat sequence of token ids, or a list of either"
HALF = "must be valid Unicode, found half of a surrogate pair, which no tokenizer reads; repair the text"
# what a tensor of ids may hold
INTEGERS = (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64)


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

    Raises TypeError or ValueError: text without tokenizer or with half of a surrogate pair, mixed or nested lists, ids
    that are not in [0, 2^31).
    """
    texts = [isinstance(item, str) for item in items]
    if not any(texts):
        return [flat_ids(item, f"text {i}") for i, item in enumerate(items)]
    if not all(texts):
        raise TypeError("expected a list of texts or a list of id lists, got both in one list; make two calls")
    if tokenizer is None:
        raise TypeError("text needs the tokenizer of the model that wrote it, got None; pass it, or pass token ids")
    for i, item in enumerate(items):
        if complaint := unreadable(item, f"text {i}"):
            raise ValueError(complaint)
    return [flat_ids(ids, f"text {i}") for i, ids in enumerate(_encoded(items, tokenizer))]


def unreadable(item: Any, name: str) -> str:
    """Why no tokenizer reads this text; "" for every other one, and for ids."""
    return f"{name} {HALF}" if isinstance(item, str) and not is_unicode(item) else ""


def read_prefix(prefix: Any) -> str | tuple[int, ...]:
    """Text or ids that a text may begin with; TypeError or ValueError for anything else."""
    if complaint := unreadable(prefix, "prefix"):
        raise ValueError(complaint)
    return prefix if isinstance(prefix, str) else tuple(flat_ids(prefix, "prefix").tolist())


def _encoded(texts: Sequence[str], tokenizer: Any) -> Any:
    """The tokenizer's ids of each text."""
    try:
        # verbose=False: a text longer than the model's positions is no problem here and deserves no warning
        encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        if len(encoded) == len(texts):
            return encoded
        reason = f"{len(encoded)} lists for {len(texts)} texts"
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        reason = str(error).split("\n")[0]
    raise TypeError(
        f"tokenizer must turn a list of texts into input_ids as transformers' do, {type(tokenizer).__name__} did not "
        f"({reason}); pass AutoTokenizer.from_pretrained(...)"
    )


def flat_ids(item: Any, name: str) -> np.ndarray:
    """Token ids int64 [n]; TypeError or ValueError, naming it, for what is no flat sequence of them."""

    def refuse(found: str, remedy: str, kind: type[Exception] = TypeError) -> NoReturn:
        raise kind(
            f"token ids must be a flat sequence of integers in [0, 2**31), {name} is {found}; {remedy}"
        ) from None

    dense, own = "pass a list of flat ones, without padding", "pass what the tokenizer returned as input_ids"
    if isinstance(item, (list, tuple)):
        kinds = set(map(type, item))
        arrays = (i for i in item if isinstance(i, np.ndarray)) if np.ndarray in kinds else ()
        # NumPy would take them for 0 and 1 among integers
        if kinds & {bool, np.bool_} or any(array.dtype == bool for array in arrays):
            refuse("one with a bool", own)
        if any(issubclass(kind, torch.Tensor) for kind in kinds):
            item = [_array(i, refuse) if isinstance(i, torch.Tensor) else i for i in item]
    elif isinstance(item, torch.Tensor):
        item = _array(item, refuse)
    elif not isinstance(item, np.ndarray):
        refuse(f"of type {type(item).__name__}", f"pass {SHAPES}")
    try:
        array = np.asarray(item)
    except ValueError:  # ragged
        refuse("a nested one", dense, ValueError)
    if array.ndim != 1:
        refuse(f"of shape {array.shape}", dense, ValueError)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        refuse(f"of {array.dtype} values", own)
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= ID_LIMIT:
        bad = low if low < 0 else high
        refuse(f"one with {bad}", "remove padding, and labels such as -100", ValueError)
    return array.astype(np.int64)


def _array(tensor: torch.Tensor, refuse: Callable[[str, str], NoReturn]) -> np.ndarray:
    """A dense tensor of integers as an array."""
    if tensor.is_meta or tensor.is_nested or tensor.layout is not torch.strided:
        kind = "meta" if tensor.is_meta else "nested" if tensor.is_nested else "sparse"
        refuse(f"a {kind} tensor", "pass a dense one")
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), np.int64)
    if tensor.dtype not in INTEGERS:
        refuse(f"of {str(tensor.dtype).removeprefix('torch.')} values", "pass what the tokenizer returned as input_ids")
    return tensor.detach().cpu().numpy()


def _is_text(item: Any) -> bool:
    """Whether an item of a list is a text of its own, not a token id (ids may be NumPy scalars or 0-d tensors)."""
    if isinstance(item, (np.ndarray, torch.Tensor)):
        return item.ndim > 0
    return isinstance(item, (str, list, tuple))
