"""EXP: a keyed race among the most likely tokens (Aaronson 2022; Kuditipudi et al. 2023, arXiv 2307.15593).

Native format = vLLM's Gumbel watermark: raw key, context = the last `context_width` generated tokens, F_t the PRF's
uniform. Token t has race value log p_t - log(-log F_t), which orders tokens as F_t^(1/p_t) does; it is computed in
float64 because F^(1/p) underflows. Strength either shortens the list of racing tokens ("top_k", the paper's K') or
scales the noise ("scale"). A token's score is -log(1 - F), Gamma(1, 1) distributed on unmarked text.

Formats of other systems: "markllm" is MarkLLM's EXP and "vllm-dual" vLLM's dual-key Gumbel watermark
(`formats.uniforms`), "sglang" SGLang's Gumbel watermark (`formats.murmur`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

from caw.arrays import ops, torch
from caw.checks import require_bool, require_choice, require_int, require_number
from caw.defaults import FREE_NATS, TOP_K_EXP
from caw.ladder import Ladder, Rule, race_ladder_ref
from caw.op_indices import RACE_SCALE, RACE_TOP_K
from caw.record import RECORD_SIZE
from caw.watermarks import keys
from caw.watermarks.base import Position
from caw.watermarks.formats.murmur import MurmurRace
from caw.watermarks.formats.symbols import SymbolRace
from caw.watermarks.formats.uniforms import DualKeyRace, GeneratorRace
from caw.watermarks.payload import MAX_BITS, make_payload
from caw.watermarks.race import Race, RaceScheme
from caw.watermarks.scheme import Formatted

FORMATS = ("vllm-dual", "markllm", "sglang")
MAX_WIDTH = 64
MAX_FREE = 1e4  # nats
PAYLOAD_SYMBOLS = 4  # keys among which a payload chooses


@dataclass(frozen=True)
class EXP(Formatted):
    """The exponential (Gumbel) watermark.

    Args:
        key: int below 2^64, text or bytes; format "sglang": also a list of its two keys.
        top_k: with strength="top_k", number of tokens that race at strength 1.
        strength: the parameter that strength scales: "top_k" is the number of tokens that race, "scale" the weight of
            the noise. "scale" at strength 1, under a policy without look-ahead, is the one setting that does not
            distort: the race runs over every token that the sampler keeps, and over keys its winner is drawn from the
            model's distribution. It draws whether the call samples or not: the key's noise takes the place of the
            sampler's, so a call without do_sample=True gets text drawn at temperature 1, and a warning.
        context_width: number of tokens that seed the race.
        deduplicate: leave a token unmarked if its context has already occurred in this output. Format "markllm" ignores
            it, because MarkLLM marks every token.
        format: "native", "vllm-dual", "markllm" or "sglang".
        vocab_size: MarkLLM takes products modulo the size of the model's logits. `generate` fills it in.
        temperature: divides the logits that race, in addition to the sampling temperature. MarkLLM races at 0.7 in its
            repository and at 1 in its releases on PyPI. Detection does not depend on it.
        alpha: share of key B, with two keys: format "vllm-dual", and "sglang" (1 - its `mixing_probability`).
        free: nats of the free beginning: the first tokens of a text that is drawn are drawn without the key, from the
            text's own seed, until their surprisals reach `free` (at most `FREE_TOKENS` tokens); from the next token on
            the key draws. So another draw of a prompt begins alike with a chance of at most e^-free. None = log 64
            where the race at full strength of strength="scale" can leave one out (native format, temperature 1, no
            payload), else 0; more than 0 elsewhere is refused when a text is planned.
        payload, payload_bits: a number below 2^payload_bits (at most 2^32) to embed in the text, see `payload`. To read
            it, give payload_bits alone. Native format only.

    Raises TypeError or ValueError naming the argument, and ImportError for a payload without reedsolo.
    """

    key: int | str | bytes | Sequence[int] = field(repr=False)  # type: ignore[assignment]
    top_k: int = TOP_K_EXP
    strength: Literal["top_k", "scale"] = "top_k"
    context_width: int = 4
    deduplicate: bool = True
    format: str = "native"
    vocab_size: int | None = None
    temperature: float = 1.0
    alpha: float = 0.1
    free: float | None = None
    payload: int | None = None
    payload_bits: int = 0

    name: ClassVar[str] = "exp"

    def __post_init__(self) -> None:
        if not isinstance(self.key, (list, tuple)):
            return super().__post_init__()
        if self.format != "sglang" or len(self.key) != 2:
            raise ValueError(
                f"key must be one key, or two with format 'sglang', got {len(self.key)} with format {self.format!r}"
            )
        object.__setattr__(self, "key", tuple(map(keys.normalize_key, self.key)))
        self.validate()

    @property
    def secret(self) -> int:
        return keys.joined(self.key) if isinstance(self.key, tuple) else super().secret

    def validate(self) -> None:
        self.require_format(*FORMATS)
        require_bool("deduplicate", self.deduplicate)
        require_number("alpha", self.alpha, 0, 1, closed=True)
        require_number("temperature", self.temperature, 0, 1e4, closed=False)
        require_int("top_k", self.top_k, 1, RECORD_SIZE)
        require_int("context_width", self.context_width, 1, MAX_WIDTH)
        if self.free is not None:
            require_number("free", self.free, 0, MAX_FREE, closed=True)
        require_int("payload_bits", self.payload_bits, 0, MAX_BITS)
        require_choice("strength", self.strength, ("top_k", "scale"), "top_k")
        _ = self.scheme  # refuses what does not go together

    @cached_property
    def scheme(self) -> RaceScheme:
        payload = make_payload(self.payload, self.payload_bits, PAYLOAD_SYMBOLS, self.format, self.secret)
        if self.format == "vllm-dual":
            return DualKeyRace(self.secret, self.context_width, self.alpha)
        if self.format == "sglang":
            pair = self.key if isinstance(self.key, tuple) else (self.secret,)
            return MurmurRace(pair, self.context_width, self.alpha)
        if self.format == "markllm":
            return GeneratorRace(self.format, self.secret, self.context_width, self.vocab_size)
        if payload:
            return SymbolRace(self.context_width, payload)
        number = RACE_TOP_K if self.strength == "top_k" else RACE_SCALE
        return Race(self.secret, self.context_width, number if self.temperature == 1 else None)

    @property
    def may_begin_freely(self) -> bool:
        """Whether the race of these parameters can leave a beginning to the sampler."""
        plain = self.format == "native" and self.temperature == 1 and self.payload_bits == 0
        return plain and self.strength == "scale"

    @property
    def beginning(self) -> float:
        if self.free is None:
            return FREE_NATS if self.may_begin_freely else 0.0
        return float(self.free)

    @property
    def null_moments(self) -> tuple[float, float]:
        return 1.0, sum(share**2 for share in self.scheme.shares)

    @property
    def null_third(self) -> float:
        return 2 * sum(share**3 for share in self.scheme.shares)

    @property
    def rule(self) -> Rule:
        return self.strength

    @property
    def full(self) -> float:
        return float(self.top_k) if self.strength == "top_k" else 1.0

    @property
    def max_candidates(self) -> int:
        return self.top_k if self.strength == "top_k" else RECORD_SIZE

    @property
    def deduplicates(self) -> bool:
        return self.deduplicate and not self.scheme.marks_repeats

    def ladder(self, position: Position, max_strength: float) -> Ladder:
        """Return every token that wins as strength grows, without sampling noise: strength 1 is the watermark's."""
        record, race = position.record, self._race(position)
        op = ops.race_ladder if position.fixed else race_ladder_ref
        found = op(record.values, record.ids, race, self.full, max_strength, self.races_whole)
        ladder = Ladder(found[0], found[1], found[2], self.rule, self.full)
        return ladder.only_original(~self.scheme.marks(position.context))

    @property
    def races_whole(self) -> bool:
        return self.strength == "scale"

    def markable(self, context: torch.Tensor) -> torch.Tensor:
        return self.scheme.marks(context)

    def whole_winner(self, position: Position, *, native: bool) -> torch.Tensor:
        warped, keys = position.warped, None if self.native is None else position.keys
        assert warped is not None
        return self.scheme.winner(warped, position.context, self.temperature, keys, native)

    def _race(self, position: Position) -> torch.Tensor:
        """Race values of the record, float64 [B, K]."""
        record = position.record
        race = position.race_values.double() / self.temperature
        race = race + self.scheme.noise(position.context, record.ids)
        return torch.where(record.values > -torch.inf, race, -torch.inf)
