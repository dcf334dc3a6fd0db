"""How to decode: one frozen, validated set of settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from caw.watermarks.base import Watermark, require_int, require_number

Branching = Literal["tree", "sequential", "batch"]
BRANCHINGS = ("tree", "sequential", "batch")
MAX_SLOTS = 32
MIN_TEMPERATURE = 1e-6  # logits divided by less leave float32; this is greedy long before


@dataclass(frozen=True)
class DecodeSettings:
    """Settings of one call; see `caw.generate` for their meaning.

    slots: candidates one forward carries; None = as many as the watermark usually needs.
    mark_eos: whether marks may decide where a text ends; False keeps the original token wherever one of
        `eos_token_ids` is among the candidates that the policy's greatest strength reaches.
    Raises TypeError or ValueError naming the argument.
    """

    max_new_tokens: int = 200
    min_new_tokens: int = 0
    branching: Branching = "tree"
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    slots: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    trace: bool = True
    mark_eos: bool = True

    def __post_init__(self) -> None:
        require_int("max_new_tokens", self.max_new_tokens, 1, 1 << 24)
        require_int("min_new_tokens", self.min_new_tokens, 0, self.max_new_tokens)
        require_number("temperature", self.temperature, MIN_TEMPERATURE, 1e4, closed=True)
        require_int("top_k", self.top_k, 0, 1 << 31)
        require_number("top_p", self.top_p, 0, 1, closed=True)
        require_int("seed", self.seed, 0, (1 << 64) - 1)
        if self.slots is not None:
            require_int("slots", self.slots, 1, MAX_SLOTS)
        if not isinstance(self.mark_eos, bool):
            raise TypeError(f"mark_eos must be True, False or None, got {self.mark_eos!r}; leave it out")
        if self.top_p == 0:
            raise ValueError("top_p must be in (0, 1], got 0; use do_sample=False for greedy decoding")
        if self.branching not in BRANCHINGS:
            raise ValueError(f"branching must be one of {', '.join(BRANCHINGS)}, got {self.branching!r}; use 'tree'")


def marks_eos(asked: bool | None, watermark: Watermark | None) -> bool:
    """`DecodeSettings.mark_eos` of a call; None = as the watermark's system does (`Watermark.marks_ends`)."""
    return (watermark is not None and watermark.marks_ends) if asked is None else asked
