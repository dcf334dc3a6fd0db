"""EXP: a keyed race among the likeliest tokens (Aaronson 2022; Kuditipudi et al. 2023, arXiv 2307.15593).

Native format = vLLM's Gumbel watermark: raw key, context = the last `context_width` generated tokens, F_t the PRF's
uniform. Token t has race value log p_t - log(-log F_t), which orders tokens as F_t^(1/p_t) does; it is computed in
float64 because F^(1/p) underflows. Strength either shortens the list of racing tokens ("top_k", the paper's K') or
scales the noise ("scale"). A token's score is -log(1 - F), Gamma(1, 1) distributed on unmarked text.

Format "markllm" = MarkLLM's EXP: F_t = torch.rand(V)[t] after manual_seed(key * (product of the last `context_width`
tokens of prompt and text, mod V)). Many products share a remainder (all that are 0 modulo V share a seed that no key
changes), so evidence is (seed, token), and tokens of seed 0 are none; its own detector counts everything.

Format "vllm-dual" = vLLM's dual-key Gumbel watermark: keys A and B are derived from the key (domains "key_a", "key_b"),
a share `alpha` of the positions races with B, and a token scores (1 - alpha) of A's and alpha of B's. vLLM draws the
share at random; here the context decides it under a key of its own, which no reader needs to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch

from caw.checks import require_bool, require_choice, require_int, require_number
from caw.defaults import TOP_K_EXP
from caw.record import RECORD_SIZE
from caw.triton_kernels import prf_ref as prf
from caw.triton_kernels.ladder_ref import Ladder, Rule, race_ladder_scale, race_ladder_top_k
from caw.watermarks import keys
from caw.watermarks.base import (
    MISSING,
    Native,
    Position,
    TokenScores,
    VocabularyBound,
    require_foreign_key,
    require_format,
    require_vocab_size,
)
from caw.watermarks.formats.seeding import markllm_product
from caw.watermarks.formats.uniforms import rand_at
from caw.watermarks.payload import (
    PayloadCode,
    PayloadScores,
    check_payload,
    positions_of,
    require_payload,
    symbol_keys,
)

MAX_WIDTH = 64
ROUTE = b"caw/dual-key route"
PAYLOAD_SYMBOLS = 4  # keys among which a payload chooses


@dataclass(frozen=True)
class EXP(VocabularyBound):
    """The exponential (Gumbel) watermark.

    Args:
        key: int below 2^64, text or bytes.
        top_k: with strength="top_k", how many tokens race at strength 1.
        strength: "top_k" or "scale".
        context_width: generated tokens that seed the race.
        deduplicate: leave a token unmarked when its context already occurred in this output.
            Only the native format does; MarkLLM marks every token.
        format: "native", "vllm-dual" or "markllm".
        vocab_size: number V of a foreign format: that of the model's logits. `generate` fills it in.
        temperature: of the raced distribution, beyond that of sampling; MarkLLM races at 0.7 in its repository and at 1
            in its releases on PyPI. Detection does not depend on it.
        alpha: share of key B, format "vllm-dual" only.
        payload, payload_bits: a number below 2^payload_bits (at most 2^32) that the text carries, see `payload`; its
            reader gives the bits alone. Native format only.

    Raises TypeError or ValueError naming the argument.
    """

    top_k: int = TOP_K_EXP
    strength: Literal["top_k", "scale"] = "top_k"
    context_width: int = 4
    deduplicate: bool = True
    format: str = "native"
    vocab_size: int | None = None
    temperature: float = 1.0
    alpha: float = 0.1
    payload: int | None = None
    payload_bits: int = 0

    name: ClassVar[str] = "exp"
    null: ClassVar[Literal["binomial", "gamma"]] = "gamma"

    def validate(self) -> None:
        require_format(self.format, ("native", "vllm-dual", "markllm"))
        require_vocab_size(self.vocab_size)
        require_bool("deduplicate", self.deduplicate)
        require_number("alpha", self.alpha, 0, 1, closed=True)
        check_payload(self.payload, self.payload_bits)
        if self.format != "native" and self.payload_bits:
            raise ValueError(f"payloads need format 'native', got {self.format!r}; leave the payload out")
        require_number("temperature", self.temperature, 0, 1e4, closed=False)
        if self.foreign:
            require_foreign_key(self.format, self.secret)
        require_int("top_k", self.top_k, 1, RECORD_SIZE)
        require_int("context_width", self.context_width, 1, MAX_WIDTH)
        require_choice("strength", self.strength, ("top_k", "scale"), "top_k")

    @property
    def null_moments(self) -> tuple[float, float]:
        return 1.0, (1 - self.alpha) ** 2 + self.alpha**2 if self.format == "vllm-dual" else 1.0

    @property
    def window(self) -> int:
        return self.context_width

    @property
    def rule(self) -> Rule:
        return self.strength

    @property
    def full(self) -> float:
        return float(self.top_k) if self.strength == "top_k" else 1.0

    @property
    def foreign(self) -> bool:
        return self.format == "markllm"

    @property
    def reads_prompt(self) -> bool:
        return self.foreign

    @property
    def native(self) -> Native | None:
        if self.format != "native" or self.temperature != 1 or self.payload_bits:
            return None
        return Native(2 if self.strength == "top_k" else 3, self.secret)

    @property
    def max_candidates(self) -> int:
        return self.top_k if self.strength == "top_k" else RECORD_SIZE

    @property
    def deduplicates(self) -> bool:
        return self.deduplicate and not self.foreign

    def ladder(self, position: Position, max_strength: float) -> Ladder:
        """All winners of the race as it grows; the race uses the unperturbed warped logits (DESIGN section 3)."""
        record = position.record
        if self.foreign:
            u = rand_at(self._seeds(position.context), record.ids.clamp_min(0))
            noise = -torch.log(-torch.log(u))
        else:
            noise = prf.gumbel(self._words(position.context, record.ids))
        start = record.values.double()
        race = position.race_values.double() / self.temperature + noise
        race = torch.where(record.values > -torch.inf, race, -torch.inf)
        if self.strength == "top_k":
            ladder = race_ladder_top_k(record.ids, race, self.top_k, max_strength)
        else:
            slope = torch.where(race > -torch.inf, race - start, -torch.inf)
            ladder = race_ladder_scale(record.ids, start, slope, max_strength)
        if self.foreign:
            return ladder.only_original((position.context == MISSING).any(dim=1))
        return ladder

    @cached_property
    def code(self) -> PayloadCode | None:
        return PayloadCode(self.payload_bits, PAYLOAD_SYMBOLS) if self.payload_bits else None

    def check_strength(self, max_strength: float) -> None:
        super().check_strength(max_strength)
        require_payload(self.payload, self.payload_bits)

    def _words(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The words that race, int64 [B, N]; with a payload, those of the key of the context's symbol."""
        if self.format == "vllm-dual":
            a, b = (prf.context_words(k, context, tokens) for k in self.dual_keys)
            route = prf.context_words(keys.derive_key(self.secret, ROUTE), context, torch.zeros_like(context[:, :1]))
            return torch.where(prf.uniform(route) < self.alpha, b, a)
        if self.code is None:
            return prf.context_words(self.secret, context, tokens)
        require_payload(self.payload, self.payload_bits)
        assert self.payload is not None
        symbols = torch.from_numpy(self.code.symbols(self.payload)).to(context.device)
        symbol = symbols[positions_of(self.secret, context, self.code.positions)]
        words = torch.stack([prf.context_words(k, context, tokens) for k in symbol_keys(self.secret, self.code.r)])
        return words[symbol, torch.arange(len(symbol), device=context.device)]

    @property
    def dual_keys(self) -> tuple[int, int]:
        """Keys A and B of format "vllm-dual"."""
        return keys.derive_key(self.secret, b"key_a"), keys.derive_key(self.secret, b"key_b")

    def payload_scores(self, ids: torch.Tensor) -> PayloadScores:
        """-log(1 - u) under the key of each symbol."""
        assert self.code is not None
        contexts, tokens = self.contexts(ids), ids[:, None]
        words = [prf.context_words(k, contexts, tokens) for k in symbol_keys(self.secret, self.code.r)]
        values = -torch.log1p(-prf.uniform(torch.cat(words, dim=1)))
        return PayloadScores(values, positions_of(self.secret, contexts, self.code.positions), contexts)

    def _seeds(self, context: torch.Tensor) -> torch.Tensor:
        """MarkLLM's seeds of contexts [B, W] -> 32-bit seeds int64 [B, 1]."""
        self.check_readable()
        assert self.vocab_size is not None
        return markllm_product(self.secret, self.vocab_size, context.clamp_min(0), context)

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        found = self.native_scores(ids)
        if found is None:
            return self.score_tokens_ref(ids)
        contexts = self.contexts(ids)
        # vLLM, the other system of this format, counts each context once as well
        return TokenScores(found[0], contexts, torch.ones_like(ids, dtype=torch.bool), compat_evidence=contexts)

    def score_tokens_ref(self, ids: torch.Tensor) -> TokenScores:
        """The same in plain PyTorch."""
        contexts = self.contexts(ids)
        if self.foreign:
            seeds = self._seeds(contexts)
            known = (contexts != MISSING).all(dim=1) & (ids != MISSING)
            values = -torch.log1p(-rand_at(seeds[:, 0], ids.clamp_min(0)))
            return TokenScores(values, torch.cat([seeds, ids[:, None]], dim=1), known, keyless=seeds[:, 0] == 0)
        every = torch.ones_like(ids, dtype=torch.bool)
        if self.format == "vllm-dual":
            both = [prf.uniform(prf.context_words(k, contexts, ids[:, None])[:, 0]) for k in self.dual_keys]
            values = (1 - self.alpha) * -torch.log1p(-both[0]) + self.alpha * -torch.log1p(-both[1])
            return TokenScores(values, contexts, every, compat_evidence=contexts)
        u = prf.uniform(prf.context_words(self.secret, contexts, ids[:, None])[:, 0])
        return TokenScores(values=-torch.log1p(-u), evidence=contexts, scored=every, compat_evidence=contexts)
