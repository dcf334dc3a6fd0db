"""This library's own format: green lists and races whose numbers come from the PRF (`caw/prf.py`).

    LeftHash   word of a token = PRF(key, the last W tokens, token); W = 0 for Unigram
    SelfHash   seed = the smallest PRF(key, (x,), token) over x in the last W tokens (the anchored minimum);
               word = PRF(key, (seed, token), token)
    Race       word as for LeftHash; F_t = its uniform number; noise -log(-log F_t)

A token is green where (word >> 8) // floor(gamma 2^24) equals the symbol of its context: 0 unless a payload is
carried, and then one of r = 1 / gamma. A race takes the key of that symbol.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch

from caw import ops, prf
from caw.ladder import race_winner_ref
from caw.watermarks.base import Native, TokenScores, contexts_of
from caw.watermarks.green_list import GreenScheme
from caw.watermarks.keys import derive_key, signed
from caw.watermarks.payload import Payload, PayloadScores
from caw.watermarks.scheme import Keys, RaceScheme, Scheme

SUBKEY = b"caw/subkey"


class NativeScheme(Scheme):
    """Base of the native format's lists and races: scoring kernels, and the payload.

    number: of the compiled ops, None if they do not support it; see `Native`. threshold: of green words, 0 for races.
    once: whether mode "compat" also counts equal evidence once, as vLLM does for races, rather than every token.
    salted: whether the candidate is hashed together with the context.
    """

    number: int | None
    threshold = 0
    once: ClassVar[bool] = False
    salted: ClassVar[bool] = False

    def __init__(self, secret: int, window: int, payload: Payload | None = None) -> None:
        self.payload = payload or Payload()
        self.code = self.payload.code
        super().__init__(secret, window)
        if self.code is None and self.number is not None:
            self.native = Native(self.number, self.keys[0], self.threshold)

    def check_writable(self) -> None:
        self.payload.check_writable()

    def settle(self, device: torch.device) -> None:
        self.payload = self.payload.placed(device)

    def score(self, ids: torch.Tensor) -> TokenScores:
        if self.native is None:
            return self.score_ref(ids)
        return self.score_keyed(ids, torch.full_like(ids, self.native.signed_key))

    def score_keyed(self, ids: torch.Tensor, keys: torch.Tensor) -> TokenScores:
        native = self.native
        assert native is not None
        values, seeds = ops.score_tokens(ids, self.window, keys, native.scheme, native.threshold)
        return self._scores(ids, values, seeds[:, None] if self.salted else contexts_of(ids, self.window))

    def score_ref(self, ids: torch.Tensor) -> TokenScores:
        contexts, tokens = contexts_of(ids, self.window), ids[:, None]
        symbols = self.payload.symbols(contexts, self.keys)[:, None]
        values = self.values_by_symbol(contexts, tokens).gather(1, symbols)[:, 0]
        return self._scores(ids, values, self.seeds(contexts, tokens))

    def payload_scores(self, ids: torch.Tensor) -> PayloadScores:
        contexts, tokens = contexts_of(ids, self.window), ids[:, None]
        return PayloadScores(
            values=self.values_by_symbol(contexts, tokens),
            positions=self.payload.positions(contexts, self.keys),
            evidence=self.evidence(self.seeds(contexts, tokens), tokens),
        )

    def _scores(self, ids: torch.Tensor, values: torch.Tensor, seeds: torch.Tensor) -> TokenScores:
        evidence, every = self.evidence(seeds, ids[:, None]), torch.ones_like(ids, dtype=torch.bool)
        return TokenScores(values, evidence, every, compat_evidence=evidence if self.once else None)

    def seeds(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return what a token's word depends on besides the token [B, 1] itself, int64 [B, E]."""
        return context

    def evidence(self, seeds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the evidence of tokens int64 [n, 1] with their seeds [n, E]."""
        return torch.cat([seeds, tokens], dim=1)

    @abstractmethod
    def values_by_symbol(self, contexts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the score of each token [n, 1] after its context [n, W] under each of the r symbols, float64 [n,
        r].
        """


class LeftHash(NativeScheme, GreenScheme):
    """Green lists seeded by the last W tokens.

    domain: of the key that is derived for the lists. width: W, plus 1 if salted. subkey: which of the keys derived
    behind that one; 0 = itself.
    """

    number = 0
    default_width: ClassVar[int] = 1

    def __init__(
        self, secret: int, domain: bytes, gamma: float, width: int, payload: Payload | None = None, subkey: int = 0
    ) -> None:
        self.domain, self.threshold, self.width, self.subkey = domain, prf.green_threshold(gamma), width, subkey
        super().__init__(secret, width - self.salted, payload)

    def derive(self, secret: int) -> Keys:
        key = derive_key(secret, self.domain)
        if self.subkey:
            key = derive_key(key, SUBKEY + self.subkey.to_bytes(2, "big"))
        return key, *self.payload.derive(secret)

    @property
    def fraction(self) -> float:
        return self.threshold / (1 << prf.UNIFORM_BITS)

    def words(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the words that decide about tokens [B, N] after contexts [B, W], int64 [B, N]."""
        return prf.context_words(self.keys[0], context, tokens)

    def vocabulary_words(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Return the words of all tokens, int64 [B, V], at a quarter of the cost."""
        return prf.vocabulary_words(self.keys[0], context, vocab_size)

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self._lists(self.words(context, tokens)) == self.payload.symbols(context, self.keys)[:, None]

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        words = self.vocabulary_words(context, vocab_size)
        return self._lists(words) == self.payload.symbols(context, self.keys)[:, None]

    def values_by_symbol(self, contexts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        lists = torch.arange(self.payload.r, device=tokens.device)
        return (self._lists(self.words(contexts, tokens)) == lists).double()

    def _lists(self, words: torch.Tensor) -> torch.Tensor:
        """Return the list of each word, int64: lists of floor(gamma 2^24) numbers each, 0 the first."""
        return (words >> (32 - prf.UNIFORM_BITS)) // self.threshold


class OneList(LeftHash):
    """The same green list after every context."""

    def words(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return prf.token_word(self.keys[0], prf.absorb_context(self.keys[0], []), tokens)

    def vocabulary_words(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        return self.words(context, torch.arange(vocab_size, device=context.device)).expand(context.shape[0], -1)


class SelfHash(LeftHash):
    """Green lists of the candidate and the earlier token whose pair with it has the smallest word.

    The minimum excludes the pair of the candidate with itself; otherwise a share of all tests would depend on the token
    alone and repeat throughout a text.
    """

    number = 1
    default_width = 4
    salted = True

    def seeds(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return torch.stack([prf.context_words(self.keys[0], x[:, None], tokens) for x in context.unbind(1)]).amin(dim=0)

    def words(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self._seeded(self.seeds(context, tokens), tokens)

    def vocabulary_words(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        seeds = prf.vocabulary_words(self.keys[0], context[:, :1], vocab_size)
        for i in range(1, self.window):
            seeds = torch.minimum(seeds, prf.vocabulary_words(self.keys[0], context[:, i : i + 1], vocab_size))
        return self._seeded(seeds, torch.arange(vocab_size, device=context.device).expand_as(seeds))

    def _seeded(self, seeds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return prf.token_word(self.keys[0], prf.absorb_context(self.keys[0], [seeds, tokens]), tokens)


class Race(NativeScheme, RaceScheme):
    """A race under the raw key, as vLLM's Gumbel watermark runs it; number: RACE_TOP_K, RACE_SCALE or None."""

    once = True

    def __init__(self, secret: int, window: int, number: int | None, payload: Payload | None = None) -> None:
        self.number = number
        super().__init__(secret, window, payload)

    def derive(self, secret: int) -> Keys:
        return *self.payload.race_keys(secret), *self.payload.derive(secret)

    def words(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the words that race, int64 [B, N]: those of the key of the context's symbol."""
        symbol = self.payload.symbols(context, self.keys)
        return self._by_symbol(context, tokens)[symbol, torch.arange(len(symbol), device=context.device)]

    def noise(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return prf.gumbel(self.words(context, tokens))

    def winner(
        self, logits: torch.Tensor, context: torch.Tensor, temperature: float, keys: torch.Tensor | None, native: bool
    ) -> torch.Tensor:
        op = ops.race_winner if native else race_winner_ref
        return op(logits, context, self.race_keys(context) if keys is None else keys, temperature)

    def race_keys(self, context: torch.Tensor) -> torch.Tensor:
        """The key that each context [B, W] races under, int64 [B]."""
        symbols = self.payload.symbols(context, self.keys)
        racing = torch.full_like(symbols, signed(self.keys[0]))
        for symbol in range(1, self.payload.r):
            racing = torch.where(symbols == symbol, signed(self.keys[symbol]), racing)
        return racing

    def evidence(self, seeds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return seeds

    def values_by_symbol(self, contexts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return exponential(self._by_symbol(contexts, tokens)[:, :, 0].T)

    def _by_symbol(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return words int64 [r, B, N] under the key of each symbol."""
        return torch.stack([prf.context_words(key, context, tokens) for key in self.keys[: self.payload.r]])


def exponential(words: torch.Tensor) -> torch.Tensor:
    """Return -log(1 - F) of words, float64: Exponential(1) on unmarked text."""
    return -torch.log1p(-prf.uniform(words))


ROUTE = b"caw/dual-key route"


class DualKeyRace(Race):
    """vLLM's dual-key Gumbel watermark: each position races with one of two keys.

    Keys A and B are derived from the user's key (domains "key_a", "key_b"). A share `alpha` of the positions races with
    B. A token's score is (1 - alpha) times that under A plus alpha times that under B. vLLM picks the key of a position
    at random. Here the context picks it, under a third key that readers do not need.
    """

    def __init__(self, secret: int, window: int, alpha: float) -> None:
        self.alpha, self.shares = alpha, (1 - alpha, alpha)
        super().__init__(secret, window, number=None)

    def derive(self, secret: int) -> Keys:
        return derive_key(secret, b"key_a"), derive_key(secret, b"key_b"), derive_key(secret, ROUTE)

    def words(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return prf.context_words(self.race_keys(context)[:, None], context, tokens)

    def race_keys(self, context: torch.Tensor) -> torch.Tensor:
        route = prf.context_words(self.keys[2], context, torch.zeros_like(context[:, :1]))[:, 0]
        a = torch.full_like(route, signed(self.keys[0]))
        return torch.where(prf.uniform(route) < self.alpha, signed(self.keys[1]), a)

    def values_by_symbol(self, contexts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        a, b = (exponential(prf.context_words(key, contexts, tokens)) for key in self.keys[:2])
        return (1 - self.alpha) * a + self.alpha * b
