"""From text to result: counting evidence once, batches, messages, bad input."""

import dataclasses
import inspect
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from detection.native_watermarks import ALL, IDS, REPETITIVE
from detection.test_ids import Words
from scipy import stats

from caw.detection import DetectionResult, Detector, KeySearch, detect, detect_any
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, Unigram, Watermark


def test_detect_takes_what_a_detector_has() -> None:
    """By name and with the same defaults, where editors and type checkers see them."""
    shown = {name: p.default for name, p in inspect.signature(detect).parameters.items() if name != "text_or_ids"}
    assert shown == {name: p.default for name, p in inspect.signature(Detector).parameters.items()}
    given = {"fpr": 0.02, "mode": "exact", "normalize": ("nfc",), "prefix": [5, 6], "regions": True}
    ids = [5, 6, *REPETITIVE, 9, 4, 8, 3, 1, 2]
    assert detect(ids, None, ALL[0], **given) == Detector(None, ALL[0], **given)(ids)
    assert detect(ids, None, ALL[0], mid_p=True) == Detector(None, ALL[0], mid_p=True)(ids) != detect(ids, None, ALL[0])
    with pytest.raises(TypeError, match="midp"):
        detect(ids, None, ALL[0], midp=True)  # type: ignore[call-overload]


def expected_counted(watermark: Watermark, ids: list[int]) -> list[bool]:
    evidence = watermark.score_tokens(torch.tensor(ids, dtype=torch.int64)).evidence.tolist()
    seen: set[tuple[int, ...]] = set()
    counted = []
    for row in evidence:
        counted.append(tuple(row) not in seen)
        seen.add(tuple(row))
    return counted


@pytest.mark.parametrize("watermark", ALL, ids=IDS)
@pytest.mark.parametrize("length", [0, 1, 2, 5, 13])
def test_a_result_is_what_counting_by_hand_gives(watermark: Watermark, length: int) -> None:
    ids = REPETITIVE[:length]
    result = detect([ids], None, watermark, fpr=0.01)[0]
    values = watermark.score_tokens(torch.tensor(ids, dtype=torch.int64)).values.tolist()
    counted = expected_counted(watermark, ids)
    score, n = math.fsum(v for v, c in zip(values, counted, strict=True) if c), sum(counted)
    assert result.num_tokens == length and result.num_scored == n
    assert result.token_ids == tuple(ids)
    assert [s is not None for s in result.token_scores] == counted
    assert_close(
        [s for s in result.token_scores if s is not None],
        [v for v, c in zip(values, counted, strict=True) if c],
        "float64",
    )
    assert_close(result.score, score, "float64")
    if isinstance(watermark, EXP):
        p, z = stats.gamma.sf(score, n) if n else 1.0, (score - n) / math.sqrt(n) if n else 0.0
    else:
        f = watermark.green_fraction  # type: ignore[attr-defined]
        p, z = stats.binom.sf(score - 1, n, f), (score - n * f) / math.sqrt(n * f * (1 - f)) if n else 0.0
    assert_close(result.p_value, p, "tail")
    assert_close(result.z_score, z, "float64")
    assert result.is_watermarked == (result.p_value <= 0.01)
    assert (result.watermark, result.key_id, result.fpr, result.mode) == (
        watermark.name,
        watermark.key_id,
        0.01,
        "exact",
    )


def test_text_and_its_ids_give_the_same_result() -> None:
    text = "one two three four five six seven"
    watermark = EXP(key="k")
    assert detect(text, Words(), watermark) == detect([3, 3, 5, 4, 4, 3, 5], None, watermark)
    assert detect([text, text], Words(), watermark) == [detect(text, Words(), watermark)] * 2
    assert isinstance(detect(text, Words(), watermark), DetectionResult)
    assert detect([], None, watermark) == [] == detect([], Words(), watermark)
    assert Detector(Words(), watermark)(text) == detect(text, Words(), watermark)


