"""One text against thousands of keys: which of them, if any, marked it?

The p-value of the likeliest of n keys is no p-value: among 10,000 keys that have nothing to do with a text, one or two
give it 1e-4. What an unmarked text and n independent random keys give is exact: the least of n p-values is p or less
with probability 1 - (1 - p)^n (Sidak 1967). That corrected p-value is what is compared with the false-positive rate.

Evidence of KGW lefthash, Unigram and EXP is the same under every key, so it is picked once and a compiled operator sums
its scores under all of them (`score_keys`). Other watermarks are tested key by key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from caw import ops
from caw.checks import require_number
from caw.detection.detector import Detector
from caw.detection.ids import split_input, unreadable
from caw.detection.result import DetectionResult
from caw.detection.statistics import tails
from caw.detection.token_scores import score_texts
from caw.io.show import is_p
from caw.watermarks import Watermark
from caw.watermarks.keys import signed
from caw.watermarks.scheme import Formatted

SELFHASH = 1  # number of the compiled scheme whose evidence depends on the key


@dataclass(frozen=True)
class KeySearchResult:
    """What one text says about many keys.

    p_values: float64 [n], of each key by itself, in the order given. p_value: of the likeliest key, corrected for n.
    likeliest: its name, of equal ones the first; "" where the text could not be read. matches: names of all keys whose
    corrected p-value is at most fpr, likeliest first. results: of those alone, by name, not corrected. nearest: of the
    likeliest key, tested at the level that it has to reach by itself; None where the text could not be read. tokens,
    fpr: of the text, and the level. message: one sentence for people. error: why the text could not be read, else "".
    """

    p_values: np.ndarray = field(repr=False)
    p_value: float
    likeliest: str
    matches: tuple[str, ...]
    results: Mapping[str, DetectionResult] = field(repr=False)
    nearest: DetectionResult | None = field(repr=False)
    tokens: int
    fpr: float
    message: str
    error: str = ""

    @property
    def is_watermarked(self) -> bool:
        return bool(self.matches)

    @property
    def is_undecided(self) -> bool:
        """Whether nothing could have been found: too few tokens count."""
        return not self.matches and self.nearest is not None and self.nearest.is_undecided


@dataclass(frozen=True)
class _Alike:
    """Watermarks that differ in nothing but the key. places: int64 [m], where their p-values go. keys: int64 [m]."""

    first: Formatted
    places: np.ndarray
    keys: torch.Tensor = field(repr=False)

    def p_values(self, ids: np.ndarray) -> np.ndarray:
        """float64 [m], of one text int64 [n]."""
        native = self.first.native
        assert native is not None
        _, counted, _, _ = score_texts(self.first, [ids], "exact")
        tokens, kept = torch.from_numpy(ids), torch.from_numpy(counted)
        contexts = self.first.contexts(tokens)[kept]
        sums = ops.score_keys(contexts, tokens[kept], self.keys, native.scheme, native.threshold).numpy()
        # green tokens are counted: a few sums, each with one tail
        different, back = np.unique(sums, return_inverse=True)
        counts = np.full(len(different), int(counted.sum()))
        found: np.ndarray = tails(self.first, different, counts).p_values[back]
        return found


class KeySearch:
    """Many keys, made ready for any number of texts.

    Args:
        tokenizer: turns text into ids; None when only ids are given.
        watermarks: by name, each with its key and the parameters of generation.
        fpr: share of unmarked texts in which any of the keys may be found, in (0, 1).
        normalize, prefix: see `Detector`.

    Raises TypeError or ValueError naming the argument; ValueError for no watermarks and for payloads.
    """

    def __init__(
        self, tokenizer: Any, watermarks: Mapping[str, Watermark], fpr: float = 1e-3, *, normalize: Any = (),
        prefix: Any = "",
    ) -> None:  # fmt: skip
        if not watermarks:
            raise ValueError("expected at least one watermark, got none; name the watermarks to look for")
        require_number("fpr", fpr, 0, 1, closed=False)
        self.names, self.watermarks, self.fpr = tuple(watermarks), tuple(watermarks.values()), float(fpr)
        for name, mark in watermarks.items():
            if not isinstance(mark, Watermark):
                raise TypeError(f"watermark {name!r} must be a KGW, Unigram or EXP, got {type(mark).__name__}")
            if mark.code is not None:
                raise ValueError(
                    f"watermark {name!r} carries a payload, which `Detector` reads; leave payload_bits out"
                )
        self._detector = Detector(tokenizer, self.watermarks[0], self.fpr, normalize=normalize, prefix=prefix)
        self._alike, self._others = _grouped(self.watermarks)

    def __call__(self, text_or_ids: Any) -> KeySearchResult | list[KeySearchResult]:
        """One result for a str or one flat list of ids; a list of results, in order, for a list of them."""
        items, single = split_input(text_or_ids)
        complaints = ["" if single else unreadable(item, f"text {i}") for i, item in enumerate(items)]
        readable = [item for item, complaint in zip(items, complaints, strict=True) if not complaint]
        in_turn = iter(self._detector.ids_of(readable))
        found = [self._unread(complaint) if complaint else self.search(next(in_turn)) for complaint in complaints]
        return found[0] if single else found

    def search(self, ids: np.ndarray) -> KeySearchResult:
        """The result of one text, int64 [n]."""
        p_values = np.ones(len(self.names))
        for group in self._alike:
            p_values[group.places] = group.p_values(ids)
        for place in self._others:
            [result] = self._with(place).detect_ids([ids])
            p_values[place] = result.p_value
        corrected = of_family(p_values)
        order = np.argsort(corrected, kind="stable")
        places = [int(place) for place in order if corrected[place] <= self.fpr]
        results = {self.names[place]: self._with(place).detect_ids([ids])[0] for place in places}
        best = int(order[0])
        name, corrected_p = self.names[best], float(corrected[best])
        [nearest] = self._with(best, alone(self.fpr, len(self.names))).detect_ids([ids])
        found = KeySearchResult(p_values, corrected_p, name, tuple(results), results, nearest, len(ids), self.fpr, "")
        return replace(found, message=self._message(found))

    def _message(self, found: KeySearchResult) -> str:
        tried = f"{len(self.names)} key{'s' * (len(self.names) > 1)} tried, corrected {is_p(found.p_value)}"
        if found.nearest is not None and found.is_undecided:
            counts = f"{found.nearest.num_needed} tokens must count, {found.nearest.num_scored} do"
            return f"too short to decide at a false-positive rate of {self.fpr:g} ({tried}; {counts})"
        said = f"watermarked with {' and '.join(found.matches)}" if found.matches else "no watermark found"
        return f"{said} at a false-positive rate of {self.fpr:g} ({tried})"

    def _with(self, place: int, fpr: float | None = None) -> Detector:
        return replace(self._detector, watermark=self.watermarks[place], tokenizer=None, fpr=fpr or self.fpr)

    def _unread(self, complaint: str) -> KeySearchResult:
        return KeySearchResult(np.ones(len(self.names)), 1.0, "", (), {}, None, 0, self.fpr, complaint, complaint)


def of_family(p_values: np.ndarray) -> np.ndarray:
    """1 - (1 - p)^n of n p-values, float64 [n]: the chance that any of n independent keys gives p or less."""
    with np.errstate(divide="ignore"):  # p = 1
        corrected: np.ndarray = -np.expm1(len(p_values) * np.log1p(-p_values))
    return corrected


def alone(fpr: float, n: int) -> float:
    """The level that one of n keys has to reach by itself: 1 - (1 - level)^n = fpr."""
    return fpr if n == 1 else float(-np.expm1(np.log1p(-fpr) / n))


def _grouped(watermarks: Sequence[Watermark]) -> tuple[list[_Alike], list[int]]:
    """Groups for the compiled operator, and the places of the watermarks that it does not serve."""
    groups: dict[Any, list[int]] = {}
    others: list[int] = []
    for place, mark in enumerate(watermarks):
        if isinstance(mark, Formatted) and mark.native is not None and mark.native.scheme != SELFHASH:
            # what a detector reads: how strongly a text was marked makes no other test
            alike = (type(mark), mark.window, mark.native.scheme, mark.native.threshold)
            groups.setdefault(alike, []).append(place)
        else:
            others.append(place)
    return [_group(watermarks, places) for places in groups.values()], others


def _group(watermarks: Sequence[Watermark], places: list[int]) -> _Alike:
    natives = [watermarks[place].native for place in places]
    keys = torch.tensor([signed(native.key) for native in natives if native is not None], dtype=torch.int64)
    first = watermarks[places[0]]
    assert isinstance(first, Formatted)
    return _Alike(first, np.array(places), keys)


def detect_keys(
    text_or_ids: Any, tokenizer: Any, watermarks: Mapping[str, Watermark], fpr: float = 1e-3, *, normalize: Any = (),
    prefix: Any = "",
) -> Any:  # fmt: skip
    """Test texts under many keys at once, exactly corrected for their number.

    Args:
        text_or_ids: as for `detect`. tokenizer, watermarks, fpr, normalize, prefix: see `KeySearch`, which makes keys
            ready once, for texts that come one by one.

    Returns:
        One KeySearchResult for a single text, else a list, in order.

    For an unmarked text and keys drawn independently at random, any is found with probability fpr or less; for
    watermarks that may have something in common there is `detect_any`. Deterministic. Raises as `KeySearch` and
    `detect`.
    """
    return KeySearch(tokenizer, watermarks, fpr, normalize=normalize, prefix=prefix)(text_or_ids)
