"""What each token of a vocabulary adds to a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each token adds behind another one: alone, some tokenizers drop the space it begins with."""
    anchor = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
    before = tokenizer.decode(anchor, clean_up_tokenization_spaces=False)
    texts = tokenizer.batch_decode([[*anchor, i] for i in ids], clean_up_tokenization_spaces=False)
    return [text.removeprefix(before) for text in texts]
