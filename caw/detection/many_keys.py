"""Test one text against thousands of keys.

The p-value of the best of n keys is not a p-value: among 10,000 keys that are unrelated to a text, one or two give it
1e-4. For an unmarked text and n independent random keys the minimum of n p-values is p or less with probability 1 - (1
- p)^n, exactly (Sidak 1967). This corrected p-value is compared with the false-positive rate.

Evidence of KGW lefthash, Unigram and EXP is the same under every key, so it is selected once and a compiled operator
sums its scores under all keys (`score_keys`). Other watermarks are tested key by key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from caw.checks import require_number
from caw.detection.detector import Detector
from caw.detection.family import alone, family_wise
from caw.detection.ids import split_input, unreadable
from caw.detection.message import note_of
from caw.detection.readings import AS_GIVEN, Reading, TokenisedText
from caw.detection.result import DetectionResult, NotTruth
from caw.detection.statistics import tails
from caw.detection.subkeys import sums_of
from caw.io.show import is_p, kind_of
from caw.op_indices import SELFHASH
from caw.watermarks import Signature, Watermark

if TYPE_CHECKING:
    from caw.detection.ids import Many, One


@dataclass(frozen=True)
class KeySearchResult(NotTruth):
    """Result of one text for many keys.

    p_values: float64 [n], of each key alone, in the order given, corrected for the text's readings if it has several
    (see `readings`). p_value: of the best key, corrected for n. likeliest: its name, the first of equal ones; "" if the
    text could not be read. matches: names of all keys whose corrected p-value is at most fpr, best first. results: of
    these keys, by name, not corrected for n. nearest: of the best key, tested at the level that it must reach alone;
    None if the text could not be read. tokens, fpr: of the text in its best reading, and the threshold. message: one
    sentence for people. error: why the text could not be read, otherwise "".
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
        """Whether no score could have been significant: too few tokens count."""
        return not self.matches and self.nearest is not None and self.nearest.is_undecided


@dataclass(frozen=True)
class _Alike:
    """Watermarks that differ only in the key. places: of their p-values, int64 [m]. keys: sub-keys, int64 [m * V]."""

    first: Watermark
    places: np.ndarray
    keys: np.ndarray = field(repr=False)

    def p_values(self, ids: np.ndarray) -> np.ndarray:
        """float64 [m], of one text int64 [n]."""
        sums, count = sums_of(self.first, ids, self.keys)
        sums = sums.reshape(len(self.places), -1).max(axis=1)
        # green tokens are counted: a few sums, each with one tail
        different, back = np.unique(sums, return_inverse=True)
        found: np.ndarray = tails(self.first, different, np.full(len(different), count)).p_values[back]
        return family_wise(found, self.first.family) if self.first.family > 1 else found


