"""Unigram: one green list for every position (Zhao et al. 2023, arXiv 2306.17439).

Native format: green iff (PRF(key derived for domain `caw/unigram`, empty context, token) >> 8) < floor(gamma 2^24).
Each distinct token of a text is evidence once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from caw.watermarks import prf
from caw.watermarks.base import Native, TokenScores, require_format
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

    @property
    def native(self) -> Native | None:
        return Native(0, self._list_key, prf.green_threshold(self.gamma))

    @cached_property
    def _list_key(self) -> int:
        return prf.derive_key(self.secret, DOMAIN)

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        state = prf.absorb_context(self._list_key, [])
        return prf.green(prf.token_word(self._list_key, state, tokens), self.gamma)

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        tokens = torch.arange(vocab_size, device=context.device)
        return self.green_tokens(context, tokens).expand(context.shape[0], -1)

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        found = self.native_scores(ids)
        if found is None:
            return self.score_tokens_ref(ids)
        return TokenScores(found[0], ids[:, None], torch.ones_like(ids, dtype=torch.bool))

    def score_tokens_ref(self, ids: torch.Tensor) -> TokenScores:
        """The same in plain PyTorch."""
        return TokenScores(
            values=self.green_tokens(self.contexts(ids), ids).double(),
            evidence=ids[:, None],
            scored=torch.ones_like(ids, dtype=torch.bool),
        )
