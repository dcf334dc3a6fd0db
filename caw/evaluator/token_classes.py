"""Coarse token classes by text: digits, operators, names, words.

What matters in a text is often a number or a name, and a distribution that puts its probability on digits is about to
write one, whatever its shape. Features count probability per class (`FeatureSpec.classes`); the table from token id to
class is made once from the tokenizer and stored with the evaluator's weights, so decoding needs no text.
"""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

from caw.io.memo import Memo, memo_of
from caw.io.token_texts import id_count, is_tokenizer, token_texts, tokenizer_end_ids
from caw.io.vocabulary import names_tokens

CLASSES = (
    "space",  # nothing but white space, or nothing at all; special tokens are what their text is
    "line break",
    "digits",
    "operator",
    "currency",
    "punctuation",
    "symbol",
    "capitalised",
    "short word",  # up to three letters, with a space before: mostly function words
    "word",
    "continuation",  # letters that go on in a word
)
LINE_BREAK = CLASSES.index("line break")
OPERATORS = "+-*/=x\u00d7\u00f7%<>^"
CURRENCIES = "$\u20ac\u00a3"
PUNCTUATION = ".,;:!?"
SHORT = 3
SAMPLE = 256  # ids that are compared to tell one tokenizer from another


def classify(text: str, line_ends: bool = False) -> int:
    """Return the index into CLASSES of a token's text, as the tokenizer decodes it alone.

    line_ends: every text that contains a line break is a "line break", not only pure ones. Tokenizers that merge
    punctuation with the following break (".\n") end most lines with such tokens.
    """
    return LINE_BREAK if line_ends and ("\n" in text or "\r" in text) else CLASSES.index(_name(text))


def _name(text: str) -> str:
    word = text.strip()
    if not word:
        return "line break" if "\n" in text else "space"
    first = word[0]
    if word.isdigit():
        return "digits"
    if first in OPERATORS and (len(word) == 1 or not first.isalpha()):
        return "operator"
    if first in CURRENCIES:
        return "currency"
    if not first.isalnum():
        return "punctuation" if first in PUNCTUATION else "symbol"
    if first.isupper():
        return "capitalised"
    if not text[0].isspace():
        return "continuation"
    return "short word" if len(word) <= SHORT else "word"


def class_table(tokenizer: Any, vocab_size: int, line_ends: bool = False) -> torch.Tensor:
    """Return the class of each token id, uint8 [vocab_size]; unknown ids are "space". line_ends: see `classify`."""
    known = min(vocab_size, id_count(tokenizer))
    table = torch.full((vocab_size,), classify(""), dtype=torch.uint8)
    table[:known] = _classes(tokenizer, range(known), line_ends)
    return table


def class_table_of(tokenizer: Any, line_ends: bool = False) -> torch.Tensor:
    """Return the class of every id that a tokenizer knows, uint8 [V]; made once, and written to by nobody."""
    made, about = memo_of(_tables, tokenizer), _about(tokenizer, line_ends)
    if about not in made:
        made[about] = class_table(tokenizer, id_count(tokenizer), line_ends)
    return made[about]


def reads_classes(tokenizer: Any) -> bool:
    """Return whether token classes can be read from a tokenizer."""
    return is_tokenizer(tokenizer) and names_tokens(tokenizer) and hasattr(tokenizer, "batch_decode")


def _about(tokenizer: Any, line_ends: bool) -> tuple[Any, ...]:
    """What a tokenizer's classes depend on and callers change; all of its end ids would take Gemma's 0.6 ms a call."""
    return len(tokenizer), tokenizer.eos_token_id if line_ends else None


def _classes(tokenizer: Any, ids: Sequence[int], line_ends: bool) -> torch.Tensor:
    ends = tokenizer_end_ids(tokenizer) if line_ends else set()
    texts = token_texts(tokenizer, ids)
    found = [LINE_BREAK if i in ends else classify(text, line_ends) for i, text in zip(ids, texts, strict=True)]
    return torch.tensor(found, dtype=torch.uint8)


def check_tokenizer(table: torch.Tensor, tokenizer: Any, line_ends: bool = False) -> None:
    """Raise ValueError if the table was made for another tokenizer; compares a sample of ids, once a tokenizer."""
    known, about = memo_of(_passed, tokenizer), _about(tokenizer, line_ends)
    if about in known and known[about]() is table:
        return
    size = id_count(tokenizer)
    shared = min(len(table), size)
    ids = torch.linspace(0, shared - 1, min(SAMPLE, shared)).long().tolist()
    differing = int((_classes(tokenizer, ids, line_ends) != table[ids]).sum())
    if differing or size > len(table):
        found = f"{differing} of {len(ids)} sampled tokens differ"
        if size > len(table):
            found += f", and it has {size} ids, the evaluator's {len(table)}"
        raise ValueError(
            f"the evaluator's token classes must match this model's tokenizer, {found}; train an evaluator for this "
            "model, or try Evaluator.for_tokenizer"
        )
    known[about] = ref(table)


_passed: Memo[ref[torch.Tensor]] = WeakKeyDictionary()  # the last table that matched, which nobody writes to
_tables: Memo[torch.Tensor] = WeakKeyDictionary()