class KeySearch:
    """Many keys, prepared for any number of texts.

    Args:
        tokenizer: turns text into ids; None if only ids are tested.
        watermarks: by name, each with its key and the parameters of generation.
        fpr: false-positive rate for all keys together, in (0, 1).
        normalize, prefix: see `Detector`.

    Raises TypeError or ValueError naming the argument; ValueError for no watermarks and for payloads.
    """

    def __init__(
        self, tokenizer: Any, watermarks: Mapping[str, Signature], fpr: float = 1e-3, *, normalize: Any = (),
        prefix: Any = "",
    ) -> None:  # fmt: skip
        if not isinstance(watermarks, Mapping):
            raise TypeError(
                f"watermarks must be a mapping of names to watermarks, got {type(watermarks).__name__}; name them, "
                "e.g. {'customer 1': caw.KGW(key=...)}"
            )
        if not watermarks:
            raise ValueError("at least one watermark is required, got none; name the watermarks to test for")
        require_number("fpr", fpr, 0, 1, closed=False)
        self.names, self.watermarks, self.fpr = tuple(watermarks), tuple(watermarks.values()), float(fpr)
        for name, mark in watermarks.items():
            if not isinstance(mark, Signature):
                raise TypeError(
                    f"watermark {name!r} must be a Recommended, KGW, Unigram, EXP or SynthID, got "
                    f"{kind_of(mark)}; give it with its key"
                )
            if mark.code is not None:
                raise ValueError(
                    f"watermark {name!r} carries a payload, which only `Detector` reads; leave payload_bits out"
                )
        self._detector = Detector(tokenizer, self.watermarks[0], self.fpr, normalize=normalize, prefix=prefix)
        self._alike, self._others = _grouped(self.watermarks)
        self._sizes = np.array([len(mark.parts) for mark in self.watermarks])

    @overload
    def __call__(self, text_or_ids: Many) -> list[KeySearchResult]: ...
    @overload
    def __call__(self, text_or_ids: One) -> KeySearchResult: ...
    def __call__(self, text_or_ids: Any) -> KeySearchResult | list[KeySearchResult]:
        """Return one result for a str or a flat list of ids; a list of results, in order, for a list of them."""
        items, single = split_input(text_or_ids)
        complaints = ["" if single else unreadable(item, f"text {i}") for i, item in enumerate(items)]
        readable = [item for item, complaint in zip(items, complaints, strict=True) if not complaint]
        in_turn = iter(self._detector.read(readable))
        found = [self._unread(complaint) if complaint else self.search_text(next(in_turn)) for complaint in complaints]
        return found[0] if single else found

    def search(self, ids: np.ndarray) -> KeySearchResult:
        """Return the result of one text, int64 [n]."""
        return self.search_text(TokenisedText((Reading(AS_GIVEN, ""),), (ids,)))

    def search_text(self, text: TokenisedText) -> KeySearchResult:
        """Return the result of one text with its readings."""
        each = np.stack([self._p_values(ids) for ids in text.ids])
        p_values = np.minimum(1.0, len(text.ids) * each.min(axis=0))
        corrected = family_wise(p_values, len(p_values))
        order = np.argsort(corrected, kind="stable")
        places = [int(place) for place in order if corrected[place] <= self.fpr]
        results = {self.names[place]: self._result(place, text, each[:, place], self.fpr) for place in places}
        best = int(order[0])
        nearest = self._result(best, text, each[:, best], alone(self.fpr, len(self.names)))
        found = KeySearchResult(
            p_values, float(corrected[best]), self.names[best], tuple(results), results, nearest, nearest.num_tokens,
            self.fpr, "",
        )  # fmt: skip
        return replace(found, message=self._message(found))

    def _p_values(self, ids: np.ndarray) -> np.ndarray:
        """Return p-values float64 [n] of one reading under each key."""
        p_values = np.ones(len(self.names))
        for group in self._alike:
            p_values[group.places] = np.minimum(p_values[group.places], group.p_values(ids))
        for size in set(self._sizes[self._sizes > 1].tolist()):
            several = self._sizes == size
            p_values[several] = family_wise(p_values[several], size)
        for place in self._others:
            [result] = self._with(place, self.fpr).detect_ids([ids])
            p_values[place] = result.p_value
        return p_values

    def _result(self, place: int, text: TokenisedText, p_values: np.ndarray, fpr: float) -> DetectionResult:
        """Return the result of one key in the best reading; p_values: float64 [m], of all m."""
        reading = int(p_values.argmin())
        [result] = self._with(place, fpr / len(p_values)).detect_ids([text.ids[reading]])
        return text.corrected(result, reading, float(p_values[0]), fpr)

    def _message(self, found: KeySearchResult) -> str:
        tried = f"{len(self.names)} key{'s' * (len(self.names) > 1)} tried, corrected {is_p(found.p_value)}"
        note = "" if found.nearest is None or not found.nearest.undone else f"; {note_of(found.nearest)}"
        if found.nearest is not None and found.is_undecided:
            counts = f"{found.nearest.num_needed} tokens must count, {found.nearest.num_scored} do"
            return f"too short to decide at a false-positive rate of {self.fpr:g} ({tried}; {counts}){note}"
        said = f"watermarked with {' and '.join(found.matches)}" if found.matches else "no watermark found"
        return f"{said} at a false-positive rate of {self.fpr:g} ({tried}){note}"

    def _with(self, place: int, fpr: float) -> Detector:
        return replace(self._detector, watermark=self.watermarks[place], tokenizer=None, fpr=fpr)

    def _unread(self, complaint: str) -> KeySearchResult:
        return KeySearchResult(np.ones(len(self.names)), 1.0, "", (), {}, None, 0, self.fpr, complaint, complaint)


def _grouped(watermarks: Sequence[Signature]) -> tuple[list[_Alike], list[int]]:
    """Return groups of parts for the compiled operator, and the indices of watermarks that it does not support."""
    groups: dict[Any, list[tuple[int, Watermark]]] = {}
    others: list[int] = []
    for place, mark in enumerate(watermarks):
        for part in mark.parts:
            if part.native is not None and part.native.scheme != SELFHASH:
                # what a detector reads: how strongly a text was marked makes no other test
                alike = (type(part), part.window, part.native.scheme, part.native.threshold, part.family)
                groups.setdefault(alike, []).append((place, part))
            else:
                others.append(place)
    return [_group(parts) for parts in groups.values()], others


def _group(parts: Sequence[tuple[int, Watermark]]) -> _Alike:
    natives = [part.under_subkey(number).native for _, part in parts for number in range(part.family)]
    keys = np.array([native.signed_key for native in natives if native is not None], dtype=np.int64)
    return _Alike(parts[0][1], np.array([place for place, _ in parts]), keys)


@overload
def detect_keys(
    text_or_ids: Many, tokenizer: Any, watermarks: Mapping[str, Signature], fpr: float = ..., *, normalize: Any = ...,
    prefix: Any = ...,
) -> list[KeySearchResult]: ...  # fmt: skip
@overload
def detect_keys(
    text_or_ids: One, tokenizer: Any, watermarks: Mapping[str, Signature], fpr: float = ..., *, normalize: Any = ...,
    prefix: Any = ...,
) -> KeySearchResult: ...  # fmt: skip
def detect_keys(
    text_or_ids: Any, tokenizer: Any, watermarks: Mapping[str, Signature], fpr: float = 1e-3, *, normalize: Any = (),
    prefix: Any = "",
) -> KeySearchResult | list[KeySearchResult]:  # fmt: skip
    """Test texts under many keys at once, exactly corrected for their number.

    Args:
        text_or_ids: as for `detect`. tokenizer, watermarks, fpr, normalize, prefix: see `KeySearch`, which prepares
            keys once for texts that arrive one by one.

    Returns:
        One KeySearchResult for a single text, otherwise a list, in order.

    For an unmarked text and keys drawn independently at random, the probability of any match is at most fpr; for
    watermarks that may depend on each other use `caw.detection.detect_any`. Deterministic. Raises as `KeySearch` and
    `detect`.
    """
    return KeySearch(tokenizer, watermarks, fpr, normalize=normalize, prefix=prefix)(text_or_ids)
