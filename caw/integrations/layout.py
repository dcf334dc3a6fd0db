"""JSON whose white space stays the model's own: a mark goes into it first, where no grammar minds.

Each token belongs to a kind: the white space that it writes outside of strings. Only those of the kind of the likeliest
token may be chosen, so that words, numbers and names are marked.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch

from caw.io.token_texts import token_texts

PREFIX = re.compile(r"[\s{}\[\]:,]*")


class JsonLayout:
    """The kinds of the tokens of a vocabulary, int64 [V]: outside of strings, and within one that a token may end."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self.texts = token_texts(tokenizer, range(min(vocab_size, len(tokenizer))))
        self.texts += [""] * (vocab_size - len(self.texts))
        self._outside = _kinds([PREFIX.match(text)[0] for text in self.texts])  # type: ignore[index]
        self._inside = _kinds(["".join(text.partition('"')[1:]) for text in self.texts])

    def keep(self, logits: torch.Tensor, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return logits float [R, V], -inf for tokens of other kinds than the likeliest after each text's ids."""
        kinds = torch.stack([self._inside if self._in_string(ids) else self._outside for ids in texts])
        kinds = kinds.to(logits.device)
        return logits.masked_fill(kinds != kinds.gather(1, logits.argmax(1, keepdim=True)), -torch.inf)

    def _in_string(self, ids: Sequence[int]) -> bool:
        whole = "".join(self.texts[token] for token in ids).replace("\\\\", "").replace('\\"', "")
        return whole.count('"') % 2 == 1


def _kinds(texts: Sequence[str]) -> torch.Tensor:
    """Equal numbers for equal white space."""
    numbers = dict[str, int]()
    return torch.tensor([numbers.setdefault(re.sub(r"\S", "", text), len(numbers)) for text in texts])
