"""SynthID-Text: tournament sampling (Dathathri et al. 2024, Nature 634, doi 10.1038/s41586-024-08025-4).

The format is that of transformers' SynthIDTextWatermarkLogitsProcessor. Each of m layers has a key. g_l(t) is a bit of
a fixed table, found by a hash of the last ngram_len - 1 generated tokens (0 where there are none), the token and the
layer's key. A layer turns probabilities p into p (1 + g_l - sum p g_l): those of the winner of a tournament of two.

Strength is the number of layers applied: sigma m, rounded. The ladder's candidates are the winners after 0, 1, ..., m
layers: draws with the sampling noise, or the most likely token when decoding greedily. A context that has already
occurred in the output is not marked again. transformers does the same but remembers only 1024 contexts.

A text's score is the mean of its g bits, or a weighted mean: weights fall from 10 to 1 over the layers, because earlier
layers carry more of the mark. On unmarked text each bit is 1 with the table's share of ones, so the exact p-value is a
(weighted) binomial tail. transformers gives no p-value.

That tail assumes independent layers. Two layers that read the table at the same place give equal bits, so such keys are
rejected (`shared_places`), as are tables so small that chance patterns in them show.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import Any, ClassVar, Literal

import numpy as np

from caw import text_scores
from caw.arrays import beside, clamped, float64, ops, torch
from caw.checks import require_choice, require_int
from caw.ladder import Ladder, Rule, layer_ladder, reach
from caw.tournament import MULTIPLIER, layered_table, ngram_hashes, places, winners_of
from caw.watermarks import keys
from caw.watermarks.base import MISSING, Null, Position, TokenScores, Watermark

DOMAIN = b"caw/synthid"
MAX_LAYERS = 64
# bits of the table: with fewer, chance patterns make p-values wrong (measured in the tests); more, transformers refuses
MIN_TABLE, MAX_TABLE = 1 << 10, 1 << 24
MAX_LAYERED = 1 << 20  # places of a table that holds all layers: 4 or 8 MB


@dataclass(frozen=True)
class SynthID(Watermark):
    """The SynthID-Text watermark, as transformers writes it.

    Args:
        key: the list of layer keys in transformers' configuration, or an int below 2^64, text or bytes from which
            `depth` keys are derived.
        depth: m, number of layers, if `key` is not a list.
        ngram_len: tokens hashed, the token itself included.
        sampling_table_size, sampling_table_seed: of the table of bits.
        reading: "weighted" or "mean": the mean that scores a text.

    Raises TypeError or ValueError naming the argument.
    """

    key: int | str | bytes | Sequence[int] = field(repr=False)  # type: ignore[assignment]
    depth: int = 30
    ngram_len: int = 5
    sampling_table_size: int = 65536
    sampling_table_seed: int = 0
    reading: Literal["weighted", "mean"] = "weighted"

    name: ClassVar[str] = "synthid"
    null: ClassVar[Null] = "bits"
    scores_arrays: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_int("sampling_table_size", self.sampling_table_size, MIN_TABLE, MAX_TABLE)
        if isinstance(self.key, (list, tuple)):
            object.__setattr__(self, "key", tuple(_layer_key(one, i) for i, one in enumerate(self.key)))
            object.__setattr__(self, "depth", len(self.key))
            require_int("number of keys", len(self.key), 1, MAX_LAYERS)
            _require_different(self.keys, self.sampling_table_size)
        else:
            require_int("depth", self.depth, 1, MAX_LAYERS)
            secret = keys.normalize_key(self.key)  # type: ignore[arg-type]
            object.__setattr__(self, "key", _derived(secret, self.depth, self.sampling_table_size))
        self.validate()

    def validate(self) -> None:
        require_int("ngram_len", self.ngram_len, 2, 64)
        require_int("sampling_table_seed", self.sampling_table_seed, 0, (1 << 63) - 1)
        require_choice("reading", self.reading, ("weighted", "mean"), "weighted")

    @property
    def keys(self) -> tuple[int, ...]:
        assert isinstance(self.key, tuple)
        return self.key

    def with_key(self, key: Any) -> SynthID:
        other = super().with_key(key)
        if other.depth != self.depth:
            raise ValueError(f"key must have {self.depth} layer keys, got {other.depth}; give the same number")
        return other

    @property
    def secret(self) -> int:
        """One number for all keys, to derive `key_id` from."""
        return keys.joined(self.keys)

    @property
    def marks_ends(self) -> bool:
        """True, as in transformers' processor, whose texts these must equal."""
        return True

    @property
    def window(self) -> int:
        return self.ngram_len - 1

    @property
    def rule(self) -> Rule:
        return "top_k"

    @property
    def full(self) -> float:
        return float(self.depth)

    @property
    def max_candidates(self) -> int:
        return self.depth + 1

    @property
    def repeats_candidates(self) -> bool:
        return True

    @property
    def deduplicates(self) -> bool:
        return True

    @property
    def missing(self) -> int:
        """0, as in transformers: behind a text's first token 0 a context may have occurred already."""
        return 0

    @cached_property
    def table(self) -> np.ndarray | torch.Tensor:
        """The bits, int64 [sampling_table_size], of torch's CPU generator."""
        places = np.arange(self.sampling_table_size)
        return text_scores.generator_words(np.full_like(places, self.sampling_table_seed), places) & 1

    @cached_property
    def layered(self) -> torch.Tensor | None:
        """The bits of all layers in one table, as the ladder's operator reads them; None where its size allows none."""
        size = self.sampling_table_size
        if size & (size - 1) or size > MAX_LAYERED:
            return None
        return layered_table(torch.as_tensor(self.table), self.keys)

    @property
    def bit_fraction(self) -> float:
        """Probability that a bit is one under the null hypothesis."""
        return float(self.table.sum()) / self.sampling_table_size

    @property
    def null_moments(self) -> tuple[float, float]:
        share = self.layer_weights / self.layer_weights.sum()
        return self.bit_fraction, self.bit_fraction * (1 - self.bit_fraction) * float((share**2).sum())

    @property
    def null_third(self) -> float:
        share, f = self.layer_weights / self.layer_weights.sum(), self.bit_fraction
        return f * (1 - f) * (1 - 2 * f) * float((share**3).sum())

    @cached_property
    def layer_weights(self) -> np.ndarray:
        """Whole-number weights int64 [m] of the layers: linspace(10, 1, m) times m - 1, or ones."""
        if self.reading == "mean" or self.depth == 1:
            return np.ones(self.depth, dtype=np.int64)
        return 10 * (self.depth - 1) - 9 * np.arange(self.depth, dtype=np.int64)

    def hashes(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the hash of each n-gram, wrapping int64 [B, N]: context [B, W] (missing = 0), tokens [B, N]."""
        return ngram_hashes(context, tokens)

    def bits(self, hashes: torch.Tensor, layer: int) -> torch.Tensor:
        """Return g of one layer, int64 0/1 like `hashes`."""
        index = places(hashes, self.keys[layer], self.sampling_table_size)
        table = beside(self.table, hashes)
        if isinstance(index, np.ndarray):
            return table[index]
        return torch.index_select(table, 0, index.flatten()).view(hashes.shape)

    def ladder(self, position: Position, max_strength: float) -> Ladder:
        """Return the winners after 0, 1, ... layers of what transformers' `update_scores` computes (`winners_of`)."""
        scores = position.scores.float()
        warped = scores if position.warped is None else position.warped.float()
        first, layers = position.record.ids[:, 0], self.rungs(max_strength) - 1
        if self.layered is None:
            hashes = self.hashes(position.context, torch.arange(scores.shape[1], device=scores.device)[None])
            winners = winners_of(warped, scores, first, [partial(self.bits, hashes, layer) for layer in range(layers)])
        else:
            winners = ops.tournament(warped, scores, first, position.context, self.layered.to(scores.device), layers)
        return layer_ladder(torch.cat([first[:, None], winners], dim=1), self.full)

    def placed(self, device: torch.device) -> SynthID:
        other = copy.copy(self)
        other.__dict__["table"] = torch.as_tensor(self.table).to(device)
        other.__dict__["layered"] = None if self.layered is None else self.layered.to(device)
        return other

    def rungs(self, max_strength: float) -> int:
        return 1 + reach(self.depth, self.full, max_strength)

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        """Return each token's (weighted) mean bit; the first ngram_len - 1 tokens are skipped, as in transformers."""
        contexts = self.contexts(ids)
        known = (contexts != MISSING).all(1) & (ids != MISSING)
        hashes = self.hashes(contexts, clamped(ids)[:, None])[:, 0]
        total = 0 * ids
        for layer, weight in enumerate(self.layer_weights.tolist()):
            total += weight * self.bits(hashes, layer)
        size = self.sampling_table_size
        # the hash is linear: where the table's size divides 2^64, n-grams of equal remainder share all their bits
        # where not, those of equal remainder behind the multiplication share nearly all
        evidence = (hashes if size & (size - 1) == 0 else hashes * MULTIPLIER) % size
        values = float64(total) / float(self.layer_weights.sum())
        return TokenScores(values, evidence[:, None], known, compat_evidence=contexts)


def shared_places(one: int, other: int, size: int) -> float:
    """Return the share of n-grams for which two layer keys read a table of `size` bits at the same place.

    A layer reads at ((hash + key) a + 1) mod size, computed as a signed 64-bit number. Two layers' numbers differ by
    d = (other - one) a mod 2^64, or by d - 2^64 where the greater one wraps, which a share d / 2^64 of them does.
    """
    d = (other - one) * MULTIPLIER % (1 << 64)
    wrapped = d / 2**64
    return (d % size == 0) * (1 - wrapped) + ((d - (1 << 64)) % size == 0) * wrapped


def _layer_key(key: Any, index: int) -> int:
    """Validate one of transformers' layer keys; no message shows it."""
    if isinstance(key, bool) or not isinstance(key, (int, np.integer)):
        raise TypeError(f"each layer key must be an integer, got {type(key).__name__} at place {index}; convert it")
    if not -(1 << 63) <= int(key) < 1 << 63:
        raise ValueError(
            f"each layer key must be in [-2**63, 2**63), got an integer outside it at place {index}; use those of "
            "transformers' configuration"
        )
    return int(key)


def _require_different(keys: Sequence[int], size: int) -> None:
    for i, key in enumerate(keys):
        for j in range(i):
            if shared_places(keys[j], key, size):
                raise ValueError(
                    f"layer keys must read the table of {size} bits at different places, got keys {j} and {i} (from 0) "
                    "that are equal, or equal modulo its size: their layers give the same bits, and p-values would be "
                    "too small; use other keys"
                )


def _derived(secret: int, depth: int, size: int) -> tuple[int, ...]:
    """Derive `depth` layer keys from one secret, skipping any that would share places with an earlier one."""
    found: list[int] = []
    for i in count():
        if len(found) == depth:
            return tuple(found)
        key = keys.derive_key(secret, DOMAIN + i.to_bytes(1 + (i > 255), "big")) >> 1
        if not any(shared_places(other, key, size) for other in found):
            found.append(key)
    raise AssertionError
