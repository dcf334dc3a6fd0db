"""The base of all attacks: seeded functions of a text and its id that count their changes."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np


class AttackError(ValueError):
    """One text could not be attacked; the others can."""


class NeedsError(ValueError):
    """A requirement of an attack is missing, such as human texts."""


@dataclass(frozen=True)
class Attacked:
    """A text after an attack. words: before it (copy-paste: after it). edited: of them changed or removed (added)."""

    text: str
    edited: int
    words: int

    @property
    def edit_rate(self) -> float:
        """Share of words that the attack changed; may be less than requested."""
        return self.edited / self.words if self.words else 0.0


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """An attack with its parameters; call it with a text and the text's id.

    The random draw depends only on the seed, the kind of attack (its `stream`) and the id. So texts may come in any
    order and shard, words that change at a low rate also change at a higher rate, and marked texts and negatives meet
    the same attack.

    kind: its name in `ATTACKS`. stream: attacks of one stream choose the same words; "" = its kind. parallel: whether
    calls from several threads are safe and useful. seed: of the draw.
    """

    kind: ClassVar[str]
    stream: ClassVar[str] = ""
    parallel: ClassVar[bool] = False
    seed: int = 0

    @property
    @abstractmethod
    def name(self) -> str:
        """Kind and strength, e.g. "word-d-0.1"; `Score.attack`."""

    @abstractmethod
    def apply(self, text: str, rng: np.random.Generator) -> Attacked:
        """Attack a text with this draw."""

    def __call__(self, text: str, text_id: str) -> Attacked:
        """Attack a text, alike for the same (attack, text, text_id); empty ones stay. AttackError if it cannot be."""
        if not text.strip():
            return Attacked(text, 0, 0)
        digest = hashlib.sha256(f"{self.seed}\0{self.stream or self.kind}\0{text_id}".encode()).digest()
        return self.apply(text, np.random.default_rng(int.from_bytes(digest[:8], "big")))

    def describe(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"kind": self.kind, **{n: v for n, v in plain.items() if isinstance(v, (int, float, str))}}


@dataclass(frozen=True)
class RateAttack(Attack):
    """An attack on this share of the words. Raises ValueError for a rate outside (0, 1]."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"an attack's rate must be above 0 and at most 1, got {self.rate}; give e.g. 0.1")

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.rate:g}"
