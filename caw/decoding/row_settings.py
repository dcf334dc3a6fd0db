"""Settings that may differ between the texts of a batch, and limits on how far they differ."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from caw.checks import require_int, require_number
from caw.defaults import FREE_TOKENS
from caw.io.show import shown
from caw.policies.base import MAX_STRENGTH, scaled
from caw.settings import Sampling, Settings, check_row

MAX_ENDS = 1024
MAX_MARGIN = 100.0
RowKey = int | str | bytes | tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RowSettings(Sampling):
    """Settings of one text.

    ends: token ids that end it, None = the model's.
    strength_factor: every strength that the policy gives is multiplied by it; 0 leaves the text unmarked.
    margin: added to the z that the policy's target needs; no effect without a target.
    key: replaces the key of the call's watermark; None = that one.
    begins: whether the text may have a free beginning (`caw.EXP`).
    log_probs: whether to keep the unmarked model's log-probabilities of each token.

    Raises TypeError or ValueError naming the argument.
    """

    ends: tuple[int, ...] | None = None
    strength_factor: float = 1.0
    margin: float = 0.0
    key: RowKey | None = field(default=None, repr=False)
    begins: bool = True
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
    def of(cls, settings: Settings) -> "RowSettings":
        """Take the settings of each text from those of a call."""
        return cls(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(Sampling)})

    @property
    def known_seed(self) -> int:
        """The seed of a text that is being made: its `Request` drew one where none was given."""
        assert self.seed is not None
        return self.seed

    @property
    def penalised(self) -> bool:
        penalties = self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty
        return bool(penalties or self.logit_bias)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ValueError for a bias of a token that the model does not have."""
        greatest = max(dict(self.logit_bias or {}), default=0)
        if greatest >= vocab_size:
            raise ValueError(
                f"logit_bias must name token ids below the model's vocabulary size {vocab_size}, got {greatest}; "
                "use the model's own tokenizer"
            )

    def ends_of(self, model_ends: Sequence[int], vocab_size: int) -> tuple[int, ...]:
        """Return the token ids that end it in this model, each once, without ids that the model does not have."""
        ends = model_ends if self.ends is None else self.ends
        return tuple(dict.fromkeys(token for token in ends if token < vocab_size))


def may_begin_freely(most: int, window: int, *, bound: bool) -> bool:
    """Tell whether a stranger's request may begin freely: not a short one, nor one `bound` to end or steer its text."""
    return most >= FREE_TOKENS + 4 * window and not bound


@dataclass(frozen=True)
class RowLimits:
    """Settings of the texts that one decoder must serve: a step leaves out what none of them may use.

    samples, greedy: whether a text may sample; whether one may not.
    temperature, top_p: whether a text that samples may have one other than 1. top_k: the greatest.
    min_p: whether a text that samples may have one.
    repetition_penalty, presence_penalty, frequency_penalty, logit_bias: whether a text may have one.
    minimum: whether a text may have min_new_tokens. max_new_tokens: the most new tokens. length: the most tokens of a
    text, prompt and new; 0 = `Chooser` makes room as they come.
    ends: M, the most end tokens of a text, those of the model included where it asks for no others.
    strength_factor: the greatest. factors: whether texts may differ in it.
    keys: whether texts may bring keys of their own. log_probs: whether a text may ask for them. counts_open: whether to
    count the positions at which marks have a choice.
    """

    samples: bool = True
    greedy: bool = True
    temperature: bool = True
    top_k: int = 0
    top_p: bool = True
    minimum: bool = True
    max_new_tokens: int = 200
    length: int = 0
    ends: int = 8
    strength_factor: float = 1.0
    factors: bool = True
    keys: bool = True
    log_probs: bool = False
    min_p: bool = False
    repetition_penalty: bool = False
    presence_penalty: bool = False
    frequency_penalty: bool = False
    logit_bias: bool = False
    counts_open: bool = False

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty or self.presence_penalty or self.frequency_penalty or self.logit_bias

    @property
    def warped(self) -> bool:
        """True if a text may have a temperature, top-k, top-p or min-p."""
        return self.temperature or self.top_k > 0 or self.top_p or self.min_p

    @classmethod
    def of(cls, rows: Sequence[RowSettings], model_ends: Sequence[int], length: int = 0) -> "RowLimits":
        """Return the narrowest limits for these texts, at least one."""
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
            length=length,
            ends=max(len(model_ends if row.ends is None else row.ends) for row in rows),
            strength_factor=max(factors),
            factors=len(factors) > 1,
            keys=any(row.key is not None for row in rows),
            log_probs=any(row.log_probs for row in rows),
            min_p=any(row.min_p for row in sampled),
            repetition_penalty=any(row.repetition_penalty != 1 for row in rows),
            presence_penalty=any(row.presence_penalty for row in rows),
            frequency_penalty=any(row.frequency_penalty for row in rows),
            logit_bias=any(row.logit_bias for row in rows),
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
        """Return the maximum strength under a policy whose own is `strength`, rounded as in the steps."""
        return scaled(strength, self.strength_factor)
