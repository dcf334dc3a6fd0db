"""What every watermark is: a key, a ladder of candidates for the next token, and a score for each token of a text.

A watermark knows nothing of models. Its context is made of generated tokens only (missing ones are -1), so that a
detector needs the text alone; the formats of other systems read the prompt too, and their detectors skip what needs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import torch

from caw import ops
from caw.record import RECORD_SIZE, Record
from caw.triton_kernels.ladder_ref import Ladder, Rule
from caw.watermarks import keys
from caw.watermarks.payload import PayloadCode, PayloadScores

MISSING = -1


@dataclass
class Position:
    """What a watermark may look at when it builds the ladder of one position of B sequences.

    record: top-K of the logits the choice is made from (perturbed by the sampling noise when sampling).
    race_values: float32 [B, K], the unperturbed warped logits of record.ids; record.values when decoding greedily.
    scores: float32 [B, V], the whole rows behind `record`; read only when the record holds no green token.
    context: int64 [B, W], the last W tokens, oldest first, -1 where there are none: generated ones, and those of the
        prompt before them if the watermark reads the prompt.
    warped: float32 [B, V], `scores` without the sampling noise; None = there is none.
    """

    record: Record
    race_values: torch.Tensor
    scores: torch.Tensor
    context: torch.Tensor
    warped: torch.Tensor | None = None


@dataclass
class TokenScores:
    """Scores of the n tokens of one text.

    values: float64 [n]; 0/1 for green lists, -log(1 - u) for races. Meaningless where `scored` is false.
    evidence: int64 [n, E]; tokens with equal rows hold the same evidence, which may count only once.
    scored: bool [n]; false where the format cannot score the token (foreign formats skip their first ones).
    keyless: bool [n] or None; true where the score does not depend on the key, so that it is no evidence.
    compat_evidence: int64 [n, E'] or None; what the other system of the format counts once, None = it counts all.
    """

    values: torch.Tensor
    evidence: torch.Tensor
    scored: torch.Tensor
    keyless: torch.Tensor | None = None
    compat_evidence: torch.Tensor | None = None


@dataclass(frozen=True)
class Native:
    """What the compiled ops need to know of a watermark in its native format.

    scheme: 0 green list of a context (an empty one too), 1 selfhash green list, 2 race by top_k, 3 race by scale.
    key: the 64-bit key of the keyed function. threshold: a word is green iff (word >> 8) < threshold; 0 for races.
    """

    scheme: int
    key: int = field(repr=False)
    threshold: int = 0

    @property
    def signed_key(self) -> int:
        """The same 64 bits as torch's int64."""
        return self.key - (self.key >> 63 << 64)


def contexts_of(ids: torch.Tensor, window: int) -> torch.Tensor:
    """Contexts int64 [n, W] of every token of one text int64 [n]: the W = `window` ids before it, -1 where none are."""
    padded = torch.cat([ids.new_full((window,), MISSING), ids])
    return padded.unfold(0, window, 1)[: ids.shape[0]] if window else ids.new_empty(ids.shape[0], 0)


@dataclass(frozen=True)
class Watermark(ABC):
    """Base of KGW, Unigram and EXP; frozen, and its key never shows in repr."""

    key: int | str | bytes = field(repr=False)

    name: ClassVar[str] = "watermark"
    null: ClassVar[Literal["binomial", "gamma"]] = "binomial"

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", keys.normalize_key(self.key))
        self.validate()

    def __getstate__(self) -> dict[str, object]:
        """All but what was worked out from the parameters, lists of other systems above all."""
        kept = self.__dict__.items()
        return {name: value for name, value in kept if not isinstance(getattr(type(self), name, None), cached_property)}

    @property
    def key_id(self) -> str:
        """Eight hex digits naming the key in logs."""
        return keys.key_id(self.secret)

    @property
    def secret(self) -> int:
        assert isinstance(self.key, int)
        return self.key

    @property
    @abstractmethod
    def window(self) -> int:
        """W: how many generated tokens before a position its context holds."""

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """How strength chooses among the candidates; see `ladder`."""

    @property
    @abstractmethod
    def full(self) -> float:
        """What strength 1 means: delta, top_k or 1."""

    @property
    def max_candidates(self) -> int:
        """The most candidates strength 1 can reach."""
        return 2

    @property
    def deduplicates(self) -> bool:
        """Whether a context that already occurred in the output stays unmarked at generation."""
        return False

    @property
    def native(self) -> Native | None:
        """Parameters of the compiled ops; None where only PyTorch code knows the format."""
        return None

    @property
    def foreign(self) -> bool:
        """Whether the format is another system's."""
        return False

    @property
    def marks_ends(self) -> bool:
        """Whether the mark decides where a text ends unless asked not to: where texts shall be another system's."""
        return self.foreign

    @property
    def reads_prompt(self) -> bool:
        """Whether the prompt's last tokens are the context of the first generated ones."""
        return False

    @property
    def compat_tail(self) -> Literal["exact", "normal"]:
        """The tail that the format's own detector takes for the p-value, which mode "compat" gives."""
        return "exact"

    @property
    def null_moments(self) -> tuple[float, float]:
        """Mean and variance of an unmarked token's score: 1 and 1 for races."""
        return 1.0, 1.0

    def with_vocabulary(self, vocab_size: int) -> Watermark:
        """This watermark for a model of `vocab_size` logits; the same object where the format does not ask."""
        return self

    def check_readable(self) -> None:
        """Raise ValueError if texts cannot be scored with the parameters given."""
        return

    def check_ids(self, greatest: int) -> None:
        """Raise ValueError if a text with this token id cannot be a text of the model that the parameters name."""
        return

    @abstractmethod
    def validate(self) -> None:
        """Raise ValueError for parameters out of range."""

    @abstractmethod
    def ladder(self, position: Position, max_strength: float) -> Ladder:
        """The candidates that strengths in [0, max_strength] reach at this position."""

    def native_ladder(self, position: Position, max_strength: float) -> Ladder:
        """`ladder` by the op `enumerate_candidates`; candidates, counts and reached needs are equal."""
        at, native = position.record, self.native
        assert native is not None
        candidates, needs, counts = ops.enumerate_candidates(
            at.values, at.ids, position.race_values, position.scores, position.context,
            native.signed_key, native.scheme, native.threshold, self.full, max_strength,
        )  # fmt: skip
        return Ladder(candidates, needs, counts, self.rule, self.full)

    @abstractmethod
    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        """Score every token of one text (int64 [n]) from the text alone.

        A token's score depends on itself and the `window` ids before it only, so that texts separated by `window`
        missing ids (-1) may be scored as one stream; the scores of missing ids mean nothing.
        """

    def contexts(self, ids: torch.Tensor) -> torch.Tensor:
        """Contexts int64 [n, W] of every token of one text int64 [n]."""
        return contexts_of(ids, self.window)

    @property
    def code(self) -> PayloadCode | None:
        """The code of a watermark with a payload; its texts are read by `payload_scores`."""
        return None

    def payload_scores(self, ids: torch.Tensor) -> PayloadScores:
        """What every token of one text (int64 [n]) says under each symbol of the code."""
        raise NotImplementedError(f"{self.name} carries no payload")

    def check_strength(self, max_strength: float) -> None:
        """Raise ValueError if the ladder cannot serve strengths up to `max_strength`, or has nothing to write."""
        if self.rule == "top_k" and max_strength * self.full > RECORD_SIZE:
            raise ValueError(
                f"strength * top_k must be at most {RECORD_SIZE}, got {max_strength:g} * {self.full:g}; "
                "lower the policy's beta or strength, or the watermark's top_k"
            )
