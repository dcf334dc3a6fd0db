"""The base of all watermarks: a key, a ladder of candidates for the next token, and a score for each token of a text.

A watermark knows nothing about models. Its context holds generated tokens only (-1 = missing), so a detector needs
nothing but the text. Formats of other systems also read the prompt; their detectors skip the tokens whose context would
reach into it.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np

from caw import text_scores
from caw.arrays import ops, space_of, torch
from caw.ladder import Ladder, Rule, race_width
from caw.op_indices import RACE_SCALE, RACE_TOP_K, SELFHASH
from caw.record import RECORD_SIZE, Record
from caw.text_scores import MISSING, contexts_of
from caw.watermarks import keys

if TYPE_CHECKING:  # which read watermarks
    from caw.watermarks.payload import PayloadCode

Null: TypeAlias = Literal["binomial", "gamma", "bits"]
W = TypeVar("W", bound="Watermark")
S = TypeVar("S", bound="Signature")


@dataclass
class Position:
    """The inputs of a ladder at one position of B sequences.

    record: top K of the logits the choice is made from. When sampling, they include the sampling noise, and
        probabilities may be those of the entries among themselves.
    race_values: float32 [B, K], the logits of record.ids without the noise, after temperature, top-k and top-p.
        Greedy decoding has no noise: they are record.values.
    scores: float32 [B, V], the full rows behind `record`; when sampling, as far down as the watermark reads them
        (`Watermark.reads_below`).
    context: int64 [B, W], the last W generated tokens, oldest first, -1 = missing. If the watermark reads the prompt,
        its tokens come first.
    warped: float32 [B, V], `scores` without the noise; None = no noise.
    keys: int64 [B], the 64 bits of each row's native key; None = all rows use the watermark's key.
    fixed: whether a ladder must run the same operations whatever the numbers are and read nothing back, so that a CUDA
        graph can capture it.
    """

    record: Record
    race_values: torch.Tensor
    scores: torch.Tensor
    context: torch.Tensor
    warped: torch.Tensor | None = None
    keys: torch.Tensor | None = None
    fixed: bool = False

    def take(self, rows: torch.Tensor) -> Position:
        """Return the positions of only these rows (int64 [R])."""
        scores, warped, keys = self.scores[rows], self.warped, self.keys
        if warped is not None:
            warped = scores if warped is self.scores else warped[rows]
        keys = None if keys is None else keys[rows]
        record = self.record.take(rows)
        return Position(record, self.race_values[rows], scores, self.context[rows], warped, keys, self.fixed)


@dataclass
class TokenScores:
    """Scores of the n tokens of one text.

    values: float64 [n]; 0 or 1 for green lists, -log(1 - u) in nats for races. Undefined where `scored` is false.
    evidence: int64 [n, E]; tokens with equal rows are the same evidence, and only the first counts.
    scored: bool [n]; false where the format cannot score the token, such as a text's first tokens in other systems.
    keyless: bool [n] or None; true where every key gives this score, so that it is no evidence.
    compat_evidence: int64 [n, E'] or None; `evidence` as the
        format's own detector counts it; None = it counts every token.
    """

    values: torch.Tensor
    evidence: torch.Tensor
    scored: torch.Tensor
    keyless: torch.Tensor | None = None
    compat_evidence: torch.Tensor | None = None


def native_scores(values: torch.Tensor, seeds: torch.Tensor, ids: torch.Tensor, *, races: bool) -> TokenScores:
    """Return scores of tokens int64 [n] by seeds int64 [n, E] and themselves; a race tests a context once, as vLLM."""
    evidence = seeds if races else space_of(ids).concatenate([seeds, ids[:, None]], 1)
    return TokenScores(values, evidence, ids == ids, None, evidence if races else None)


@dataclass(frozen=True)
class Native:
    """Parameters of the compiled ops for a watermark in the native format; its compiled forms follow from them.

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

    def ladder(self, position: Position, rule: Rule, full: float, max_strength: float) -> Ladder:
        """Compute the ladder with the op `enumerate_candidates`."""
        at, keys = position.record, position.keys
        if keys is None:
            keys = torch.full_like(at.ids[:, 0], self.signed_key)
        candidates, needs, counts = ops.enumerate_candidates(
            at.values, at.ids, position.race_values, position.scores, position.context, keys,
            self.scheme, self.threshold, full, max_strength,
        )  # fmt: skip
        return Ladder(candidates, needs, counts, rule, full)

    def scores(self, ids: torch.Tensor, window: int, keys: torch.Tensor | None = None) -> TokenScores:
        """Score every token of one text int64 [n]; keys: int64 [n] beside a tensor of ids, None = this key."""
        if isinstance(ids, np.ndarray):
            values, seeds = text_scores.score_tokens(ids, window, self.key, self.scheme, self.threshold)
        else:
            keys = torch.full_like(ids, self.signed_key) if keys is None else keys
            values, seeds = ops.score_tokens(ids, window, keys, self.scheme, self.threshold)
        contexts = seeds[:, None] if self.scheme == SELFHASH else contexts_of(ids, window)
        return native_scores(values, contexts, ids, races=self.scheme in (RACE_TOP_K, RACE_SCALE))


@dataclass(frozen=True)
class Signature(ABC):
    """What a detector looks for under one key, frozen and compared by value: a watermark, or the parts of a rule."""

    key: int | str | bytes = field(repr=False)

    name: ClassVar[str] = "signature"

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", keys.normalize_key(self.key))
        self.validate()

    def __getstate__(self) -> dict[str, object]:
        """Return everything except derived data such as cached lists, which can be large."""
        kept = self.__dict__.items()
        return {name: value for name, value in kept if not isinstance(getattr(type(self), name, None), cached_property)}

    @property
    def key_id(self) -> str:
        """Eight hex digits that identify the key in logs."""
        return keys.key_id(self.secret)

    @property
    def secret(self) -> int:
        """The key as an integer below 2^64. Never print it."""
        assert isinstance(self.key, int)
        return self.key

    @property
    @abstractmethod
    def parts(self) -> tuple[Watermark, ...]:
        """The watermarks of which one marks a text; a detector tests for all of them, each with an equal share."""

    @abstractmethod
    def part_for(self, sampling: Any) -> Watermark:
        """Return the part that marks a text which is chosen like this (`caw.settings.Sampling`)."""

    @property
    def window(self) -> int:
        """W: the number of tokens in a context; of the part that reads more."""
        return max(part.window for part in self.parts)

    @property
    def family(self) -> int:
        """Number of sub-keys that a detector tries, one of which marked the text (`under_subkey`)."""
        return sum(part.family for part in self.parts)

    @abstractmethod
    def under_subkey(self, number: int) -> Watermark:
        """The watermark under sub-key `number` in [0, family) alone; 0 is the key itself."""

    def is_read_by(self, other: Signature) -> bool:
        """Whether a detector of `other`, under the same key, tries every sub-key that this one may mark with."""
        return self.family <= other.family

    @property
    def foreign(self) -> bool:
        """Whether the format belongs to another system."""
        return False

    def with_vocabulary(self: S, vocab_size: int) -> S:
        """Return this watermark for a model of `vocab_size` logits; itself if the format does not depend on it."""
        return self

    def with_key(self: S, key: Any) -> S:
        """Return the same watermark under another key. TypeError or ValueError for an invalid key."""
        return dataclasses.replace(self, key=key)

    def check_readable(self) -> None:
        """Raise ValueError if texts cannot be scored with the parameters given."""
        return

    def check_ids(self, greatest: int) -> None:
        """Raise ValueError if `greatest`, the greatest token id of a text, is outside the given vocabulary."""
        return

    @abstractmethod
    def validate(self) -> None:
        """Raise TypeError or ValueError naming the argument for parameters out of range."""

    @property
    def code(self) -> PayloadCode | None:
        return None


@dataclass(frozen=True)
class Watermark(Signature):
    """Base of all watermarks.

    Which tokens are green and what a token scores depend on key, context and token alone, in integer arithmetic: the
    same on every device and in every batch, for marking and scoring. Only the logarithms of races are floats. Ties
    between tokens go to the smaller id.

    scores_arrays: whether `score_tokens` takes NumPy's arrays as well as tensors, and gives back what it took.
    null: what an unmarked token scores: 0 or 1, a sum of Exponential(1) numbers, or a mean of bits; `null_moments` says
    how likely a 1 is.
    """

    name: ClassVar[str] = "watermark"
    null: ClassVar[Null] = "gamma"
    scores_arrays: ClassVar[bool] = False

    @property
    @abstractmethod
    def window(self) -> int:
        """W: the number of tokens in its context."""

    @property
    def family(self) -> int:
        return 1

    @property
    def parts(self) -> tuple[Watermark, ...]:
        return (self,)

    def part_for(self, sampling: Any) -> Watermark:
        return self

    def under_subkey(self, number: int) -> Watermark:
        return self

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """How strength chooses among candidates: "reweight", "top_k" or "scale", see `select_candidate_ref`."""

    @property
    @abstractmethod
    def full(self) -> float:
        """The value of strength 1: delta (in logits), top_k (tokens; layers for SynthID) or 1."""

    @property
    def max_candidates(self) -> int:
        """The maximum number of candidates within reach of strength 1."""
        return 2

    @property
    def repeats_candidates(self) -> bool:
        """Whether a token may have several rungs of a ladder: a stronger mark may choose again what one had left."""
        return False

    @property
    def deduplicates(self) -> bool:
        """Whether generation leaves a token unmarked if its context has already occurred in this output."""
        return False

    @property
    def missing(self) -> int:
        """The token id that a missing token of a context is equal to where contexts are compared."""
        return MISSING

    @property
    def beginning(self) -> float:
        """Nats of surprisal after which the key begins to draw in a text that is drawn; 0 = at its first token."""
        return 0.0

    @property
    def races_whole(self) -> bool:
        """Whether strength 1, where no look-ahead is asked for, chooses by `whole_winner` and not by the ladder."""
        return False

    def markable(self, context: torch.Tensor) -> torch.Tensor:
        """Whether the format marks after contexts int64 [B, W], bool [B]."""
        return torch.ones(context.shape[0], dtype=torch.bool, device=context.device)

    def whole_winner(self, position: Position, *, native: bool) -> torch.Tensor:
        """The token int64 [B] that wins among all of `position.warped`; over keys it is drawn from their softmax.

        native: by kernels, not by their references.
        """
        raise NotImplementedError(f"{self.name} has no race over whole rows")

    @property
    def native(self) -> Native | None:
        """Parameters of the compiled ops; None if only PyTorch code supports the format."""
        return None

    @property
    def marks_ends(self) -> bool:
        """The default of `generate(mark_eos=None)`: whether the mark may change where a text ends.

        True where texts must equal another system's, token for token.
        """
        return self.foreign

    @property
    def reads_prompt(self) -> bool:
        """Whether the context of the first generated tokens includes the prompt's last tokens."""
        return self.foreign and self.window > 0

    @property
    def null_moments(self) -> tuple[float, float]:
        """Mean and variance of an unmarked token's score. Here those of a race, Exponential(1)."""
        return 1.0, 1.0

    @property
    def null_third(self) -> float:
        """Third central moment of an unmarked token's score. Here that of a race, Exponential(1)."""
        return 2.0

    @abstractmethod
    def ladder(self, position: Position, max_strength: float) -> Ladder:
        """Return the tokens that some strength in [0, max_strength] would choose at this position, and where each takes
        over.

        Candidate 0 is the original token, which strength 0 chooses. The result is deterministic. Fixed ladders are
        asked of watermarks with a kernel or `placed` alone.
        """

    def candidates(self, position: Position, max_strength: float, *, native: bool) -> Ladder:
        """Return `ladder`, by a kernel if there is one and native is true: the same candidates, counts and needs."""
        if native and self.native is not None:
            return self.native.ladder(position, self.rule, self.full, max_strength)
        return self.ladder(position, max_strength)

    def reads_below(self, max_strength: float) -> float:
        """Return how far below the greatest score a ladder reads `Position.scores`: nats, inf = all of it.

        Beyond that, and outside the record, a score may be -inf where the sampler draws.
        """
        if self.native is None:
            return math.inf
        return 0.0 if self.rule != "reweight" else max_strength * self.full

    def placed(self: W, device: torch.device) -> W | None:
        """Return this watermark with the tensors that its ladders read on the device, to be asked for fixed ladders
        (`Position.fixed`); None if some part of them would run elsewhere.
        """
        return self if self.native is not None else None

    def rungs(self, max_strength: float) -> int:
        """Return M, the width of fixed ladders."""
        if self.rule != "top_k":
            return self.max_candidates
        return race_width(RECORD_SIZE, self.full, max_strength, scale=False)

    @abstractmethod
    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        """Score every token of one text (int64 [n]) from the text alone.

        A token's score depends only on the token and the `window` ids before it. Texts separated by `window` ids of -1
        may therefore be scored as one stream; the scores of the separators are meaningless.
        """

    def contexts(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the contexts int64 [n, W] of every token of one text int64 [n]."""
        return contexts_of(ids, self.window)

    def check_strength(self, max_strength: float) -> None:
        """Raise ValueError if the ladder cannot support strengths up to `max_strength`, or the payload is missing."""
        if self.rule == "top_k" and max_strength * self.full > RECORD_SIZE:
            raise ValueError(
                f"strength * top_k must be at most {RECORD_SIZE}, got {max_strength:g} * {self.full:g}; "
                "lower the policy's beta or strength, or the watermark's top_k"
            )
