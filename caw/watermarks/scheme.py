"""Schemes: the meaning of a watermark's `format`.

A watermark with a `format` holds its parameters and defines what strength does. Its scheme turns contexts and tokens
into the numbers of one system, both for marking at generation and for scoring afterwards.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from caw.arrays import torch
from caw.checks import require_choice, require_int
from caw.watermarks.base import Native, TokenScores, Watermark
from caw.watermarks.payload import PayloadCode

MAX_VOCABULARY = (1 << 31) - 1
S = TypeVar("S", bound="Scheme")


class Scheme(ABC):
    """The numbers of one format.

    window: W, number of tokens in a context.
    keys: keys derived from the watermark's key; marking and scoring read no others. A scheme never shows them.
    foreign: whether the format belongs to another system, which reads and writes the same texts.
    native: parameters of the compiled ops; None if only PyTorch code supports the scheme.
    code: of the payload; None without one.
    """

    foreign: ClassVar[bool] = False
    native: Native | None = None
    code: PayloadCode | None = None

    def __init__(self, window: int, *keys: int) -> None:
        self.window, self.keys = window, keys

    def placed(self: S, device: torch.device) -> S | None:
        """Return the scheme with marking's tables on the device; None if some part of marking would run elsewhere."""
        return self

    def check_readable(self) -> None:
        """Raise ValueError if texts cannot be scored with the parameters given."""
        return

    def check_writable(self) -> None:
        """Raise ValueError if texts cannot be marked with the parameters given."""
        return

    @abstractmethod
    def score_ref(self, ids: torch.Tensor) -> TokenScores:
        """Score every token of one text int64 [n] in plain PyTorch."""


F = TypeVar("F", bound="Formatted")


def of_scheme(name: str) -> Any:
    """A property that a watermark takes from its scheme."""
    return property(lambda mark: getattr(mark.scheme, name))


class Formatted(Watermark):
    """A watermark with a `format`. Everything that depends on the format is delegated to its scheme."""

    scores_arrays: ClassVar[bool] = True

    format: str
    vocab_size: int | None
    window, native, foreign, code = map(of_scheme, ("window", "native", "foreign", "code"))

    @cached_property
    @abstractmethod
    def scheme(self) -> Scheme:
        """The scheme of this format and these parameters. ValueError if they do not go together."""

    def with_vocabulary(self: F, vocab_size: int) -> F:
        if not self.foreign or self.vocab_size is not None:
            return self
        known: dict[str, Any] = {"vocab_size": vocab_size}  # the fields are those of the subclasses
        return dataclasses.replace(self, **known)

    def placed(self: F, device: torch.device) -> F | None:
        scheme = self.scheme.placed(device)
        if scheme is None or scheme is self.scheme:
            return self if scheme else None
        other = copy.copy(self)
        other.__dict__["scheme"] = scheme
        return other

    def check_readable(self) -> None:
        self.scheme.check_readable()

    def check_ids(self, greatest: int) -> None:
        if self.foreign and self.vocab_size is not None and greatest >= self.vocab_size:
            raise ValueError(
                f"format {self.format!r} has vocab_size {self.vocab_size}, but the text contains token id {greatest}; "
                "use the tokenizer and the vocab_size of the model that wrote the text"
            )

    def check_strength(self, max_strength: float) -> None:
        super().check_strength(max_strength)
        self.scheme.check_writable()

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        native = self.native
        return self.scheme.score_ref(ids) if native is None else native.scores(ids, self.window)

    def require_format(self, *known: str) -> None:
        """Raise unless the watermark has one of these formats, or the native one, and a valid vocabulary if any."""
        require_choice("format", self.format, ("native", *known), "native")
        if self.vocab_size is not None:
            require_int("vocab_size", self.vocab_size, 2, MAX_VOCABULARY)
