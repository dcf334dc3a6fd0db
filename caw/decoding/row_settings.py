"""What may differ from one text of a batch to the next, and how far the texts of one decoder may differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from caw.checks import require_int, require_number
from caw.io.show import shown
from caw.policies.base import MAX_STRENGTH, scaled
from caw.settings import Settings, check_row

MAX_ENDS = 1024
MAX_MARGIN = 100.0
RowKey = int | str | bytes | tuple[int, ...]


@dataclass(frozen=True)
class RowSettings:
    """Settings of one text; those named as in `caw.settings.Settings` mean the same.

    ends: token ids that end it, None = the model's.
    strength_factor: every strength that the policy gives is multiplied by it; 0 leaves the text unmarked.
    margin: what is added to the z that the policy's target takes; means nothing without a target.
    key: of its watermark, in place of the key that the call's watermark has; None = that one.
    log_probs: whether to keep what the unmarked model says of each token.

    Raises TypeError or ValueError naming the argument.
    """

    max_new_tokens: int = 200
    min_new_tokens: int = 0
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    ends: tuple[int, ...] | None = None
    strength_factor: float = 1.0
    margin: float = 0.0
    key: RowKey | None = field(default=None, repr=False)
    log_probs: bool = False

    def __post_init__(self) -> None:
        check_row(self)
        require_number("strength_factor", self.strength_factor, 0, MAX_STRENGTH, closed=True)
        require_number("margin", self.margin, 0, MAX_MARGIN, closed=True)
        if isinstance(self.key, bool) or not isinstance(self.key, int | str | bytes | tuple | None):
            raise TypeError(f"key must be what a watermark takes or None, got {type(self.key).__name__}; leave it out")
        if self.ends is None:
            return
        if not isinstance(self.ends, tuple):
            raise TypeError(f"ends must be a tuple of token ids or None, got {shown(self.ends)}; convert it")
        require_int("the number of ends", len(self.ends), 0, MAX_ENDS)
        for token in self.ends:
            require_int("an end token", token, 0, (1 << 31) - 1)

    @classmethod
    def of(cls, settings: Settings) -> RowSettings:
        """What the settings of a call say of each of its texts."""
        names = {field.name for field in dataclasses.fields(settings)}
        return cls(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(cls) if f.name in names})

    def ends_of(self, model_ends: Sequence[int], vocab_size: int) -> tuple[int, ...]:
        """The token ids that end it in this model, each once; ids that the model does not have are left out."""
        ends = model_ends if self.ends is None else self.ends
        return tuple(dict.fromkeys(token for token in ends if token < vocab_size))


@dataclass(frozen=True)
class RowLimits:
    """How far the texts of one decoder may differ: a step does what one of them may need, and nothing else.

    samples, greedy: whether a text may sample; whether one may not.
    temperature, top_p: whether a text that samples may have one other than 1. top_k: the greatest.
    minimum: whether a text may have min_new_tokens. max_new_tokens: the most new tokens.
    ends: M, the most end tokens of a text, those of the model included where it asks for no others.
    strength_factor: the greatest. factors: whether texts may differ in it.
    keys: whether texts may bring keys of their own. log_probs: whether a text may ask for them.
    """

    samples: bool = True
    greedy: bool = True
    temperature: bool = True
    top_k: int = 0
    top_p: bool = True
    minimum: bool = True
    max_new_tokens: int = 200
    ends: int = 8
    strength_factor: float = 1.0
    factors: bool = True
    keys: bool = True
    log_probs: bool = False

    @classmethod
    def of(cls, rows: Sequence[RowSettings], model_ends: Sequence[int]) -> RowLimits:
        """The narrowest limits for these texts, at least one."""
        sampled = [row for row in rows if row.do_sample]
        factors = {row.strength_factor for row in rows}
        return cls(
            samples=bool(sampled),
            greedy=len(sampled) < len(rows),
            temperature=any(row.temperature != 1 for row in sampled),
            top_k=max((row.top_k for row in sampled), default=0),
            top_p=any(row.top_p < 1 for row in sampled),
            minimum=any(row.min_new_tokens for row in rows),
            max_new_tokens=max(row.max_new_tokens for row in rows),
            ends=max(len(model_ends if row.ends is None else row.ends) for row in rows),
            strength_factor=max(factors),
            factors=len(factors) > 1,
            keys=any(row.key is not None for row in rows),
            log_probs=any(row.log_probs for row in rows),
        )

    def check(self, row: RowSettings, model_ends: Sequence[int]) -> None:
        """Raise ValueError for a text that a decoder with these limits cannot take."""
        asked = RowLimits.of([row], model_ends)
        for limit in dataclasses.fields(self):
            most, value = getattr(self, limit.name), getattr(asked, limit.name)
            if value > most:
                raise ValueError(
                    f"the texts of this decoder may have {limit.name} up to {shown(most)}, got one with "
                    f"{shown(value)}; plan it with wider limits"
                )
        if not self.factors and row.strength_factor != self.strength_factor:
            raise ValueError(
                f"the texts of this decoder have one strength_factor, {self.strength_factor:g}, got "
                f"{row.strength_factor:g}; plan it with wider limits"
            )

    def greatest(self, strength: float) -> float:
        """The greatest strength of a policy whose own is `strength`, rounded as the steps round it."""
        return scaled(strength, self.strength_factor)