@pytest.mark.parametrize("watermark", ALL, ids=IDS)
def test_empty_text_has_p_one_and_says_so(watermark: Watermark) -> None:
    for result in (detect("", Words(), watermark), detect([[]], None, watermark)[0]):
        assert (result.p_value, result.z_score, result.score, result.num_scored) == (1.0, 0.0, 0.0, 0)
        assert not result.is_watermarked and result.token_scores == ()
        assert result.message == "the text is empty: nothing to score, p = 1"


def test_messages() -> None:
    green = Unigram(key=1).green_vocabulary(torch.empty(1, 0, dtype=torch.int64), 4000)[0].nonzero()[:, 0].tolist()
    four = detect(green[:4], None, Unigram(key=1))
    assert (
        four.message
        == "the text is too short to decide: a p-value of 0.001 requires 5 that count (p = 0.0039, 4 of 4 tokens count)"
    )
    assert not four.is_watermarked
    five = detect([*green[:5], green[0]], None, Unigram(key=1))
    assert five.message == "watermarked at a false-positive rate of 0.001 (p = 0.00098, 5 of 6 tokens count)"
    assert five.is_watermarked
    red = [t for t in range(4000) if t not in set(green)]
    assert detect(red[:30], None, Unigram(key=1)).message == (
        "no watermark found at a false-positive rate of 0.001 (p = 1.00, 30 of 30 tokens count)"
    )


def test_the_decision_is_the_callers_false_positive_rate() -> None:
    p = detect(list(range(40)), None, EXP(key=2)).p_value
    assert 0 < p < 1
    assert detect(list(range(40)), None, EXP(key=2), fpr=p).is_watermarked
    assert not detect(list(range(40)), None, EXP(key=2), fpr=np.nextafter(p, 0).item()).is_watermarked


def test_results_are_frozen_json_ready_and_keep_the_key_to_themselves() -> None:
    key = 0xC0FFEE123456789
    result = detect(REPETITIVE, None, KGW(key=key))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.p_value = 0.0
    written = json.dumps(dataclasses.asdict(result))
    assert json.loads(written)["token_scores"] == list(result.token_scores)
    for text in (written, repr(result), repr(Detector(None, KGW(key=key)))):
        assert str(key) not in text and f"{key:x}" not in text.lower()
    assert str(result) == f"{result}" == result.message
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
    assert result.to_dict()["token_ids"] == list(result.token_ids)
    assert result.message in result._repr_html_() and "<b>" in result._repr_html_()
    assert repr(result) == (  # it printed every id and score
        f"DetectionResult(watermark='kgw', key_id='{result.key_id}', is_watermarked=False, p_value={result.p_value!r}, "
        f"fpr=0.001, num_scored={result.num_scored}, num_tokens={len(REPETITIVE)})"
    )


def test_a_result_is_no_truth_value() -> None:
    mark = KGW(key=1)
    alone, searched = detect(REPETITIVE, None, mark), KeySearch(None, {"a": mark})(REPETITIVE)
    for result in (alone, detect_any(REPETITIVE, {"a": Detector(None, mark)}), searched):
        name = type(result).__name__
        with pytest.raises(TypeError, match=f"a {name} is neither true nor false, .* its is_watermarked"):
            bool(result)
        assert not result.is_watermarked


