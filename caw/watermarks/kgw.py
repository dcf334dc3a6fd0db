"""KGW: green lists seeded by the tokens before (Kirchenbauer et al. 2023, arXiv 2301.10226 and 2306.04634).

Native format, under the key derived for domain `caw/kgw` (see `prf`), word = PRF(key, context, token):

    lefthash  context = the last `context_width` generated tokens (default 1)
              green iff (word >> 8) < floor(gamma 2^24)
    selfhash  window = the last `context_width` - 1 generated tokens (default 3)
              seed = the smallest PRF(key, (x,), token) over x in the window (the anchored minimum)
              green iff (PRF(key, (seed, token), token) >> 8) < floor(gamma 2^24)

The pair of the candidate with itself is left out of the minimum: with it, a share of all tests would depend on the
token alone and repeat all through a text. What counts as evidence once is (context, token), for selfhash (seed, token).

Formats of other systems: `formats.rules`. What counts as evidence once there is (seed of the list, token).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from caw.checks import require_choice, require_int
from caw.triton_kernels import prf_ref as prf
from caw.triton_kernels.ladder_ref import Ladder
from caw.watermarks import keys
from caw.watermarks.base import Native, Position, TokenScores, require_format, require_vocab_size
from caw.watermarks.foreign_list import ForeignGreenList
from caw.watermarks.formats import FOREIGN, find_rule
from caw.watermarks.payload import PayloadCode, PayloadScores, check_payload, positions_of, require_payload

DOMAIN = b"caw/kgw"
DEFAULT_WIDTH = {"lefthash": 1, "selfhash": 4}
MAX_WIDTH = 16
NGRAMS_ONCE = ("lm-watermarking", "sbw")  # their detectors count each n-gram of a text once


@dataclass(frozen=True)
class KGW(ForeignGreenList):
    """Green lists that change with the tokens before.

    Args:
        key: int below 2^64, text or bytes.
        gamma: green share of the vocabulary, in (0, 1).
        delta: logit bonus of green tokens at strength 1.
        seeding: "lefthash" or "selfhash"; foreign formats have more, see `formats.rules`.
        context_width: tokens in the hashed window, the candidate included for selfhash; None = 1 / 4, or the
            format's own.
        format: "native", "transformers", "markllm", "lm-watermarking" or "sbw".
        vocab_size: width of a foreign format's lists: that of the model's logits. `generate` fills it in.
        payload, payload_bits: a number below 2^payload_bits (at most 2^32) that the text carries, see `payload`; its
            reader gives the bits alone. Native format only, gamma 1/2, 1/4 or 1/16.

    Raises TypeError or ValueError naming the argument.
    """

    name: ClassVar[str] = "kgw"

    def validate(self) -> None:
        super().validate()
        require_format(self.format, ("native", *FOREIGN))
        require_vocab_size(self.vocab_size)
        check_payload(self.payload, self.payload_bits)
        if self.payload_bits:
            if self.foreign:
                raise ValueError(f"payloads need format 'native', got {self.format!r}; leave the payload out")
            PayloadCode(self.payload_bits, round(1 / self.gamma) if 1 / self.gamma % 1 == 0 else 0)
        if self.foreign:
            self.validate_foreign(find_rule(self.format, self.seeding))
            return
        require_choice("seeding", self.seeding, tuple(DEFAULT_WIDTH), "lefthash")
        if self.context_width is None:
            object.__setattr__(self, "context_width", DEFAULT_WIDTH[self.seeding])
        require_int("context_width", self.context_width, 2 if self.seeding == "selfhash" else 1, MAX_WIDTH)

    @property
    def window(self) -> int:
        assert self.context_width is not None
        return self.context_width - (not self.foreign and self.seeding == "selfhash")

    @property
    def native(self) -> Native | None:
        if self.foreign or self.payload_bits:
            return None
        return Native(int(self.seeding == "selfhash"), self._list_key, prf.green_threshold(self.gamma))

    @cached_property
    def code(self) -> PayloadCode | None:
        return PayloadCode(self.payload_bits, round(1 / self.gamma)) if self.payload_bits else None

    def check_strength(self, max_strength: float) -> None:
        super().check_strength(max_strength)
        require_payload(self.payload, self.payload_bits)

    @cached_property
    def _list_key(self) -> int:
        return keys.derive_key(self.secret, DOMAIN)

    def ladder(self, position: Position, max_strength: float) -> Ladder:
        if self.foreign and self.lists.rule.tested:
            return self.tested_ladder(position, max_strength)
        return super().ladder(position, max_strength)

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        if self.foreign:
            return self.lists.green(context, tokens)
        return self._is_green(self._words(context, tokens), context)

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        if self.foreign:
            return self.lists.green_vocabulary(context, vocab_size)
        if self.seeding == "lefthash":
            return self._is_green(prf.vocabulary_words(self._list_key, context, vocab_size), context)
        seeds = prf.vocabulary_words(self._list_key, context[:, :1], vocab_size)
        for i in range(1, self.window):
            seeds = torch.minimum(seeds, prf.vocabulary_words(self._list_key, context[:, i : i + 1], vocab_size))
        tokens = torch.arange(vocab_size, device=context.device).expand_as(seeds)
        return self._is_green(self._selfhash_words(seeds, tokens), context)

    def payload_scores(self, ids: torch.Tensor) -> PayloadScores:
        """1 for the symbol whose list holds the token."""
        assert self.code is not None
        contexts, tokens = self.contexts(ids), ids[:, None]
        seed = contexts if self.seeding == "lefthash" else self._seeds(contexts, tokens)
        colour = (self._words(contexts, tokens)[:, 0] >> (32 - prf.UNIFORM_BITS)) * self.code.r >> prf.UNIFORM_BITS
        return PayloadScores(
            values=torch.nn.functional.one_hot(colour, self.code.r).double(),
            positions=positions_of(self.secret, contexts, self.code.positions),
            evidence=torch.cat([seed, tokens], dim=1),
        )

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        found = self.native_scores(ids)
        if found is None:
            return self.score_tokens_ref(ids)
        values, seeds = found
        context = self.contexts(ids) if self.seeding == "lefthash" else seeds[:, None]
        return TokenScores(values, torch.cat([context, ids[:, None]], dim=1), torch.ones_like(ids, dtype=torch.bool))

    def score_tokens_ref(self, ids: torch.Tensor) -> TokenScores:
        """The same in plain PyTorch."""
        if self.foreign:
            return self.lists.score(self.contexts(ids), ids, ngrams_once=self.format in NGRAMS_ONCE)
        contexts, tokens = self.contexts(ids), ids[:, None]
        seed = contexts if self.seeding == "lefthash" else self._seeds(contexts, tokens)
        return TokenScores(
            values=self.green_tokens(contexts, tokens)[:, 0].double(),
            evidence=torch.cat([seed, tokens], dim=1),
            scored=torch.ones_like(ids, dtype=torch.bool),
        )

    def _seeds(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Anchored minimum of each token [B, N] over the window [B, W] -> 32-bit words int64 [B, N]."""
        per_pair = [prf.context_words(self._list_key, column[:, None], tokens) for column in context.unbind(1)]
        return torch.stack(per_pair).amin(dim=0)

    def _selfhash_words(self, seeds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        state = prf.absorb_context(self._list_key, [seeds, tokens])
        return prf.token_word(self._list_key, state, tokens)

    def _words(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The words that decide about tokens [B, N] after contexts [B, W], int64 [B, N]."""
        if self.seeding == "lefthash":
            return prf.context_words(self._list_key, context, tokens)
        return self._selfhash_words(self._seeds(context, tokens), tokens)

    def _is_green(self, words: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Whether words [B, N] fall in the green list; with a payload, in the list of the context's symbol."""
        if self.code is None:
            return prf.green(words, self.gamma)
        require_payload(self.payload, self.payload_bits)
        assert self.payload is not None
        symbols = torch.from_numpy(self.code.symbols(self.payload)).to(words.device)
        symbol = symbols[positions_of(self.secret, context, self.code.positions)]
        return (words >> (32 - prf.UNIFORM_BITS)) * self.code.r >> prf.UNIFORM_BITS == symbol[:, None]
