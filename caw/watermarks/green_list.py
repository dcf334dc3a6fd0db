"""Green lists, whatever they are seeded by: their two-rung ladder, their null, their formats and sub-keys."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from caw import prf
from caw.arrays import float64, torch
from caw.checks import require_int, require_number
from caw.defaults import DELTA, GAMMA
from caw.ladder import Ladder, Rule, first_green, greatest_green, may_win_beyond, reweight_ladder
from caw.watermarks.base import Null, Position, Signature, TokenScores, Watermark, native_scores
from caw.watermarks.scheme import Formatted, Scheme

MAX_DELTA = 1e4
MAX_SUBKEYS = 1024
L = TypeVar("L", bound="FormattedList")


def likeliest_green(
    lists: GreenList | GreenScheme, position: Position, delta: float, max_strength: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the most likely green token of each row, int64 [B], and its logit, float32 [B]; -1 and -inf if there is
    none.

    The vocabulary is scanned only where the record has no green token and one beyond it could still be chosen.
    """
    record, context = position.record, position.context
    green = lists.green_tokens(context, record.ids) & (record.values > -torch.inf)
    token, logit = first_green(record.ids, record.values, green)
    wanted = (token < 0) & may_win_beyond(record.values, delta, max_strength)
    if position.fixed:
        scores = position.scores.float()
        beyond, its = greatest_green(scores, lists.green_wanted(context, scores.shape[1], wanted))
        return torch.where(wanted, beyond, token), torch.where(wanted, its, logit)
    rows = wanted.nonzero()[:, 0]
    if rows.numel():
        scores = position.scores[rows].float()
        token[rows], logit[rows] = greatest_green(scores, lists.green_vocabulary(context[rows], scores.shape[1]))
    return token, logit


@dataclass(frozen=True)
class GreenList(Watermark):
    """A watermark that adds delta to the logits of green tokens."""

    gamma: float = GAMMA
    delta: float = DELTA

    null: ClassVar[Null] = "binomial"

    @property
    def rule(self) -> Rule:
        return "reweight"

    @property
    def full(self) -> float:
        return float(self.delta)

    @property
    def green_fraction(self) -> float:
        """Probability that a token is green under the null hypothesis: floor(gamma * 2^24) / 2^24."""
        return prf.green_threshold(self.gamma) / (1 << prf.UNIFORM_BITS)

    @property
    def null_moments(self) -> tuple[float, float]:
        return self.green_fraction, self.green_fraction * (1 - self.green_fraction)

    @property
    def null_third(self) -> float:
        f = self.green_fraction
        return f * (1 - f) * (1 - 2 * f)

    def validate(self) -> None:
        require_number("gamma", self.gamma, 0, 1, closed=False)
        require_number("delta", self.delta, 0, MAX_DELTA, closed=True)
        if not 0 < prf.green_threshold(self.gamma) < 1 << prf.UNIFORM_BITS:
            raise ValueError(f"gamma must leave both lists non-empty in steps of 2**-24, got {self.gamma!r}; use 0.25")

    @abstractmethod
    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return whether tokens int64 [B, N] are green after contexts int64 [B, W], bool [B, N]."""

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Return the green lists after contexts int64 [B, W], bool [B, V]."""
        return self.green_tokens(context, torch.arange(vocab_size, device=context.device).expand(len(context), -1))

    def green_wanted(self, context: torch.Tensor, vocab_size: int, wanted: torch.Tensor) -> torch.Tensor:
        """Return `green_vocabulary` of the rows that are wanted (bool [B]); other rows are undefined."""
        return self.green_vocabulary(context, vocab_size)

    def ladder(self, position: Position, max_strength: float) -> Ladder:
        """Return the original token and the most likely green one. Kirchenbauer et al. 2023, Algorithm 2."""
        ids, values = position.record.ids, position.record.values
        token, logit = self.likeliest_green(position, max_strength)
        return reweight_ladder(ids[:, 0], values[:, 0], token, logit, self.full, max_strength)

    def likeliest_green(self, position: Position, max_strength: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the function of that name for these lists."""
        return likeliest_green(self, position, self.full, max_strength)

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        """Score every token as green or not; a token after a context is evidence once."""
        contexts = self.contexts(ids)
        return native_scores(float64(self.green_tokens(contexts, ids[:, None])[:, 0]), contexts, ids, races=False)


class GreenScheme(Scheme):
    """A scheme of green lists. width: the context's as the format counts it, perhaps with the candidate."""

    width: int

    @property
    @abstractmethod
    def fraction(self) -> float:
        """Probability that a token is green under the null hypothesis."""

    @abstractmethod
    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """As `GreenList.green_tokens`."""

    @abstractmethod
    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """As `GreenList.green_vocabulary`."""

    def green_wanted(self, context: torch.Tensor, vocab_size: int, wanted: torch.Tensor) -> torch.Tensor:
        return self.green_vocabulary(context, vocab_size)

    def likeliest_green(
        self, position: Position, delta: float, max_strength: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the function of that name for these lists."""
        return likeliest_green(self, position, delta, max_strength)


class FormattedList(Formatted, GreenList):
    """A green-list watermark that has a format, and sub-keys in the native one.

    subkeys: V, how many sub-keys a detector tries. subkey: the one that marks, 0 = the key itself.
    """

    subkeys: int
    subkey: int

    @property
    def family(self) -> int:
        return self.subkeys

    def under_subkey(self: L, number: int) -> L:
        """The watermark under sub-key `number` in [0, subkeys) alone, behind its lists' key; itself if it has one."""
        require_int("number", number, 0, self.subkeys - 1)
        if self.subkeys == 1:
            return self
        alone: dict[str, Any] = {"subkeys": 1, "subkey": number}
        return dataclasses.replace(self, **alone)

    def is_read_by(self, other: Signature) -> bool:
        return isinstance(other, FormattedList) and set(self.tried) <= set(other.tried)

    @property
    def tried(self) -> range:
        """The sub-keys that a detector tries."""
        return range(self.subkey, self.subkey + 1) if self.subkeys == 1 else range(self.subkeys)

    def check_subkeys(self, payload_bits: int = 0) -> None:
        """Raise ValueError for sub-keys that do not exist, or in a format or with a payload that has none."""
        require_int("subkeys", self.subkeys, 1, MAX_SUBKEYS)
        require_int("subkey", self.subkey, 0, MAX_SUBKEYS - 1 if self.subkeys == 1 else self.subkeys - 1)
        if (self.subkeys > 1 or self.subkey) and (self.format != "native" or payload_bits):
            raise ValueError(
                f"sub-keys need format 'native' and no payload, got subkeys={self.subkeys} and subkey={self.subkey} "
                f"with format {self.format!r} and payload_bits={payload_bits}; leave one of them out"
            )

    @cached_property
    @abstractmethod
    def scheme(self) -> GreenScheme:
        """The lists of this format and these parameters."""

    @property
    def green_fraction(self) -> float:
        return self.scheme.fraction

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self.scheme.green_tokens(context, tokens)

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        return self.scheme.green_vocabulary(context, vocab_size)

    def likeliest_green(self, position: Position, max_strength: float) -> tuple[torch.Tensor, torch.Tensor]:
        return self.scheme.likeliest_green(position, self.full, max_strength)
