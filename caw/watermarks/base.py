"""What every watermark has: a key, a ladder of candidates for the next token, and a score for each token of a text.

A watermark knows nothing about models. Its context holds generated tokens only (-1 where there are none yet), so a
detector needs nothing but the text. Formats of other systems read the prompt as well; their detectors skip the tokens
whose context would reach into it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

import torch

from caw import ops
from caw.record import RECORD_SIZE, Record
from caw.triton_kernels.enumerate_candidates_ref import rungs
from caw.triton_kernels.ladder_ref import Ladder, Rule
from caw.watermarks import keys
from caw.watermarks.payload import PayloadCode, PayloadScores

MISSING = -1
W = TypeVar("W", bound="Watermark")


@dataclass
class Position:
    """What a watermark may look at when it builds the ladder of one position of B sequences.

    record: top K of the logits the choice is made from. When sampling, they include the sampling noise.
    race_values: float32 [B, K], the logits of record.ids without the noise, after temperature, top-k and top-p.
        Greedy decoding has no noise: they are record.values.
    scores: float32 [B, V], the whole rows that `record` was taken from.
    context: int64 [B, W], the last W tokens, oldest first, -1 where there are none. Generated tokens; if the watermark
        reads the prompt, its tokens stand before them.
    warped: float32 [B, V], `scores` without the noise; None = there is none.
    keys: int64 [B], the 64 bits of each row's native key; None = all rows have the watermark's own.
    """

    record: Record
    race_values: torch.Tensor
    scores: torch.Tensor
    context: torch.Tensor
    warped: torch.Tensor | None = None
    keys: torch.Tensor | None = None

    def take(self, rows: torch.Tensor) -> Position:
        """The positions of these rows (int64 [R]) alone."""
        scores, warped, keys = self.scores[rows], self.warped, self.keys
        if warped is not None:
            warped = scores if warped is self.scores else warped[rows]
        keys = None if keys is None else keys[rows]
        return Position(self.record.take(rows), self.race_values[rows], scores, self.context[rows], warped, keys)


@dataclass
class TokenScores:
    """Scores of the n tokens of one text.

    values: float64 [n]; 0 or 1 for green lists, -log(1 - u) in nats for races. No meaning where `scored` is false.
    evidence: int64 [n, E]; tokens with equal rows are the same evidence, of which only the first counts.
    scored: bool [n]; false where the format cannot score the token, as other systems cannot score a text's first ones.
    keyless: bool [n] or None; true where every key gives this score, so that it is evidence of none.
    compat_evidence: int64 [n, E'] or None; the same as `evidence` for the format's own detector; None = it counts all.
    """

    values: torch.Tensor
    evidence: torch.Tensor
    scored: torch.Tensor
    keyless: torch.Tensor | None = None
    compat_evidence: torch.Tensor | None = None


@dataclass(frozen=True)
class Native:
    """What the compiled ops need to know about a watermark in the native format.

    scheme: 0 green list of a context (an empty one too), 1 selfhash green list, 2 race by top_k, 3 race by scale.
    key: the 64-bit key of the keyed function. threshold: a word is green iff (word >> 8) < threshold; 0 for races.
    """

    scheme: int
    key: int = field(repr=False)
    threshold: int = 0

    @property
    def signed_key(self) -> int:
        """The same 64 bits as torch's int64."""
        return keys.signed(self.key)


def contexts_of(ids: torch.Tensor, window: int) -> torch.Tensor:
    """Contexts int64 [n, W] of every token of one text int64 [n]: the W = `window` ids before it, -1 where none are."""
    padded = torch.cat([ids.new_full((window,), MISSING), ids])
    return padded.unfold(0, window, 1)[: ids.shape[0]] if window else ids.new_empty(ids.shape[0], 0)


@dataclass(frozen=True)
class Watermark(ABC):
    """Base of all watermarks. Frozen and compared by value; its key never shows in repr.

    What is green and what a token scores depends on key, context and token alone, and is worked out in integers: the
    same on every device and in every batch, for marking and for scoring. Only the logarithms of races are floats.
    Ties between tokens go to the smaller id.
    """

    key: int | str | bytes = field(repr=False)

    name: ClassVar[str] = "watermark"
    null: ClassVar[Literal["binomial", "gamma"]] = "binomial"

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", keys.normalize_key(self.key))
        self.validate()

    def __getstate__(self) -> dict[str, object]:
        """All but what was derived from the parameters, such as lists already drawn: those can be large."""
        kept = self.__dict__.items()
        return {name: value for name, value in kept if not isinstance(getattr(type(self), name, None), cached_property)}

    @property
    def key_id(self) -> str:
        """Eight hex digits that name the key in logs."""
        return keys.key_id(self.secret)

    @property
    def secret(self) -> int:
        """The key as an integer below 2^64. Never print it."""
        assert isinstance(self.key, int)
        return self.key

    @property
    @abstractmethod
    def window(self) -> int:
        """W: how many tokens its context holds."""

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """How strength chooses among the candidates: "reweight", "top_k" or "scale", see `select_candidate_ref`."""

    @property
    @abstractmethod
    def full(self) -> float:
        """What strength 1 stands for: delta (in logits), top_k (tokens; layers for SynthID) or 1."""

    @property
    def max_candidates(self) -> int:
        """The most candidates that strength 1 can reach."""
        return 2

    @property
    def deduplicates(self) -> bool:
        """Whether generation leaves a token unmarked when its context has already occurred in this output."""
        return False

    @property
    def native(self) -> Native | None:
        """Parameters of the compiled ops; None where only PyTorch code serves the format."""
        return None

    @property
    def foreign(self) -> bool:
        """Whether the format belongs to another system."""
        return False

    @property
    def marks_ends(self) -> bool:
        """The default of `generate(mark_eos=None)`: whether the mark may decide where a text ends.

        True where texts have to equal another system's token for token.
        """
        return self.foreign

    @property
    def reads_prompt(self) -> bool:
        """Whether the first generated tokens have the prompt's last tokens as context."""
        return False

    @property
    def compat_tail(self) -> Literal["exact", "normal"]:
        """Which tail mode "compat" reports as p-value, because the format's own detector does."""
        return "exact"

    @property
    def null_moments(self) -> tuple[float, float]:
        """Mean and variance of an unmarked token's score. Here those of a race, Exponential(1)."""
        return 1.0, 1.0

    @property
    def null_third(self) -> float:
        """Third central moment of an unmarked token's score. Here that of a race, Exponential(1)."""
        return 2.0

    def with_vocabulary(self, vocab_size: int) -> Watermark:
        """This watermark for a model of `vocab_size` logits; the same object where the format does not need to know."""
        return self

    def with_key(self: W, key: Any) -> W:
        """The same watermark under another key; TypeError or ValueError for one that it cannot have."""
        return dataclasses.replace(self, key=key)

    def check_readable(self) -> None:
        """Raise ValueError if texts cannot be scored with the parameters given."""
        return

    def check_ids(self, greatest: int) -> None:
        """Raise ValueError if `greatest`, the greatest token id of a text, is outside the vocabulary given."""
        return

    @abstractmethod
    def validate(self) -> None:
        """Raise TypeError or ValueError, naming the argument, for parameters out of range."""

    @abstractmethod
    def ladder(self, position: Position, max_strength: float) -> Ladder:
        """The tokens that some strength in [0, max_strength] would choose at this position, and from which one on.

        Candidate 0 is the original token, which strength 0 chooses. Nothing is drawn at random.
        """

    def native_ladder(self, position: Position, max_strength: float) -> Ladder:
        """`ladder` by the op `enumerate_candidates`; candidates, counts and reached needs are equal."""
        at, native = position.record, self.native
        assert native is not None
        keys = position.keys
        if keys is None:
            keys = torch.full_like(at.ids[:, 0], native.signed_key)
        candidates, needs, counts = ops.enumerate_candidates(
            at.values, at.ids, position.race_values, position.scores, position.context, keys,
            native.scheme, native.threshold, self.full, max_strength,
        )  # fmt: skip
        return Ladder(candidates, needs, counts, self.rule, self.full)

    def fixed_on(self, device: torch.device) -> bool:
        """Whether `fixed_ladder` of a `placed` watermark runs on the device alone, so that a CUDA graph can hold it."""
        return self.native is not None

    def placed(self: W, device: torch.device) -> W:
        """This watermark with the tensors that its ladders read on the device; the same object if it has none."""
        return self

    def fixed_ladder(self, position: Position, max_strength: float) -> Ladder:
        """`ladder`, `rungs(max_strength)` columns wide, by the same operations whatever the numbers are."""
        return self.native_ladder(position, max_strength)

    def rungs(self, max_strength: float) -> int:
        """M, the width of fixed ladders."""
        assert self.native is not None
        return rungs(RECORD_SIZE, self.native.scheme, self.full, max_strength)

    @abstractmethod
    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        """Score every token of one text (int64 [n]) from the text alone.

        A token's score depends only on the token and the `window` ids before it. So texts separated by `window` ids of
        -1 may be scored as one stream; the scores of those ids mean nothing.
        """

    def contexts(self, ids: torch.Tensor) -> torch.Tensor:
        """Contexts int64 [n, W] of every token of one text int64 [n]."""
        return contexts_of(ids, self.window)

    @property
    def code(self) -> PayloadCode | None:
        """The code of the payload, None without one. Texts with a payload are read by `payload_scores`."""
        return None

    def payload_scores(self, ids: torch.Tensor) -> PayloadScores:
        """Score of every token of one text (int64 [n]) under each symbol of the code."""
        raise NotImplementedError(f"{self.name} carries no payload")

    def check_strength(self, max_strength: float) -> None:
        """Raise ValueError if the ladder cannot serve strengths up to `max_strength`, or the payload is missing."""
        if self.rule == "top_k" and max_strength * self.full > RECORD_SIZE:
            raise ValueError(
                f"strength * top_k must be at most {RECORD_SIZE}, got {max_strength:g} * {self.full:g}; "
                "lower the policy's beta or strength, or the watermark's top_k"
            )
