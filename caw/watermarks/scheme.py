"""Schemes: the meaning of a watermark's `format`.

A watermark holds its parameters and defines what strength does. Its scheme turns keys, contexts and tokens into the
numbers of one system, both for marking at generation and for scoring afterwards.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

import torch

from caw.checks import require_choice
from caw.ladder import first_of
from caw.watermarks.base import Native, TokenScores, Watermark
from caw.watermarks.payload import PayloadCode, PayloadScores

Keys = tuple[int, ...]
"""Keys that a scheme derives from one user's key, in its own order."""

S = TypeVar("S", bound="Scheme")


class Scheme(ABC):
    """The numbers of one format.

    window: W, number of tokens in a context.
    keys: keys derived from the watermark's key; marking and scoring read no others. A scheme never shows them.
    foreign: whether the format belongs to another system, which reads and writes the same texts.
    compat_tail: the tail that that system's detector reports as p-value.
    native: parameters of the compiled ops; None if only PyTorch code supports the scheme.
    code: of the payload; None without one.
    """

    foreign: ClassVar[bool] = False
    compat_tail: ClassVar[Literal["exact", "normal"]] = "exact"
    native: Native | None = None
    code: PayloadCode | None = None

    def __init__(self, secret: int, window: int) -> None:
        self.window, self.keys = window, self.derive(secret)

    def derive(self, secret: int) -> Keys:
        """Return the keys that the scheme derives from a user's key below 2^64."""
        return (secret,)

    @property
    def reads_prompt(self) -> bool:
        """Whether the context of the first generated tokens includes the prompt's last tokens."""
        return self.foreign and self.window > 0

    def marks(self, context: torch.Tensor) -> torch.Tensor:
        """Return whether the system marks after contexts int64 [B, W], bool [B]."""
        return torch.ones(context.shape[0], dtype=torch.bool, device=context.device)

    def placed(self: S, device: torch.device) -> S:
        """Return the same scheme with its tensors on the device, so that calls move nothing."""
        other = copy.copy(self)
        other.settle(device)
        return other

    def settle(self, device: torch.device) -> None:
        """Move marking's lookup tables to the device, and change what works differently there."""
        return

    def stays_on(self, device: torch.device) -> bool:
        """Return whether a `placed` scheme computes on the device alone."""
        return True

    def share(self, other: Any) -> None:
        """Take from the same scheme under another key whatever is expensive and does not depend on the key."""
        return

    def check_readable(self) -> None:
        """Raise ValueError if texts cannot be scored with the parameters given."""
        return

    def check_ids(self, greatest: int) -> None:
        """Raise ValueError if `greatest`, the greatest token id of a text, is outside the given vocabulary."""
        return

    def check_writable(self) -> None:
        """Raise ValueError if texts cannot be marked with the parameters given."""
        return

    def score(self, ids: torch.Tensor) -> TokenScores:
        """Score every token of one text int64 [n], with a kernel if there is one."""
        return self.score_ref(ids)

    def score_keyed(self, ids: torch.Tensor, keys: torch.Tensor) -> TokenScores:
        """Score under keys int64 [n], the 64 bits of each token's native key; for schemes with `native`."""
        raise NotImplementedError("this format has no native key")

    @abstractmethod
    def score_ref(self, ids: torch.Tensor) -> TokenScores:
        """Score in plain PyTorch."""

    def payload_scores(self, ids: torch.Tensor) -> PayloadScores:
        """Score every token of one text int64 [n] under each symbol of the code."""
        raise NotImplementedError("this format carries no payload")


class RaceScheme(Scheme):
    """Numbers for a race among tokens.

    shares: an unmarked token's score is the sum of independent Exponential(1) numbers, each times one of these.
    marks_repeats: whether the system marks a context that has already occurred in the text.
    """

    shares: tuple[float, ...] = (1.0,)
    marks_repeats: ClassVar[bool] = False

    @abstractmethod
    def noise(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return Gumbel values float64 [B, N] of tokens [B, N] (-1 = none) after contexts [B, W]."""

    def winner(
        self, logits: torch.Tensor, context: torch.Tensor, temperature: float, keys: torch.Tensor | None, native: bool
    ) -> torch.Tensor:
        """Return the winner among all logits float32 [B, V] / temperature that are not -inf, int64 [B]; 0 where nobody
        races.

        keys: int64 [B], of each row in place of the scheme's; for schemes with `native`. native: by kernels.
        """
        tokens = torch.arange(logits.shape[1], device=logits.device).expand_as(logits)
        race = logits.double() / temperature + self.noise(context, tokens)
        return first_of(torch.where(logits > -torch.inf, race, -torch.inf), tokens)


F = TypeVar("F", bound="Formatted")


class Formatted(Watermark):
    """A watermark with a `format`. Everything that depends on the format is delegated to its scheme."""

    format: str
    vocab_size: int | None

    @cached_property
    @abstractmethod
    def scheme(self) -> Scheme:
        """The scheme of this format and these parameters. ValueError if they do not go together."""

    @property
    def window(self) -> int:
        return self.scheme.window

    @property
    def native(self) -> Native | None:
        return self.scheme.native

    @property
    def foreign(self) -> bool:
        return self.scheme.foreign

    @property
    def reads_prompt(self) -> bool:
        return self.scheme.reads_prompt

    @property
    def compat_tail(self) -> Literal["exact", "normal"]:
        return self.scheme.compat_tail

    @property
    def code(self) -> PayloadCode | None:
        return self.scheme.code

    def with_vocabulary(self: F, vocab_size: int) -> F:
        if not self.foreign or self.vocab_size is not None:
            return self
        known: dict[str, Any] = {"vocab_size": vocab_size}  # the fields are those of the subclasses
        return dataclasses.replace(self, **known)

    def with_key(self: F, key: Any) -> F:
        other = super().with_key(key)
        other.scheme.share(self.scheme)
        return other

    def fixed_on(self, device: torch.device) -> bool:
        return self.native is not None or self.scheme.stays_on(device)

    def placed(self: F, device: torch.device) -> F:
        other = copy.copy(self)
        other.__dict__["scheme"] = self.scheme.placed(device)
        return other

    def check_readable(self) -> None:
        self.scheme.check_readable()

    def check_ids(self, greatest: int) -> None:
        self.scheme.check_ids(greatest)

    def check_strength(self, max_strength: float) -> None:
        super().check_strength(max_strength)
        self.scheme.check_writable()

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        return self.scheme.score(ids)

    def score_keyed(self, ids: torch.Tensor, keys: torch.Tensor) -> TokenScores:
        """Compute `score_tokens` under keys int64 [n], the 64 bits of each token's native key."""
        return self.scheme.score_keyed(ids, keys)

    def score_tokens_ref(self, ids: torch.Tensor) -> TokenScores:
        """Compute `score_tokens` in plain PyTorch."""
        return self.scheme.score_ref(ids)

    def payload_scores(self, ids: torch.Tensor) -> PayloadScores:
        return self.scheme.payload_scores(ids)


def require_format(name: str, known: tuple[str, ...]) -> None:
    """Raise ValueError unless the watermark has this format."""
    require_choice("format", name, known, "native")
