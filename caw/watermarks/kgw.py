"""KGW: green lists seeded by the tokens before (Kirchenbauer et al. 2023, arXiv 2301.10226 and 2306.04634).

Native format, under the key derived for domain `caw/kgw` (see `prf`), word = PRF(key, context, token):

    lefthash  context = the last `context_width` generated tokens (default 1)
              green iff (word >> 8) < floor(gamma 2^24)
    selfhash  window = the last `context_width` - 1 generated tokens (default 3)
              seed = the smallest PRF(key, (x,), token) over x in the window (the anchored minimum)
              green iff (PRF(key, (seed, token), token) >> 8) < floor(gamma 2^24)

What counts as evidence once is (context, token), for selfhash (seed, token).
The ladder, the likeliest tokens that are green, is every green list's (`green_list.GreenList.ladder`).

Formats of other systems: `formats.rules`. What counts as evidence once there is (seed of the list, token). A payload:
`formats.symbols`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from caw import prf
from caw.arrays import float64, torch
from caw.checks import require_choice, require_int
from caw.op_indices import GREEN, SELFHASH
from caw.watermarks.base import Native, TokenScores, contexts_of, native_scores
from caw.watermarks.formats.foreign_lists import ForeignLists, TestedLists
from caw.watermarks.formats.rules import FOREIGN, find_rule
from caw.watermarks.formats.symbols import SymbolLists
from caw.watermarks.green_list import FormattedList, GreenScheme
from caw.watermarks.keys import derive_key
from caw.watermarks.payload import make_payload

DOMAIN, SUBKEY = b"caw/kgw", b"caw/subkey"
MAX_WIDTH = 16


class LeftHash(GreenScheme):
    """Green lists seeded by the last W tokens.

    domain: of the key that is derived for the lists. width: W, plus 1 if salted. subkey: which of the keys derived
    behind that one; 0 = itself. number: of the compiled ops, see `Native`. salted: whether the candidate is hashed
    together with the context.
    """

    number: ClassVar[int] = GREEN
    default_width: ClassVar[int] = 1
    salted: ClassVar[bool] = False

    def __init__(self, secret: int, domain: bytes, gamma: float, width: int, subkey: int = 0) -> None:
        key = derive_key(secret, domain)
        if subkey:
            key = derive_key(key, SUBKEY + subkey.to_bytes(2, "big"))
        super().__init__(width - self.salted, key)
        self.width, self.threshold = width, prf.green_threshold(gamma)
        self.native = Native(self.number, key, self.threshold)

    @property
    def fraction(self) -> float:
        return self.threshold / (1 << prf.UNIFORM_BITS)

    def seeds(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return what a token's word depends on besides the token [B, 1] itself, int64 [B, E]."""
        return context

    def words(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the words that decide about tokens [B, N] after contexts [B, W], int64 [B, N]."""
        return prf.context_words(self.keys[0], context, tokens)

    def vocabulary_words(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Return the words of all tokens, int64 [B, V], at a quarter of the cost."""
        return prf.vocabulary_words(self.keys[0], context, vocab_size)

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return prf.below(self.words(context, tokens), self.threshold)

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        return prf.below(self.vocabulary_words(context, vocab_size), self.threshold)

    def score_ref(self, ids: torch.Tensor) -> TokenScores:
        contexts, tokens = contexts_of(ids, self.window), ids[:, None]
        values = float64(self.green_tokens(contexts, tokens)[:, 0])
        return native_scores(values, self.seeds(contexts, tokens), ids, races=False)


class SelfHash(LeftHash):
    """Green lists of the candidate and the earlier token whose pair with it has the smallest word.

    The minimum excludes the pair of the candidate with itself; otherwise a share of all tests would depend on the token
    alone and repeat throughout a text.
    """

    number = SELFHASH
    default_width = 4
    salted = True

    def seeds(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return prf.anchored_seeds(self.keys[0], context, tokens)

    def words(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return prf.seeded_words(self.keys[0], self.seeds(context, tokens), tokens)

    def vocabulary_words(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        seeds = prf.anchored_vocabulary_seeds(self.keys[0], context, vocab_size)
        return prf.seeded_words(self.keys[0], seeds, torch.arange(vocab_size, device=context.device))


SEEDINGS = {"lefthash": LeftHash, "selfhash": SelfHash}


@dataclass(frozen=True)
class KGW(FormattedList):
    """Green lists that change with the tokens before: Kirchenbauer et al. 2023, arXiv 2301.10226, Algorithm 2.

    Args:
        key: int below 2^64, text or bytes.
        gamma: share of the vocabulary that is green, in (0, 1).
        delta: number that strength 1 adds to the logits of green tokens.
        seeding: "lefthash" or "selfhash". Formats of other systems have more, see `formats.rules`.
        context_width: number of hashed tokens; selfhash includes the candidate. None = 1 for lefthash, 4 for selfhash,
            or the format's own.
        format: "native", "transformers", "markllm", "lm-watermarking" or "sbw".
        vocab_size: size of the model's logits, over which formats of other systems draw lists. `generate` fills it in.
        subkeys: V, in [1, 1024]: sub-keys that a detector tries, corrected for their number. Texts are marked with
            sub-key 0, the key itself, so a detector with more sub-keys reads them too. Native format, no payload.
        subkey: the sub-key in [0, subkeys) that marks; with subkeys=1 any up to 1023, which a detector reads alone.
        payload, payload_bits: a number below 2^payload_bits (at most 2^32) to embed in the text, see `payload`. To read
            it, give payload_bits alone. Native format only, gamma 1/2, 1/4 or 1/16.

    Raises TypeError or ValueError naming the argument, and ImportError for a payload without reedsolo.
    """

    seeding: str = "lefthash"
    subkeys: int = 1
    context_width: int | None = None
    format: str = "native"
    vocab_size: int | None = None
    payload: int | None = None
    payload_bits: int = 0
    subkey: int = 0

    name: ClassVar[str] = "kgw"

    def validate(self) -> None:
        super().validate()
        self.require_format(*FOREIGN)
        self.check_subkeys(self.payload_bits)
        object.__setattr__(self, "context_width", self.scheme.width)

    @cached_property
    def scheme(self) -> GreenScheme:
        r = round(1 / self.gamma) if 1 / self.gamma % 1 == 0 else 0
        payload = make_payload(self.payload, self.payload_bits, r, self.format, self.secret)
        if self.format != "native":
            rule = find_rule(self.format, self.seeding)
            foreign = TestedLists if rule.tested else ForeignLists
            return foreign(self.format, rule, self.secret, self.gamma, self.context_width, self.vocab_size)
        require_choice("seeding", self.seeding, tuple(SEEDINGS), "lefthash")
        kind = SEEDINGS[self.seeding]
        width = kind.default_width if self.context_width is None else self.context_width
        require_int("context_width", width, 1 + kind.salted, MAX_WIDTH)
        lists = kind(self.secret, DOMAIN, self.gamma, width, self.subkey)
        return SymbolLists(lists, payload) if payload else lists
