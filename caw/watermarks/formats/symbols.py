"""The native format with a payload: the context of a token picks one of r lists or race keys, by its symbol."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from caw import prf
from caw.arrays import float64, space_of, torch
from caw.watermarks.base import TokenScores, contexts_of, native_scores
from caw.watermarks.green_list import GreenScheme
from caw.watermarks.keys import signed
from caw.watermarks.payload import Bits, PayloadScores
from caw.watermarks.race import Race, exponential
from caw.watermarks.scheme import Scheme

if TYPE_CHECKING:  # which holds these
    from caw.watermarks.kgw import LeftHash

S = TypeVar("S", bound="Symbols")


class Symbols(Scheme):
    """What lists and races with a payload have in common; bits: the payload."""

    bits: Bits

    def placed(self: S, device: torch.device) -> S:
        other = copy.copy(self)
        other.bits = self.bits.placed(device)
        return other

    def check_writable(self) -> None:
        self.bits.check_writable()

    def payload_scores(self, ids: torch.Tensor) -> PayloadScores:
        """Score every token of one text int64 [n] under each symbol of the code."""
        contexts = contexts_of(ids, self.window)
        values, evidence = self.by_symbol(contexts, ids[:, None])
        return PayloadScores(values, self.bits.positions(contexts), evidence)

    @abstractmethod
    def by_symbol(self, contexts: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores float64 [n, r] of tokens [n, 1] under each symbol, and their evidence int64 [n, E]."""


class SymbolLists(Symbols, GreenScheme):
    """The lists of a native scheme, r = 1 / gamma of them behind every context: the symbol's is green."""

    def __init__(self, lists: LeftHash, bits: Bits) -> None:
        super().__init__(lists.window, *lists.keys)
        self.lists, self.bits, self.code, self.width = lists, bits, bits.code, lists.width

    @property
    def fraction(self) -> float:
        return self.lists.fraction

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self._list_of(self.lists.words(context, tokens)) == self.bits.symbols(context)[:, None]

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        words = self.lists.vocabulary_words(context, vocab_size)
        return self._list_of(words) == self.bits.symbols(context)[:, None]

    def score_ref(self, ids: torch.Tensor) -> TokenScores:
        contexts, tokens = contexts_of(ids, self.window), ids[:, None]
        values = float64(self.green_tokens(contexts, tokens)[:, 0])
        return native_scores(values, self.lists.seeds(contexts, tokens), ids, races=False)

    def by_symbol(self, contexts: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        space, lists = space_of(tokens), self._list_of(self.lists.words(contexts, tokens))
        values = float64(space.concatenate([lists == symbol for symbol in range(self.bits.r)], 1))
        return values, space.concatenate([self.lists.seeds(contexts, tokens), tokens], 1)

    def _list_of(self, words: torch.Tensor) -> torch.Tensor:
        """Return the list of each word, int64: lists of floor(gamma 2^24) numbers each, 0 the first."""
        return (words >> (32 - prf.UNIFORM_BITS)) // self.lists.threshold


class SymbolRace(Symbols, Race):
    """A race under one of r keys: the symbol's."""

    def __init__(self, window: int, bits: Bits) -> None:
        super().__init__(bits.race_keys[0], window, None)
        self.keys, self.bits, self.code = bits.race_keys, bits, bits.code

    def race_keys(self, context: torch.Tensor) -> torch.Tensor:
        symbols = self.bits.symbols(context)
        racing = torch.full_like(symbols, signed(self.keys[0]))
        for symbol in range(1, self.bits.r):  # numbers, so that a graph captures no copy of a table
            racing = torch.where(symbols == symbol, signed(self.keys[symbol]), racing)
        return racing

    def by_symbol(self, contexts: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        words = space_of(tokens).concatenate([prf.context_words(key, contexts, tokens) for key in self.keys], 1)
        return exponential(words), contexts
