"""EXP: a keyed race among the likeliest tokens (Aaronson 2022; Kuditipudi et al. 2023, arXiv 2307.15593).

Native format = vLLM's Gumbel watermark: raw key, context = the last `context_width` generated tokens, F_t the PRF's
uniform. Token t has race value log p_t - log(-log F_t), which orders tokens as F_t^(1/p_t) does; it is computed in
float64 because F^(1/p) underflows. Strength either shortens the list of racing tokens ("top_k", the paper's K') or
scales the noise ("scale"). A token's score is -log(1 - F), Gamma(1, 1) distributed on unmarked text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from caw.record import RECORD_SIZE
from caw.watermarks import prf
from caw.watermarks.base import Native, Position, TokenScores, Watermark, require_format, require_int
from caw.watermarks.ladder import Ladder, Rule, race_ladder_scale, race_ladder_top_k

MAX_WIDTH = 64


@dataclass(frozen=True)
class EXP(Watermark):
    """The exponential (Gumbel) watermark.

    Args:
        key: int below 2^64, text or bytes.
        top_k: with strength="top_k", how many tokens race at strength 1.
        strength: "top_k" or "scale".
        context_width: generated tokens that seed the race.
        deduplicate: leave a token unmarked when its context already occurred in this output.
        format: "native".
        vocab_size: only foreign formats need it.

    Raises TypeError or ValueError naming the argument.
    """

    top_k: int = 10
    strength: Literal["top_k", "scale"] = "top_k"
    context_width: int = 4
    deduplicate: bool = True
    format: str = "native"
    vocab_size: int | None = None

    name: ClassVar[str] = "exp"
    null: ClassVar[Literal["binomial", "gamma"]] = "gamma"

    def validate(self) -> None:
        require_format(self.format, ("native",))
        require_int("top_k", self.top_k, 1, RECORD_SIZE)
        require_int("context_width", self.context_width, 1, MAX_WIDTH)
        if self.strength not in ("top_k", "scale"):
            raise ValueError(f"strength must be 'top_k' or 'scale', got {self.strength!r}; use 'top_k'")

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
    def native(self) -> Native | None:
        return Native(2 if self.strength == "top_k" else 3, self.secret)

    @property
    def max_candidates(self) -> int:
        return self.top_k if self.strength == "top_k" else RECORD_SIZE

    @property
    def deduplicates(self) -> bool:
        return self.deduplicate

    def ladder(self, position: Position, max_strength: float) -> Ladder:
        """All winners of the race as it grows; the race uses the unperturbed warped logits (DESIGN section 3)."""
        record = position.record
        noise = prf.gumbel(prf.context_words(self.secret, position.context, record.ids))
        start = record.values.double()
        race = torch.where(record.values > -torch.inf, position.race_values.double() + noise, -torch.inf)
        if self.strength == "top_k":
            return race_ladder_top_k(record.ids, race, self.top_k, max_strength)
        slope = torch.where(race > -torch.inf, race - start, -torch.inf)
        return race_ladder_scale(record.ids, start, slope, max_strength)

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
        u = prf.uniform(prf.context_words(self.secret, contexts, ids[:, None])[:, 0])
        every = torch.ones_like(ids, dtype=torch.bool)
        return TokenScores(values=-torch.log1p(-u), evidence=contexts, scored=every, compat_evidence=contexts)
