"""From text to p-value: tokenise, score every token, count each piece of evidence once, compare with the null.

1. texts -> readings (see `readings`) -> token ids, in one call of the tokenizer (no special tokens);
2. a score for every token, and whether it counts: repeated evidence does not (see `token_scores`);
3. sum, z-score, exact tail (see `statistics`, or `weights` for weighted sums);
4. with `regions`, the same for every window, and one p-value for the text with all its windows (see `regions`);
5. watermarked iff p <= fpr.

p-values are uniform over keys: for any text, a share p of all keys gives it p or less. For a single key they are not
uniform over texts that share phrases; `null_report` measures this for a key and a corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, overload

import numpy as np

from caw.checks import require_bool, require_choice, require_number
from caw.detection.family import tests_of
from caw.detection.ids import read_prefix, split_input, to_ids, unreadable
from caw.detection.message import repeats_mostly, sentence
from caw.detection.normalize import READINGS, normalize_text, read_steps, trim_prefix
from caw.detection.payload import fitting_size, read_text
from caw.detection.readings import AS_GIVEN, Reading, TokenisedText, readings_of
from caw.detection.regions import Region, Search, search
from caw.detection.result import DetectionResult
from caw.detection.statistics import fewest_for, tails
from caw.detection.subkeys import detect_subkeys
from caw.detection.text_weights import TextWeights
from caw.detection.token_scores import Mode, Scored, chunks, score_texts
from caw.detection.weights import TokenWeights, level_tails
from caw.detection.windows import WHOLE_SHARE
from caw.io.show import kind_of
from caw.watermarks import Signature, Watermark

if TYPE_CHECKING:
    from caw.detection.ids import Many, One


@dataclass(frozen=True)
class Detector:
    """A watermark (with its key), a tokenizer and a false-positive rate, ready to test any number of texts.

    Args:
        tokenizer: turns text into ids; None if only ids are tested.
        watermark: Recommended, KGW, Unigram, EXP or SynthID with the key and parameters of generation (delta, top_k,
            strength and target are not used).
        fpr: false-positive rate in (0, 1), the detection threshold on the p-value.
        mode: "exact" counts evidence once, which makes p-values valid; "compat" counts as the format's own system does
            and reports its numbers: native formats the exact tail (EXP counts the same, KGW and Unigram every token),
                foreign green lists the z-score and its normal tail.
        mid_p: report mid-p values (see `statistics.binomial_tails`).
        normalize: () = in mode "exact" several readings of each text that needs them, see `readings`, and in "compat"
            the unchanged text. Otherwise one reading: normalisation steps, a sequence of names or one comma-separated
            str, see `normalize.normalize_text`; "none" leaves texts unchanged. "readings" requests several readings in
            mode "compat" too. Ids are never changed.
        prefix: text or ids at the start of texts to exclude from the test: a prompt, a chat template.
        weights: token weights: a table (`caw detection-weights`), or its name or file; or weights from a model that
            reads each text (`caw.ReaderWeights`); None = all equal.
        regions: also test windows of each text and report the marked parts; windows and whole text are one family of
            tests, in which the whole text has half of the level (see `windows`). In mode "exact", without mid_p,
            weights and payloads.

    Raises TypeError or ValueError naming the argument.
    """

    tokenizer: Any
    watermark: Signature
    fpr: float = 1e-3
    mode: Mode = "exact"
    mid_p: bool = False
    normalize: Any = ()
    prefix: Any = ""
    weights: TextWeights | str | Path | None = None
    regions: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.watermark, Signature):
            raise TypeError(
                f"watermark must be a Recommended, KGW, Unigram, EXP or SynthID, got {kind_of(self.watermark)}; "
                "pass the one that marked the text, e.g. caw.KGW(key=...)"
            )
        self.watermark.check_readable()
        require_number("fpr", self.fpr, 0, 1, closed=False)
        require_choice("mode", self.mode, get_args(Mode), "exact")
        require_bool("mid_p", self.mid_p)
        require_bool("regions", self.regions)
        object.__setattr__(self, "normalize", read_steps(self.normalize))
        object.__setattr__(self, "prefix", read_prefix(self.prefix))
        if self.tokenizer is not None and not callable(self.tokenizer):
            raise TypeError(
                f"tokenizer must be callable like a transformers tokenizer, got {type(self.tokenizer).__name__}; "
                "pass AutoTokenizer.from_pretrained(...), or None with token ids"
            )
        if self.watermark.family > 1 and self.mode != "exact":
            raise ValueError(
                f"sub-keys are tried in mode 'exact', got mode {self.mode!r} and {tests_of(self.watermark)}; "
                "leave the mode out, or read one of them with watermark.under_subkey(number)"
            )
        self._load_weights()
        if self.watermark.code is not None and (self.mid_p or self.weights is not None or self.mode != "exact"):
            raise ValueError("payloads require mode 'exact' without mid_p and weights; leave them out")
        if self.regions and (self.mid_p or self.weights is not None or self.mode != "exact" or self.watermark.code):
            raise ValueError("regions require mode 'exact' without mid_p, weights and payload_bits; leave them out")

    def _load_weights(self) -> None:
        if self.weights is None:
            return
        if self.mid_p or self.mode != "exact":
            raise ValueError("weights require mode 'exact' without mid_p; leave one of them out")
        if not isinstance(self.weights, TextWeights):
            object.__setattr__(self, "weights", TokenWeights.load(self.weights))
        assert isinstance(self.weights, TextWeights)
        several = len(self.watermark.parts) > 1
        for part in self.watermark.parts:
            if not several or self.weights.are_for(part):
                self.weights.check_for(part)
        self.weights.check_tokenizer(self.tokenizer)

    @property
    def mark(self) -> Watermark:
        """The watermark of a test for one."""
        [mark] = self.watermark.parts
        return mark

    @overload
    def __call__(self, text_or_ids: Many) -> list[DetectionResult]: ...
    @overload
    def __call__(self, text_or_ids: One) -> DetectionResult: ...
    def __call__(self, text_or_ids: Any) -> DetectionResult | list[DetectionResult]:
        """Return one result for a str or a flat list of ids; for a list of them a list of results, in order."""
        items, single = split_input(text_or_ids)
        complaints = ["" if single else unreadable(item, f"text {i}") for i, item in enumerate(items)]
        readable = [item for item, complaint in zip(items, complaints, strict=True) if not complaint]
        texts = self.read(readable)
        results = self.detect_texts(texts)
        if self.regions:
            results = [self._with_characters(*pair) for pair in zip(results, texts, strict=True)]
        in_turn = iter(results)
        found = [self._unread(complaint) if complaint else next(in_turn) for complaint in complaints]
        return found[0] if single else found

    def ids_of(self, items: Sequence[Any]) -> list[np.ndarray]:
        """Return token ids int64 [n] of texts or id lists, after `normalize` and without `prefix`."""
        return self._to_ids([self.clean(item) if isinstance(item, str) else item for item in items])

    def read(self, items: Sequence[Any]) -> list[TokenisedText]:
        """Return the readings of each text; ids, and texts after `normalize`, have one."""
        several = self.normalize == (READINGS,) or (not self.normalize and self.mode == "exact")
        found = [self._readings(item, several) if isinstance(item, str) else [] for item in items]
        flat = [[one.text for one in own] or [item] for own, item in zip(found, items, strict=True)]
        ids = iter(self._to_ids([text for texts in flat for text in texts]))
        return [
            TokenisedText.of(own or [Reading(AS_GIVEN, "")], [next(ids) for _ in texts])
            for own, texts in zip(found, flat, strict=True)
        ]

    def _readings(self, text: str, several: bool) -> list[Reading]:
        own = self.clean(text)
        if not several:
            return [Reading(AS_GIVEN, own)]
        found = readings_of(own)
        if own != text or not self.prefix or not isinstance(self.prefix, str):
            return found
        starts = [self.prefix, *(one.text for one in readings_of(self.prefix)[1:])]
        for i, one in enumerate(found[1:], 1):
            trimmed = next((t for start in starts if (t := trim_prefix(one.text, start)) != one.text), one.text)
            found[i] = replace(one, text=trimmed)
        return found

    def _to_ids(self, items: Sequence[Any]) -> list[np.ndarray]:
        ids = to_ids(items, self.tokenizer)
        if isinstance(self.prefix, str):
            return ids
        start = np.asarray(self.prefix, dtype=np.int64)
        return [t[len(start) :] if np.array_equal(t[: len(start)], start) else t for t in ids]

    def clean(self, text: str) -> str:
        text = normalize_text(text, self.normalize)
        return trim_prefix(text, normalize_text(self.prefix, self.normalize)) if isinstance(self.prefix, str) else text

    def score(self, texts: Sequence[np.ndarray]) -> Iterator[Scored]:
        """Return the values and the counted flags of every token, of texts given as int64 arrays [n]."""
        for chunk in chunks(texts):
            values, counted, _, _ = score_texts(self.mark, chunk, self.mode)
            ends = np.cumsum([len(text) for text in chunk])
            for text, end in zip(chunk, ends, strict=True):
                part = slice(end - len(text), end)
                yield Scored(text, values[part], counted[part])

    def detect_texts(
        self, texts: Sequence[TokenisedText], done: Callable[[int], object] = lambda texts: None
    ) -> list[DetectionResult]:
        """Return the results of texts with their readings; `done` receives the number of further finished texts."""
        found: dict[int, list[DetectionResult]] = {}
        for m in sorted({len(text.ids) for text in texts}):
            own = [i for i, text in enumerate(texts) if len(text.ids) == m]
            tester = self if m == 1 else replace(self, fpr=self.fpr / m)
            results = tester.detect_ids([ids for i in own for ids in texts[i].ids])
            done(len(own))
            for place, i in enumerate(own):
                found[i] = results[m * place : m * (place + 1)]
        return [text.best(found[i], self.fpr) for i, text in enumerate(texts)]

    def detect_ids(
        self, texts: Sequence[np.ndarray], done: Callable[[int], object] = lambda texts: None
    ) -> list[DetectionResult]:
        """Return the results of texts given as int64 arrays [n]; `done` receives the number of others finished."""
        results: list[DetectionResult] = []
        for chunk in chunks(texts):
            code = self.watermark.code
            results += self._detect_chunk(chunk) if code is None else [self._read(text) for text in chunk]
            done(len(chunk))
        return results

    def _read(self, text: np.ndarray) -> DetectionResult:
        """Return the result of a text that may carry a payload."""
        reading, counted = read_text(self.mark, text)
        own = reading.values.astype(object)
        own[~counted] = None
        repeated = len(text) - int(counted.sum())
        result = self._result(text, tuple(own.tolist()), reading.score, reading.z_score, reading.p_value, repeated)
        if not result.is_watermarked:
            return result
        if size := fitting_size(self.mark, text, reading.p_value):
            remark = f"payload of another size: read it with payload_bits={size}"
            return replace(result, message=f"{result.message}, {remark}")
        message = f"{result.message}, payload {reading.message}"
        return replace(result, message=message, payload=reading.message, payload_confidence=reading.confidence)

    def _detect_chunk(self, texts: Sequence[np.ndarray]) -> list[DetectionResult]:
        if self.watermark.family > 1:
            return [detect_subkeys(self, text) for text in texts]
        values, counted, repeated, owner = score_texts(self.mark, texts, self.mode)
        if isinstance(self.weights, TextWeights):
            levels = np.concatenate(self.weights.text_levels(texts, self.mark))
            counted &= levels > 0
            scores, nulls = level_tails(self.weights, self.mark, values, levels, owner, counted, len(texts))
        else:
            # bincount adds in order: a text's sum does not depend on the texts around it
            scores = np.bincount(owner[counted], weights=values[counted], minlength=len(texts))
        counts = np.bincount(owner[counted], minlength=len(texts))
        repeats = np.bincount(owner[repeated], minlength=len(texts)).tolist()
        if self.weights is None:
            nulls = tails(self.mark, scores, counts, self.mode, self.mid_p)
        per_token = values.astype(object)
        per_token[~counted] = None
        everything = per_token.tolist()
        ends = np.cumsum([len(text) for text in texts]).tolist()
        rows = zip(texts, ends, scores.tolist(), nulls.z_scores.tolist(), nulls.p_values.tolist(), repeats, strict=True)
        out = []
        for text, end, score, z, p, again in rows:
            part = slice(end - len(text), end)
            found = search(values[part], counted[part], self.mark, self.fpr) if self.regions else None
            out.append(self._result(text, tuple(everything[part]), score, z, p, again, found))
        return out

    def _unread(self, complaint: str) -> DetectionResult:
        """Return the result of a text that could not be read: no evidence."""
        return replace(self._result(np.empty(0, np.int64), (), 0.0, 0.0, 1.0, 0), message=complaint, error=complaint)

    def _result(
        self, text: np.ndarray, token_scores: tuple[float | None, ...], score: float, z: float, p: float,
        repeated: int, found: Search | None = None,
    ) -> DetectionResult:  # fmt: skip
        """Build the result of a text whose own p-value is `p`; found: result of its windows."""
        count = len(text) - token_scores.count(None)
        mostly = repeats_mostly(len(text), repeated, self.watermark.window)
        alone, share = (None, 1.0) if found is None else (p, WHOLE_SHARE if found.tests > 1 else 1.0)
        p = p if found is None else found.p_value
        return DetectionResult(
            p_value=p,
            z_score=z,
            score=score,
            is_watermarked=p <= self.fpr,
            num_tokens=len(text),
            num_scored=count,
            token_ids=tuple(text.tolist()),
            token_scores=token_scores,
            watermark=self.watermark.name,
            key_id=self._key_id,
            fpr=float(self.fpr),
            mode=self.mode,
            message=sentence(
                len(text), count, p, self.fpr, needed=self._needed[share], repeated=repeated * mostly, alone=alone
            ),
            num_repeated=repeated,
            mostly_repetition=mostly,
            num_needed=self._needed[share],
            regions=None if found is None else found.regions,
            text_p_value=alone,
        )

    def _with_characters(self, result: DetectionResult, text: TokenisedText) -> DetectionResult:
        """Add character positions to the regions of a str, if the tokenizer provides them."""
        own = next(one for one in text.readings if one.name == result.reading)
        spans = self._character_spans(own.text) if own.text and result.regions else None
        if not spans or result.regions is None:
            return result
        # a prefix of ids was tokenised with the text and then left out: its characters go with it
        spans = spans[len(spans) - result.num_tokens :]
        regions = [replace(r, start_char=spans[r.start][0], end_char=spans[r.end - 1][1]) for r in result.regions]
        return replace(result, regions=tuple(regions))

    def _character_spans(self, text: str) -> Sequence[tuple[int, int]] | None:
        """Return the characters of each token; None if the tokenizer does not provide them."""
        try:
            encoded = self.tokenizer(text, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
        except (NotImplementedError, TypeError):
            return None
        spans: Sequence[tuple[int, int]] | None = encoded.get("offset_mapping")
        return spans

    @cached_property
    def _key_id(self) -> str:
        return self.watermark.key_id

    @cached_property
    def _needed(self) -> dict[float, int]:
        """Return how many tokens must count for a text to reach its share of the level."""
        return {share: fewest_for(self.watermark, share * self.fpr) for share in (1.0, WHOLE_SHARE)}


@overload
def detect(
    text_or_ids: Many, tokenizer: Any, watermark: Signature, fpr: float = ..., mode: Mode = ..., *, mid_p: bool = ...,
    normalize: Any = ..., prefix: Any = ..., weights: TextWeights | str | Path | None = ..., regions: bool = ...,
) -> list[DetectionResult]: ...  # fmt: skip
@overload
def detect(
    text_or_ids: One, tokenizer: Any, watermark: Signature, fpr: float = ..., mode: Mode = ..., *, mid_p: bool = ...,
    normalize: Any = ..., prefix: Any = ..., weights: TextWeights | str | Path | None = ..., regions: bool = ...,
) -> DetectionResult: ...  # fmt: skip
def detect(
    text_or_ids: Any,
    tokenizer: Any,
    watermark: Signature,
    fpr: float = 1e-3,
    mode: Mode = "exact",
    *,
    mid_p: bool = False,
    normalize: Any = (),
    prefix: Any = "",
    weights: TextWeights | str | Path | None = None,
    regions: bool = False,
) -> DetectionResult | list[DetectionResult]:
    """Test texts for a watermark, from the texts alone.

    >>> result = caw.detect(text, tokenizer, caw.KGW(key=123))
    >>> print(result)  # its message; result.is_watermarked, result.p_value

    Args:
        text_or_ids: a str or one flat sequence of token ids (list, tuple, 1-D array or tensor), or a list of them; a
            column of a table (pandas, polars) too.
        tokenizer, watermark, fpr, mode, mid_p, normalize, prefix, weights, regions: see `Detector`. Text is tokenised
            without special tokens.

    Returns:
        One DetectionResult for a str or one flat sequence; a list of them, in order, for a list ([] for []).
        An empty text has p_value 1 and a message that says so, as does a text in a list that is missing (None, NaN) or
        has half of a surrogate pair, which no tokenizer can read; `error` has the reason. A single such text raises.

    Deterministic; a text's result does not depend on the other texts.
    Raises TypeError or ValueError: expected, found, remedy.
    """
    return Detector(tokenizer, watermark, fpr, mode, mid_p, normalize, prefix, weights, regions)(text_or_ids)


def locate(text_or_ids: Any, detector: Detector) -> list[Region]:
    """Return the marked parts of one text, in order; [] if none is significant at detector.fpr.

    The same as the regions of `detect(..., regions=True)`: the whole text and all its windows are one family of tests.

    Args:
        text_or_ids: a str or one flat sequence of ids.
        detector: in mode "exact", without mid_p, weights and payloads.

    Raises TypeError for a list of texts, ValueError for a detector with options that `regions` does not support.
    """
    items, single = split_input(text_or_ids)
    if not items:
        return []
    if not single:
        raise TypeError(f"expected one text, got a list of {len(items)}; call locate for each")
    result = replace(detector, regions=True)(text_or_ids)
    assert isinstance(result, DetectionResult) and result.regions is not None
    return list(result.regions)
