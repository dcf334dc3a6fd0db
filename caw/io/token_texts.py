"""The text of each token of a vocabulary, and end tokens."""

import re
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from caw.io.memo import Memo, memo_of

# GGUF keeps a single end-of-text id, but chat models end turns and texts with different ones
END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<|end|>", "</s>")


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds after another one: alone, some tokenizers drop its leading space."""
    anchor = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
    before = tokenizer.decode(anchor, clean_up_tokenization_spaces=False)
    texts = tokenizer.batch_decode([[*anchor, i] for i in ids], clean_up_tokenization_spaces=False)
    return [text.removeprefix(before) for text in texts]


# how byte-level tokenizers write bytes: visible ones as themselves, others by new letters
VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
LETTERS = {chr(byte): byte for byte in VISIBLE}
LETTERS |= {chr(256 + i): byte for i, byte in enumerate(sorted(set(range(256)) - set(VISIBLE)))}
BYTE = re.compile("<0x([0-9A-F]{2})>")  # a byte in SentencePiece's vocabulary
INCOMPLETE = "\ufffd"  # what a decoder shows of a character whose bytes are not all there


def token_bytes(tokenizer: Any, token: int, text: str) -> bytes | None:
    """Return the bytes of a token of this text; None for part of a character whose name does not tell which."""
    if INCOMPLETE not in text:
        return text.encode("utf-8", "surrogatepass")
    [name] = tokenizer.convert_ids_to_tokens([token])
    if byte := BYTE.fullmatch(name or ""):
        return bytes.fromhex(byte[1])
    if name and LETTERS.keys() >= set(name):
        found = bytes(LETTERS[letter] for letter in name)
        return found if found.decode("utf-8", "replace") == text else None
    return text.encode() if name == text else None


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


_added: Memo[frozenset[int]] = WeakKeyDictionary()  # by length of the tokenizer
_counts: Memo[int] = WeakKeyDictionary()


def _added_ids(tokenizer: Any) -> frozenset[int]:
    """Return the ids of added tokens; a list of Gemma's 6,000 takes milliseconds."""
    known, size = memo_of(_added, tokenizer), len(tokenizer) if hasattr(tokenizer, "__len__") else None
    if size is None or size not in known:
        known[size] = frozenset(getattr(tokenizer, "added_tokens_decoder", {}))
    return known[size]


def id_count(tokenizer: Any) -> int:
    """Return one more than a tokenizer's greatest id: more than the number of its tokens where ids have gaps."""
    known, size = memo_of(_counts, tokenizer), len(tokenizer)
    if size not in known:
        vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
        known[size] = max(size, 1 + max(vocabulary.values(), default=-1))
    return known[size]


def require_tokenizer(tokenizer: Any) -> None:
    """Raise TypeError unless it is a transformers tokenizer; a class of them is not."""
    if not is_tokenizer(tokenizer):
        found = f"the class {tokenizer.__name__}" if isinstance(tokenizer, type) else type(tokenizer).__name__
        raise TypeError(f"tokenizer must be the model's tokenizer, got {found}; see caw.load_model")


def is_tokenizer(tokenizer: Any) -> bool:
    """Return whether it turns text into ids and names its special tokens, as a transformers tokenizer does."""
    named = hasattr(tokenizer, "all_special_ids") and hasattr(tokenizer, "convert_tokens_to_ids")
    return callable(tokenizer) and named and not isinstance(tokenizer, type)
