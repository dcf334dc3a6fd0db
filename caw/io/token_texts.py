"""The text of each token of a vocabulary, and end tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

# GGUF keeps a single end-of-text id, but chat models end turns and texts with different ones
END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<|end|>", "</s>")


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds after another one: alone, some tokenizers drop its leading space."""
    anchor = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
    before = tokenizer.decode(anchor, clean_up_tokenization_spaces=False)
    texts = tokenizer.batch_decode([[*anchor, i] for i in ids], clean_up_tokenization_spaces=False)
    return [text.removeprefix(before) for text in texts]


def tokenizer_end_ids(tokenizer: Any) -> set[int]:
    """Return a tokenizer's end-of-text id and its well-known end tokens."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in END_TOKENS}
    special = set(tokenizer.all_special_ids)
    if not special.issuperset(ids.values()):
        special |= _added_ids(tokenizer)
    # unknown tokens become <unk>, which ends nothing, except where it is the end token itself
    unknown = getattr(tokenizer, "unk_token_id", None)
    named = getattr(tokenizer, "unk_token", None)
    found = {i for token, i in ids.items() if i in special and (i != unknown or token == named)}
    return found if tokenizer.eos_token_id is None else found | {tokenizer.eos_token_id}


# of each tokenizer how many tokens it had, and which of them were added: of Gemma's 6,000 a list takes milliseconds
_added: WeakKeyDictionary[Any, tuple[int, frozenset[int]]] = WeakKeyDictionary()


def _added_ids(tokenizer: Any) -> frozenset[int]:
    size = len(tokenizer) if hasattr(tokenizer, "__len__") else None
    known = None if size is None else _added.get(tokenizer)
    if known is not None and known[0] == size:
        return known[1]
    found = frozenset(getattr(tokenizer, "added_tokens_decoder", {}))
    if size is not None:
        _added[tokenizer] = size, found
    return found


def require_tokenizer(tokenizer: Any) -> None:
    """Raise TypeError unless it is a transformers tokenizer; a class of them is not."""
    named = hasattr(tokenizer, "all_special_ids") and hasattr(tokenizer, "convert_tokens_to_ids")
    usable = callable(tokenizer) and named and not isinstance(tokenizer, type)
    if not usable:
        found = f"the class {tokenizer.__name__}" if isinstance(tokenizer, type) else type(tokenizer).__name__
        raise TypeError(f"tokenizer must be the model's tokenizer, got {found}; see caw.load_model")
