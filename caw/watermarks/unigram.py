"""Unigram: one green list for every position (Zhao et al. 2023, arXiv 2306.17439).

Native format: green iff (PRF(key derived for domain `caw/unigram`, empty context, token) >> 8) < floor(gamma 2^24).
Each distinct token of a text is evidence once.

Format "markllm": MarkLLM's mask, int(gamma V) times True shuffled by NumPy's PCG64; see `formats.numpy_mask`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from caw.triton_kernels import prf_ref as prf
from caw.watermarks import keys
from caw.watermarks.base import (
    Native,
    TokenScores,
    VocabularyBound,
    require_foreign_key,
    require_format,
    require_vocab_size,
)
from caw.watermarks.formats.numpy_mask import numpy_mask
from caw.watermarks.green_list import GreenList

DOMAIN = b"caw/unigram"


@dataclass(frozen=True)
class Unigram(VocabularyBound, GreenList):
    """One fixed green list: the most robust to edits, the easiest to learn from outputs.

    Args:
        key: int below 2^64, text or bytes.
        gamma: green share of the vocabulary, in (0, 1).
        delta: logit bonus of green tokens at strength 1.
        format: "native" or "markllm".
        vocab_size: size of a foreign format's mask: that of the model's logits. `generate` fills it in.

    Raises TypeError or ValueError naming the argument.
    """

    format: str = "native"
    vocab_size: int | None = None

    name: ClassVar[str] = "unigram"

    def validate(self) -> None:
        super().validate()
        require_format(self.format, ("native", "markllm"))
        require_vocab_size(self.vocab_size)
        size = self.vocab_size
        if self.foreign and size is not None and not 0 < int(self.gamma * size) < size:
            raise ValueError(f"gamma must leave both lists of {size} tokens non-empty, got {self.gamma!r}; use 0.25")
        if self.foreign:
            require_foreign_key(self.format, self.secret)

    @property
    def window(self) -> int:
        return 0

    @property
    def foreign(self) -> bool:
        return self.format != "native"

    @property
    def green_fraction(self) -> float:
        """Probability that a token is green under the null hypothesis."""
        if not self.foreign:
            return super().green_fraction
        return float(self._mask.sum()) / self._mask.shape[0]

    @cached_property
    def _mask(self) -> torch.Tensor:
        self.check_readable()
        assert self.vocab_size is not None
        return numpy_mask(self.secret, self.gamma, self.vocab_size)

    @property
    def native(self) -> Native | None:
        if self.foreign:
            return None
        return Native(0, self._list_key, prf.green_threshold(self.gamma))

    @cached_property
    def _list_key(self) -> int:
        return keys.derive_key(self.secret, DOMAIN)

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        if self.foreign:
            mask = self._mask.to(tokens.device)
            inside = (tokens >= 0) & (tokens < mask.shape[0])
            return mask[torch.where(inside, tokens, 0)] & inside
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
