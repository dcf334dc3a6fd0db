"""The inputs of detection, converted to arrays of token ids."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import numpy as np

from caw.arrays import is_tensor
from caw.io.token_texts import id_count
from caw.io.unicode import is_unicode

ID_LIMIT = 1 << 31
SHAPES = "a str, one flat sequence of token ids, or a list of either"
MISSING = "must be a text, found none; leave it out"
HALF = "must be valid Unicode, found half of a surrogate pair; repair the text"
INTEGERS = [f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)]  # what a tensor of ids may hold

if TYPE_CHECKING:
    import torch

    class Column(Protocol):
        """A column of a table, such as a pandas or polars Series."""

        def to_list(self) -> list[Any]: ...

    One: TypeAlias = str | Sequence[int] | np.ndarray | torch.Tensor
    Many: TypeAlias = list[str] | tuple[str, ...] | list[list[int]] | Column


def split_input(text_or_ids: Any) -> tuple[list[Any], bool]:
    """Return (texts, whether there is a single one): a str, a flat sequence of ids, or a list of either; [] is no
    texts.

    A list is classified by its first item that is not missing (None, NaN); a column of a table and an array of objects
    are lists of their items. Raises TypeError for other types.
    """
    tensor = is_tensor(text_or_ids)
    if not (tensor or isinstance(text_or_ids, (str, list, tuple))) and hasattr(text_or_ids, "__array__"):
        text_or_ids = np.asarray(text_or_ids)  # of a column; an array stays itself
    if isinstance(text_or_ids, np.ndarray) and text_or_ids.ndim == 1 and text_or_ids.dtype.kind in "OUT":
        text_or_ids = text_or_ids.tolist()
    if tensor or isinstance(text_or_ids, (str, np.ndarray)):
        return [text_or_ids], True
    if not isinstance(text_or_ids, (list, tuple)):
        raise TypeError(f"expected {SHAPES}, got {type(text_or_ids).__name__}; pass the generated text or its ids")
    first = next((item for item in text_or_ids if not is_missing(item)), "")
    single = not _is_text(first)
    return ([text_or_ids], True) if single else (list(text_or_ids), False)


def to_ids(items: Sequence[Any], tokenizer: Any) -> list[np.ndarray]:
    """Return token ids int64 [n] of each text; texts are tokenised in one call, without special tokens.

    Raises TypeError or ValueError: text without a tokenizer or with half of a surrogate pair, mixed or nested lists,
    ids outside [0, 2^31), or outside the vocabulary of the given tokenizer.
    """
    texts = [isinstance(item, str) for item in items]
    if not any(texts):
        found = [flat_ids(item, f"text {i}") for i, item in enumerate(items)]
        for i, ids in enumerate(found):
            check_known(ids, tokenizer, f"text {i}")
        return found
    if not all(texts):
        raise TypeError("expected a list of texts or a list of id lists, got a mixture; make two calls")
    if tokenizer is None:
        raise TypeError("text requires the tokenizer of the model that wrote it, got None; pass it, or pass token ids")
    for i, item in enumerate(items):
        if complaint := unreadable(item, f"text {i}"):
            raise ValueError(complaint)
    return [flat_ids(ids, f"text {i}") for i, ids in enumerate(_encoded(items, tokenizer))]


def check_known(ids: np.ndarray, tokenizer: Any, name: str) -> None:
    """Raise ValueError, naming the text, for ids int64 [n] beyond a tokenizer's vocabulary; None = unknown."""
    size = len(tokenizer) if hasattr(tokenizer, "__len__") else ID_LIMIT
    beyond = np.flatnonzero(ids >= size)
    if beyond.size:
        size = id_count(tokenizer)  # only here: it takes as long as many short texts
        beyond = np.flatnonzero(ids >= size)
    if beyond.size:
        raise ValueError(
            f"token ids must be below the {size} of the tokenizer's vocabulary, {name} has {ids[beyond[0]]} at index "
            f"{beyond[0]}; pass the tokenizer of the model that wrote it, or None with ids"
        )


def unreadable(item: Any, name: str) -> str:
    """Return why no tokenizer can read this text, or that it is missing; "" for every other text, and for ids."""
    if is_missing(item):
        return f"{name} {MISSING}"
    return f"{name} {HALF}" if isinstance(item, str) and not is_unicode(item) else ""


def read_prefix(prefix: Any) -> str | tuple[int, ...]:
    """Convert text or ids that a text may begin with. TypeError or ValueError for anything else."""
    if isinstance(prefix, str) and (complaint := unreadable(prefix, "prefix")):
        raise ValueError(complaint)
    return prefix if isinstance(prefix, str) else tuple(flat_ids(prefix, "prefix").tolist())


def is_missing(item: Any) -> bool:
    """Return whether this is how a table says that it has no text: None, NaN or pandas' NA."""
    return item is None or type(item).__name__ == "NAType" or (isinstance(item, float) and item != item)


def _encoded(texts: Sequence[str], tokenizer: Any) -> Any:
    try:
        # verbose=False: a text longer than the model's positions is no problem here and deserves no warning
        encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        if len(encoded) == len(texts):
            return encoded
        reason = f"{len(encoded)} lists for {len(texts)} texts"
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        reason = str(error).split("\n")[0]
    raise TypeError(
        "tokenizer must turn a list of texts into input_ids like a transformers tokenizer, "
        f"{type(tokenizer).__name__} does not ({reason}); pass AutoTokenizer.from_pretrained(...)"
    )


def flat_ids(item: Any, name: str) -> np.ndarray:
    """Return token ids int64 [n]. TypeError or ValueError, naming the input, if it is not a flat sequence of them."""

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
        if kinds - {int}:
            item = [_array(i, refuse) if is_tensor(i) else i for i in item]
    elif is_tensor(item):
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


def _array(tensor: Any, refuse: Callable[[str, str], NoReturn]) -> np.ndarray:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_meta or tensor.is_nested or str(tensor.layout) != "torch.strided":
        kind = "meta" if tensor.is_meta else "nested" if tensor.is_nested else "sparse"
        refuse(f"a {kind} tensor", "pass a dense one")
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), np.int64)
    if dtype not in INTEGERS:
        refuse(f"of {dtype} values", "pass what the tokenizer returned as input_ids")
    return tensor.detach().cpu().numpy()


def _is_text(item: Any) -> bool:
    """Return whether an item of a list is a text, not a token id (ids may be NumPy scalars or 0-d tensors)."""
    if isinstance(item, np.ndarray) or is_tensor(item):
        return item.ndim > 0
    return isinstance(item, (str, list, tuple))
