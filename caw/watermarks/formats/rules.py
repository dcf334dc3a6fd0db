"""Which schemes of which systems can be written and read, and the lists they lead to.

    format          schemes
    transformers    lefthash, selfhash                                    WatermarkingConfig / WatermarkDetector
    lm-watermarking lefthash (= simple_1), additive, minhash, skipgram, selfhash (= algorithm-3)
    markllm         lefthash (= time), additive, skip, min: KGW; sweet: SWEET and EWD
    sbw             lefthash (= simple_1), simple_4, minhash, skipgram, selfhash: Philox, see `sbw`

Their context is prompt + generated tokens. Where it is too short they mark nothing, and their detectors skip the first
tokens of a text, which lack it. A scheme that hashes the candidate too ("salted") would need a list for each token of
the vocabulary; transformers tests only the 40 likeliest tokens, lm-watermarking 41 (its loop ends after index 40).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from caw.io.show import shown
from caw.watermarks.base import MISSING, TokenScores
from caw.watermarks.formats import sbw, seeding
from caw.watermarks.formats.lists import PermutationLists


@dataclass(frozen=True)
class SeedRule:
    """One scheme of one system.

    seeds: see `seeding.Seeds`. width: default context width, the candidate included if salted.
    salted: the candidate is hashed too. tested: a salted scheme tests this many of the likeliest tokens; 0 = all.
    keyless: the seed that contexts with token 0 may have under every key, so that its list says nothing about the key;
    None = there is none. philox: a token's own Philox word decides, not a list.
    pads: a context may miss tokens, which then count as 0. modulo: keys count modulo the size of the vocabulary.
    """

    seeds: seeding.Seeds
    width: int = 1
    salted: bool = False
    tested: int = 0
    keyless: int | None = None
    philox: bool = False
    pads: bool = False
    modulo: bool = False


_TIME = SeedRule(seeding.markllm_kgw("time"), modulo=True)
_SIMPLE = SeedRule(seeding.additive, keyless=0)
_SBW_SELFHASH = SeedRule(sbw.selfhash, width=4, salted=True, philox=True, pads=True)
FOREIGN: dict[str, dict[str, SeedRule]] = {
    "transformers": {
        "lefthash": SeedRule(seeding.transformers_lefthash, keyless=0),
        "selfhash": SeedRule(seeding.transformers_selfhash, salted=True, tested=40),
    },
    "lm-watermarking": {
        "lefthash": _SIMPLE,
        "simple_1": _SIMPLE,
        "additive": _SIMPLE,
        "minhash": SeedRule(seeding.minhash, width=4, keyless=seeding.HASH_OF_ZERO),
        "skipgram": SeedRule(seeding.skipgram, width=5, keyless=seeding.HASH_OF_ZERO),
        "selfhash": SeedRule(seeding.minhash_selfhash, width=4, salted=True, tested=41),
        "algorithm-3": SeedRule(seeding.minhash_selfhash, width=4, salted=True, tested=41),
    },
    "markllm": {
        "lefthash": _TIME,
        "time": _TIME,
        "additive": SeedRule(seeding.markllm_kgw("additive"), modulo=True),
        "skip": SeedRule(seeding.markllm_kgw("skip"), modulo=True),
        "min": SeedRule(seeding.markllm_kgw("min"), modulo=True),
        "sweet": SeedRule(seeding.markllm_product, keyless=0),
    },
    "sbw": {
        "lefthash": SeedRule(sbw.additive, philox=True, pads=True, keyless=0),
        "simple_1": SeedRule(sbw.additive, philox=True, pads=True, keyless=0),
        "simple_4": SeedRule(sbw.additive, width=4, philox=True, pads=True, keyless=0),
        "minhash": SeedRule(sbw.minhash, width=4, philox=True, pads=True, keyless=sbw.HASH_OF_ZERO),
        "skipgram": SeedRule(sbw.skipgram, width=5, philox=True, pads=True, keyless=sbw.HASH_OF_ZERO),
        "selfhash": _SBW_SELFHASH,
    },
}


def find_rule(format_name: str, scheme: str) -> SeedRule:
    """The rule of a scheme; ValueError naming the known ones."""
    known = FOREIGN[format_name]
    if not isinstance(scheme, str) or scheme not in known:
        names = ", ".join(known)
        raise ValueError(f"seeding of format {format_name!r} must be one of {names}, got {shown(scheme)}; choose one")
    return known[scheme]


@dataclass
class ForeignLists:
    """The green lists of one rule, key, gamma and vocabulary.

    rule, width: the scheme and its context width (the candidate included if salted). key: below 2^63.
    vocab_size: width of the lists, which is the model's (padded) vocabulary for transformers and MarkLLM.
    """

    rule: SeedRule
    key: int = field(repr=False)
    gamma: float
    vocab_size: int
    width: int

    def __post_init__(self) -> None:
        self.size = int(self.vocab_size * self.gamma)
        self.lists = PermutationLists(self.vocab_size, self.size, keep=not self.rule.salted)

    @property
    def needed(self) -> int:
        """Tokens before a position that a detector of this system wants to see."""
        return self.width - self.rule.salted

    @property
    def green_fraction(self) -> float:
        """Share of the vocabulary in a list."""
        return sbw.green_fraction(self.gamma) if self.rule.philox else self.size / self.vocab_size

    def seeds(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Seeds int64 [B, N] of tokens [B, N] after contexts [B, W]; missing tokens count as 0 and mean nothing."""
        used = context[:, context.shape[1] - self.needed :].clamp_min(0)
        return self.rule.seeds(self.key, self.vocab_size, used, tokens.clamp_min(0)).expand(tokens.shape)

    def marks(self, context: torch.Tensor) -> torch.Tensor:
        """Whether the system marks after contexts [B, W] (it wants `width` tokens before), bool [B]."""
        if self.rule.pads:
            return torch.ones(context.shape[0], dtype=torch.bool, device=context.device)
        return (context[:, context.shape[1] - self.width :] != MISSING).all(dim=1)

    def green(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Whether tokens [B, N] are in the lists after contexts [B, W], bool [B, N]."""
        inside = (tokens >= 0) & (tokens < self.vocab_size)
        return self._member(self.seeds(context, tokens), tokens.clamp_min(0)) & inside & self.marks(context)[:, None]

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """The lists after contexts [B, W] -> bool [B, vocab_size]; false where the system marks nothing."""
        if self.rule.salted or self.rule.philox:
            tokens = torch.arange(vocab_size, device=context.device).expand(context.shape[0], -1)
            return self.green(context, tokens)
        masks = self.lists.masks(self.seeds(context, context[:, -1:])[:, 0], vocab_size)
        return masks & self.marks(context)[:, None]

    def score(self, contexts: torch.Tensor, ids: torch.Tensor, ngrams_once: bool) -> TokenScores:
        """Scores of one text: its tokens int64 [n] and their contexts [n, W].

        ngrams_once: whether the system itself counts each n-gram once.
        """
        tokens = ids[:, None]
        known = (contexts[:, contexts.shape[1] - self.needed :] != MISSING).all(dim=1) & (ids != MISSING)
        values = torch.zeros(ids.shape[0], dtype=torch.float64)
        seeds = torch.zeros_like(ids)
        where = known.nonzero()[:, 0]
        seeds[where] = self.seeds(contexts[where], tokens[where])[:, 0]
        values[where] = self._member(seeds[where], ids[where]).double()
        ngrams = torch.cat([contexts[:, contexts.shape[1] - self.needed :], tokens], dim=1)
        return TokenScores(
            values=values,
            evidence=torch.stack([seeds, ids], dim=1),
            scored=known,
            keyless=None if self.rule.keyless is None else seeds == self.rule.keyless,
            compat_evidence=ngrams if ngrams_once else None,
        )

    def _member(self, seeds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        if self.rule.philox:
            return sbw.green(seeds, tokens, self.gamma)
        return self.lists.contains(seeds, tokens)
