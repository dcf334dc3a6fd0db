"""From text to p-value: tokenise, score every token, count each piece of evidence once, compare with the null.

1. texts -> token ids, in one call of the tokenizer (no special tokens);
2. a score for every token, and whether it counts: evidence that a text already gave does not (see `token_scores`);
3. sum, z-score, exact tail (see `statistics`, or `weights` for weighted sums);
4. with `regions`, the same of every window, and one p-value for the text and its windows together (see `regions`);
5. watermarked iff p <= fpr.

p-values are uniform over keys: for any text, a share p of all keys gives it p or less. They are not uniform for one key
text by text, where texts share phrases (`null_report` measures what that means for a key and a corpus).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np

from caw.checks import require_bool, require_choice, require_number
from caw.detection.evidence import first_occurrences
from caw.detection.ids import read_prefix, split_input, to_ids, unreadable
from caw.detection.message import repeats_mostly, sentence
from caw.detection.normalize import normalize_text, read_steps, trim_prefix
from caw.detection.payload import payload_evidence, read_payload
from caw.detection.regions import Search, search
from caw.detection.result import DetectionResult
from caw.detection.statistics import fewest_for, tails
from caw.detection.text_weights import TextWeights
from caw.detection.token_scores import Mode, Scored, chunks, score_texts
from caw.detection.weights import TokenWeights, weighted_tails
from caw.detection.windows import WHOLE_SHARE
from caw.watermarks import Watermark


@dataclass(frozen=True)
class Detector:
    """A watermark (with its key), a tokenizer and a false-positive rate, ready for any number of texts.

    Args:
        tokenizer: turns text into ids; None when only ids are given.
        watermark: KGW, Unigram or EXP with the key and parameters of generation (delta, top_k, strength are not used).
        fpr: share of unmarked texts that may be called watermarked, in (0, 1).
        mode: "exact" counts evidence once, which makes p-values valid; "compat" counts as the other system of the
            watermark's format does, and gives its numbers: the native formats the exact tail (EXP counts the same,
            KGW and Unigram every token), the foreign green lists the z-score and its normal tail.
        mid_p: report mid-p values (see `statistics.binomial_tails`).
        normalize: steps for texts before they are tokenised, a sequence of names or one comma-separated str, see
            `normalize.normalize_text`; ids stay as they are.
        prefix: text or ids that a text may begin with and that are not to be tested: a prompt, a chat template.
        weights: a table of weights per token id (`caw detection-weights`), or its name or file; or what a model says of
            each text (`caw.ModelWeights`); None = all alike.
        regions: also test the windows of each text and say which parts are marked; they are one family with the whole
            text, which keeps half of the level (see `windows`). In mode "exact", without mid_p, weights and payloads.

    Raises TypeError or ValueError naming the argument.
    """

    tokenizer: Any
    watermark: Watermark
    fpr: float = 1e-3
    mode: Mode = "exact"
    mid_p: bool = False
    normalize: Any = ()
    prefix: Any = ""
    weights: TextWeights | str | Path | None = None
    regions: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.watermark, Watermark):
            raise TypeError(
                f"watermark must be a KGW, Unigram or EXP, got {type(self.watermark).__name__}; "
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
        self._load_weights()
        if self.watermark.code is not None and (self.mid_p or self.weights is not None or self.mode != "exact"):
            raise ValueError(
                "payloads are read in mode 'exact' without mid_p and weights, got one of them or another mode; "
                "leave it out"
            )
        if self.regions and (self.mid_p or self.weights is not None or self.mode != "exact" or self.watermark.code):
            raise ValueError(
                "regions are searched in mode 'exact' without mid_p, weights and payload_bits, got one of them or "
                "another mode; leave it out"
            )

    def _load_weights(self) -> None:
        if self.weights is None:
            return
        if self.mid_p or self.mode != "exact":
            raise ValueError("weights belong to mode 'exact' without mid_p, got another; leave one of them out")
        if not isinstance(self.weights, TextWeights):
            object.__setattr__(self, "weights", TokenWeights.load(self.weights))
        assert isinstance(self.weights, TextWeights)
        self.weights.check_for(self.watermark)
        self.weights.check_tokenizer(self.tokenizer)

    def __call__(self, text_or_ids: Any) -> DetectionResult | list[DetectionResult]:
        """One result for a str or one flat list of ids; a list of results, in order, for a list of them ([] for [])."""
        items, single = split_input(text_or_ids)
        complaints = ["" if single else unreadable(item, f"text {i}") for i, item in enumerate(items)]
        readable = [item for item, complaint in zip(items, complaints, strict=True) if not complaint]
        results = self.detect_ids(self.ids_of(readable))
        if self.regions:
            results = [self._with_characters(*pair) for pair in zip(results, readable, strict=True)]
        in_turn = iter(results)
        found = [self._unread(complaint) if complaint else next(in_turn) for complaint in complaints]
        return found[0] if single else found

    def ids_of(self, items: Sequence[Any]) -> list[np.ndarray]:
        """Token ids int64 [n] of texts or id lists, after `normalize` and without `prefix`."""
        if isinstance(self.prefix, str):
            items = [self.clean(item) if isinstance(item, str) else item for item in items]
            return to_ids(items, self.tokenizer)
        start = np.asarray(self.prefix, dtype=np.int64)
        texts = to_ids([self.clean(item) if isinstance(item, str) else item for item in items], self.tokenizer)
        return [t[len(start) :] if np.array_equal(t[: len(start)], start) else t for t in texts]

    def clean(self, text: str) -> str:
        """The text that is tokenised."""
        text = normalize_text(text, self.normalize)
        return trim_prefix(text, normalize_text(self.prefix, self.normalize)) if isinstance(self.prefix, str) else text

    def score(self, texts: Sequence[np.ndarray]) -> Iterator[Scored]:
        """Values and what counts, token by token, of texts given as int64 arrays [n]."""
        for chunk in chunks(texts):
            values, counted, _, _ = score_texts(self.watermark, chunk, self.mode)
            ends = np.cumsum([len(text) for text in chunk])
            for text, end in zip(chunk, ends, strict=True):
                part = slice(end - len(text), end)
                yield Scored(text, values[part], counted[part])

    def detect_ids(
        self, texts: Sequence[np.ndarray], done: Callable[[int], object] = lambda texts: None
    ) -> list[DetectionResult]:
        """Results of texts given as int64 arrays [n]; `done` is told how many more texts are finished."""
        results: list[DetectionResult] = []
        for chunk in chunks(texts):
            code = self.watermark.code
            results += self._detect_chunk(chunk) if code is None else [self._read(text) for text in chunk]
            done(len(chunk))
        return results

    def _read(self, text: np.ndarray) -> DetectionResult:
        """The result of a text that may carry a payload."""
        values, positions, evidence = payload_evidence(self.watermark, text)
        counted = first_occurrences(np.zeros(len(text), np.int64), evidence, np.ones(len(text), bool))
        reading = read_payload(self.watermark, values, positions, counted)
        own = reading.values.astype(object)
        own[~counted] = None
        repeated = len(text) - int(counted.sum())
        result = self._result(text, tuple(own.tolist()), reading.score, reading.z_score, reading.p_value, repeated)
        if not result.is_watermarked:
            return result
        message = f"{result.message}, payload {reading.message}"
        return replace(result, message=message, payload=reading.message, payload_confidence=reading.confidence)

    def _detect_chunk(self, texts: Sequence[np.ndarray]) -> list[DetectionResult]:
        values, counted, repeated, owner = score_texts(self.watermark, texts, self.mode)
        if isinstance(self.weights, TextWeights):
            levels = np.concatenate(self.weights.text_levels(texts, self.watermark))
            counted &= levels > 0
            scores, nulls = weighted_tails(self.watermark, values, levels, owner, counted, len(texts))
        else:
            # bincount adds in order: a text's sum does not depend on the texts around it
            scores = np.bincount(owner[counted], weights=values[counted], minlength=len(texts))
        counts = np.bincount(owner[counted], minlength=len(texts))
        repeats = np.bincount(owner[repeated], minlength=len(texts)).tolist()
        if self.weights is None:
            nulls = tails(self.watermark, scores, counts, self.mode, self.mid_p)
        per_token = values.astype(object)
        per_token[~counted] = None
        everything = per_token.tolist()
        ends = np.cumsum([len(text) for text in texts]).tolist()
        rows = zip(texts, ends, scores.tolist(), nulls.z_scores.tolist(), nulls.p_values.tolist(), repeats, strict=True)
        out = []
        for text, end, score, z, p, again in rows:
            part = slice(end - len(text), end)
            found = search(values[part], counted[part], self.watermark, self.fpr) if self.regions else None
            out.append(self._result(text, tuple(everything[part]), score, z, p, again, found))
        return out

    def _unread(self, complaint: str) -> DetectionResult:
        """The result of a text that could not be read: no evidence."""
        return replace(self._result(np.empty(0, np.int64), (), 0.0, 0.0, 1.0, 0), message=complaint, error=complaint)

    def _result(
        self, text: np.ndarray, token_scores: tuple[float | None, ...], score: float, z: float, p: float,
        repeated: int, found: Search | None = None,
    ) -> DetectionResult:  # fmt: skip
        """The result of a text whose p-value by itself is `p`; found: what its parts say."""
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

    def _with_characters(self, result: DetectionResult, item: Any) -> DetectionResult:
        """The result whose regions of a str know their characters, where the tokenizer says them."""
        spans = self._character_spans(item) if isinstance(item, str) and result.regions else None
        if not spans or result.regions is None:
            return result
        # a prefix of ids was tokenised with the text and then left out: its characters go with it
        spans = spans[len(spans) - result.num_tokens :]
        regions = [replace(r, start_char=spans[r.start][0], end_char=spans[r.end - 1][1]) for r in result.regions]
        return replace(result, regions=tuple(regions))

    def _character_spans(self, text: str) -> Sequence[tuple[int, int]] | None:
        """Characters of each token; None where the tokenizer does not say."""
        try:
            encoded = self.tokenizer(
                self.clean(text), add_special_tokens=False, verbose=False, return_offsets_mapping=True
            )
        except (NotImplementedError, TypeError):
            return None
        spans: Sequence[tuple[int, int]] | None = encoded.get("offset_mapping")
        return spans

    @cached_property
    def _key_id(self) -> str:
        return self.watermark.key_id

    @cached_property
    def _needed(self) -> dict[float, int]:
        """How many tokens must count for a text to be called marked, by the share of the level that it has."""
        return {share: fewest_for(self.watermark, share * self.fpr) for share in (1.0, WHOLE_SHARE)}


def detect(
    text_or_ids: Any,
    tokenizer: Any,
    watermark: Watermark,
    fpr: float = 1e-3,
    mode: Mode = "exact",
    *,
    mid_p: bool = False,
    normalize: Any = (),
    prefix: Any = "",
    weights: TextWeights | str | Path | None = None,
    regions: bool = False,
) -> Any:
    """Test texts for a watermark, from the texts alone.

    Args:
        text_or_ids: a str or one flat sequence of token ids (list, tuple, 1-D array or tensor), or a list of them.
        tokenizer, watermark, fpr, mode, mid_p, normalize, prefix, weights, regions: see `Detector`. Text is tokenised
            without special tokens.

    Returns:
        One DetectionResult for a str or one flat sequence; a list of them, in order, for a list ([] for []).
        An empty text has p_value 1 and a message that says so. So has a text in a list that no tokenizer reads because
        it holds half of a surrogate pair, with the reason in `error`; alone it raises ValueError.

    Deterministic; a text's result does not depend on the texts beside it.
    Raises TypeError or ValueError: expected, found, remedy.
    """
    return Detector(tokenizer, watermark, fpr, mode, mid_p, normalize, prefix, weights, regions)(text_or_ids)