BAD = [
    ({"watermark": "kgw"}, TypeError, "watermark must be a Recommended, KGW, Unigram, EXP or SynthID, got str"),
    ({"watermark": KGW}, TypeError, "watermark must be a Recommended, KGW, Unigram, EXP or SynthID, got the class KGW"),
    ({"fpr": 0.0}, ValueError, r"fpr must be a number in \(0, 1\), got 0.0"),
    ({"fpr": 1}, ValueError, r"fpr must be a number in \(0, 1\), got 1"),
    ({"fpr": float("nan")}, ValueError, "fpr must be a number"),
    ({"fpr": "1e-3"}, TypeError, "fpr must be a number"),
    ({"mode": "fast"}, ValueError, "mode must be one of exact, compat, got 'fast'; use 'exact'"),
    ({"text_or_ids": [-1]}, ValueError, "one with -1; "),
    ({"text_or_ids": "text"}, TypeError, "text requires the tokenizer"),
    ({"normalize": None}, TypeError, "normalize must be a str or a sequence of .*, got NoneType; leave it out"),
    ({"normalize": [["nfc"]]}, ValueError, r"normalize must name steps of .*, got \['nfc'\]; leave it out"),
    ({"normalize": b"nfc"}, TypeError, "got bytes; leave it out"),
    ({"prefix": 5}, TypeError, "prefix is of type int; pass a str, one flat"),
    ({"prefix": None}, TypeError, "prefix is of type NoneType"),
    ({"prefix": [2**70]}, TypeError, "prefix is of object values"),
    ({"prefix": [-1]}, ValueError, "prefix is one with -1"),
    ({"prefix": [1.5]}, TypeError, "prefix is of float64 values"),
    ({"prefix": [3, True]}, TypeError, "prefix is one with a bool"),
    ({"prefix": "\udc80"}, ValueError, "prefix must be valid Unicode, found half"),
    ({"weights": 5}, TypeError, "weights must be TokenWeights, a name or a file, got int; leave them out"),
    ({"weights": b"smollm2-135m"}, TypeError, "a name or a file, got bytes"),
    ({"mid_p": "no"}, TypeError, "mid_p must be True or False, got 'no'; leave it out"),
    ({"tokenizer": "x"}, TypeError, "tokenizer must be callable like a transformers tokenizer, got str"),
]


def test_bad_arguments_are_refused_in_one_sentence() -> None:
    for change, error, message in BAD:
        with pytest.raises(error, match=message) as caught:
            detect(**{"text_or_ids": [1, 2], "tokenizer": None, "watermark": KGW(key=1), **change})
        assert caught.type is error and "\n" not in str(caught.value) and "; " in str(caught.value)


@pytest.mark.parametrize("watermark", [
    KGW(key=15485863, format="transformers", vocab_size=100),
    Unigram(key=15485863, format="markllm", vocab_size=100),
    EXP(key=15485863, format="markllm", vocab_size=100),
])  # fmt: skip
def test_ids_beyond_the_lists_of_a_foreign_format_are_refused(watermark: Watermark) -> None:
    assert detect([5, 99, 7, 8, 98, 3], None, watermark).num_tokens == 6
    with pytest.raises(ValueError, match="vocab_size 100, but the text contains token id 100"):
        detect([5, 99, 7, 8, 100, 3], None, watermark)


def characters(texts: list[str], **options: Any) -> dict[str, Any]:
    for text in texts:
        text.encode()
    return {"input_ids": [list(map(ord, text)) for text in texts]}


@pytest.mark.parametrize("prefix", ["", [1, 2]])
def test_a_damaged_text_does_not_sink_the_list(prefix: Any) -> None:
    """The others have the results they have alone; it is no evidence, and says why."""
    texts = ["some text", "half \ud83d of one", "", "another text", "\udc00"]
    ready = Detector(characters, KGW(key=1), prefix=prefix)
    results = ready(texts)
    assert isinstance(results, list)
    for i in (0, 2, 3):
        assert results[i] == ready(texts[i]) and not results[i].error
    for i in (1, 4):
        damaged = results[i]
        assert damaged.error == damaged.message and damaged.error.startswith(
            f"text {i} must be valid Unicode, found half"
        )
        assert (damaged.p_value, damaged.is_watermarked, damaged.num_tokens, damaged.num_scored) == (1.0, False, 0, 0)
        with pytest.raises(ValueError, match="text 0 must be valid Unicode"):
            ready(texts[i])
    assert [r.error != "" for r in detect(texts[3:], characters, Unigram(key=1))] == [False, True]
