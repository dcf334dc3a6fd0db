"""The vocabulary that a file was made for: a digest of the tokens behind the ids.

Tables of weights and evaluators name tokens by their ids, which mean other tokens to another model. Compared are the
strings of the vocabulary by id. Left out are tokens of the form <...> and [...]: fine-tunes rename reserved ones, and
.gguf files pad with "[PAD...]". So one model has one digest, whether it is a folder or a .gguf file, and tokens added
behind the others change nothing. How a text is cut (merges, pre-tokenizer) is not compared: it decides which tokens
stand in a text, and not what an id means.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from caw.io.memo import Memo, memo_of
from caw.io.show import shown

RESERVED = re.compile(r"<.*>|\[.*\]", re.DOTALL)
_known: Memo[Vocabulary] = WeakKeyDictionary()


@dataclass(frozen=True)
class Vocabulary:
    """The first `tokens` ids of a tokenizer and the SHA-256, in hex, of their tokens."""

    tokens: int
    digest: str

    @classmethod
    def of(cls, tokenizer: Any) -> Vocabulary:
        """Return the vocabulary of transformers' tokenizer, to its last unreserved token. TypeError for others."""
        return cls._first(tokenizer, None)

    @classmethod
    def read(cls, said: Any) -> Vocabulary:
        """Parse the output of `as_text`. ValueError for other texts."""
        try:
            tokens, digest = json.loads(said)
        except (TypeError, ValueError):
            tokens, digest = None, None
        if type(tokens) is not int or tokens < 0 or not re.fullmatch("[0-9a-f]{64}", str(digest)):
            raise ValueError(f"vocabulary must be a number of tokens and their digest, got {shown(said)}")
        return cls(tokens, digest)

    def as_text(self) -> str:
        return json.dumps([self.tokens, self.digest])

    def agrees(self, tokenizer: Any) -> bool:
        """Return whether these ids stand for the same tokens there."""
        return len(tokenizer) >= self.tokens and self._first(tokenizer, self.tokens) == self

    def check(self, tokenizer: Any, what: str, remedy: str) -> None:
        """Raise ValueError, which begins with `what` and ends with `remedy`, unless the tokenizer agrees."""
        if not self.agrees(tokenizer):
            raise ValueError(
                f"{what} made for a vocabulary of {self.tokens} tokens, whose digest begins with {self.digest[:8]}, "
                f"found a tokenizer of {len(tokenizer)} whose ids stand for other tokens; {remedy}"
            )

    @classmethod
    def _first(cls, tokenizer: Any, tokens: int | None) -> Vocabulary:
        """Return the vocabulary of the first `tokens` ids, None = up to the last unreserved one."""
        if not names_tokens(tokenizer):
            raise TypeError(
                f"tokenizer must name its tokens as transformers' do, {type(tokenizer).__name__} does not; pass what "
                "caw.load_model or AutoTokenizer.from_pretrained gives"
            )
        # reading a vocabulary takes a tenth of a second
        kept, name = memo_of(_known, tokenizer), (len(tokenizer), -1 if tokens is None else tokens)
        if name not in kept:
            found = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer) if tokens is None else tokens)))
            kept[name] = cls._of_names(found, whole=tokens is not None)
        return kept[name]

    @classmethod
    def _of_names(cls, names: Sequence[str | None], *, whole: bool) -> Vocabulary:
        ordinary = ["" if name is None or RESERVED.fullmatch(name) else name for name in names]
        end = len(ordinary)
        while not whole and end and not ordinary[end - 1]:
            end -= 1
        return cls(end, hashlib.sha256(json.dumps(ordinary[:end]).encode()).hexdigest())


def names_tokens(tokenizer: Any) -> bool:
    return callable(getattr(tokenizer, "convert_ids_to_tokens", None)) and hasattr(tokenizer, "__len__")
