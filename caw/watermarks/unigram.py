"""Unigram: one green list for every position (Zhao et al. 2023, arXiv 2306.17439).

Native format: green iff (PRF(key derived for domain `caw/unigram`, empty context, token) >> 8) < floor(gamma 2^24).
Each distinct token of a text is evidence once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from caw.watermarks import prf
from caw.watermarks.base import TokenScores, require_format
from caw.watermarks.green_list import GreenList

DOMAIN = b"caw/unigram"


@dataclass(frozen=True)
class Unigram(GreenList):
    """One fixed green list: the most robust to edits, the easiest to learn from outputs.

    Args:
        key: int below 2^64, text or bytes.
        gamma: green share of the vocabulary, in (0, 1).
        delta: logit bonus of green tokens at strength 1.
        format: "native".
        vocab_size: only foreign formats need it.

    Raises TypeError or ValueError naming the argument.
    """

    format: str = "native"
    vocab_size: int | None = None

    name: ClassVar[str] = "unigram"

    def validate(self) -> None:
        super().validate()
        require_format(self.format, ("native",))

    @property
    def window(self) -> int:
        return 0

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        list_key = prf.derive_key(self.secret, DOMAIN)
        return prf.green(prf.token_word(list_key, prf.absorb_context(list_key, []), tokens), self.gamma)

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        tokens = torch.arange(vocab_size, device=context.device)
        return self.green_tokens(context, tokens).expand(context.shape[0], -1)

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        return TokenScores(
            values=self.green_tokens(self.contexts(ids), ids).double(),
            evidence=ids[:, None],
            scored=torch.ones_like(ids, dtype=torch.bool),
        )
