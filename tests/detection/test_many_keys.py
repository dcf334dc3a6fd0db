"""One text against many keys: the p-values of a detector each, corrected for their number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from detection.native_watermarks import REPETITIVE
from scipy import stats

import caw
from caw.detection import Detector, KeySearch, KeySearchResult, detect_keys
from caw.detection.family import family_wise
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, SynthID, Unigram, Watermark

FAST = {
    "lefthash": lambda key: KGW(key=key),
    "lefthash of 3": lambda key: KGW(key=key, context_width=3, gamma=0.5),
    "unigram": lambda key: Unigram(key=key),
    "exp": lambda key: EXP(key=key),
    "exp by scale": lambda key: EXP(key=key, strength="scale", context_width=1),
}
SLOW = {
    "selfhash": lambda key: KGW(key=key, seeding="selfhash"),
    "hf": lambda key: KGW(key=key, format="transformers", vocab_size=500),
    "synthid": lambda key: SynthID(key, reading="mean"),
    "exp at 0.7": lambda key: EXP(key=key, temperature=0.7),
}
TEXTS = [
    np.random.default_rng(0).integers(0, 500, 80), np.array(REPETITIVE), np.array([3]), np.empty(0, np.int64),
]  # fmt: skip


def marked(watermark: KGW | Unigram, count: int = 60) -> list[int]:
    ids = [1]
    while len(ids) < count:
        context = torch.tensor([ids[-1:]])[:, : watermark.window]
        ids.append(int(watermark.green_vocabulary(context, 500)[0].nonzero()[len(ids) % 100]))
    return ids


@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_each_key_has_the_p_value_of_its_detector(name: str) -> None:
    build = {**FAST, **SLOW}[name]
    marks = {f"key {i}": build(i) for i in range(1, 8)}
    for ids in TEXTS:
        found = KeySearch(None, marks).search(ids)
        expected = [Detector(None, mark).detect_ids([ids])[0].p_value for mark in marks.values()]
        assert_close(found.p_values, expected, "tail")


def test_kinds_may_be_mixed_and_keep_their_order() -> None:
    builds = [*FAST.values(), *SLOW.values()]
    marks: dict[str, Watermark] = {str(i): builds[i % len(builds)](1 + i // 3) for i in range(30)}
    found = KeySearch(None, marks)(TEXTS[0].tolist())
    expected = [Detector(None, mark)(TEXTS[0].tolist()).p_value for mark in marks.values()]  # type: ignore[union-attr]
    assert isinstance(found, KeySearchResult)
    assert_close(found.p_values, expected, "tail")


def test_the_right_key_of_a_thousand_is_named() -> None:
    marks = {f"key {i}": KGW(key=i) for i in range(300)}
    for ids in (marked(marks["key 123"]), marked(marks["key 299"])):
        found = caw.detect_keys(ids, None, marks)
        own = found.results[found.likeliest]
        assert found.is_watermarked and found.matches == (found.likeliest,)
        assert own.p_value == float(found.p_values[int(found.likeliest.split()[1])])
        assert_close(found.p_value, 1 - (1 - own.p_value) ** 300, "tail")
        assert own.key_id == marks[found.likeliest].key_id and own.token_ids == tuple(ids)
        assert found.message.startswith(f"watermarked with {found.likeliest} at a false-positive rate of 0.001 (300 ke")
    names = [caw.detect_keys(marked(marks[n]), None, marks).likeliest for n in ("key 0", "key 200")]
    assert names == ["key 0", "key 200"]


def test_a_text_that_would_pass_alone_does_not_pass_among_many() -> None:
    ids, marks = marked(KGW(key=5), 14), {f"key {i}": KGW(key=i) for i in range(400)}
    alone = Detector(None, marks["key 5"], fpr=1e-3)(ids)
    assert alone.is_watermarked  # type: ignore[union-attr]
    found = detect_keys(ids, None, marks, fpr=1e-6)
    assert not found.is_watermarked and found.results == {} and found.likeliest == "key 5"
    assert found.is_undecided and found.nearest is not None and found.nearest.num_needed == 15
    assert found.message.startswith(
        "too short to decide at a false-positive rate of 1e-06 (400 keys tried, corrected p"
    )
    longer = detect_keys(TEXTS[0].tolist(), None, marks, fpr=1e-6)
    assert longer.message.startswith("no watermark found at a false-positive rate of 1e-06") and not longer.is_undecided


def test_the_correction_is_one_minus_one_minus_p_to_the_n() -> None:
    assert_close(family_wise(np.array([0.1, 0.5, 1.0]), 3), [1 - 0.9**3, 1 - 0.5**3, 1.0], "float64")
    # where 1 - p rounds to 1
    assert_close(family_wise(np.array([1e-20, 1.0, 1.0]), 3), [3e-20, 1.0, 1.0], "float64")


def test_false_alarms_of_the_family_are_as_many_as_promised() -> None:
    """EXP's p-values are continuous, so the corrected ones are uniform: 200 texts, 30 other keys for each."""
    rng = np.random.default_rng(1)
    texts = rng.integers(0, 5000, (200, 40))
    corrected = []
    for number, text in enumerate(texts):
        marks = {str(i): EXP(key=1000 * number + i) for i in range(30)}
        corrected.append(KeySearch(None, marks).search(text).p_value)
    assert stats.kstest(corrected, "uniform").pvalue > 1e-3
    plain = [1 - (1 - p) ** (1 / 30) for p in corrected]
    assert stats.kstest(plain, "uniform").pvalue < 1e-9  # without the correction they are far from uniform


def test_lists_and_texts_that_no_tokenizer_reads() -> None:
    def words(texts: list[str], **options: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}

    search = KeySearch(words, {"a": KGW(key=1), "b": KGW(key=2)})
    found = search(["1 2 3", "\ud800", "4 5"])
    assert isinstance(found, list) and [r.tokens for r in found] == [3, 0, 2]
    assert found[1].error and found[1].p_value == 1 and not found[1].is_watermarked and found[1].likeliest == ""
    assert search([]) == []
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        search("\ud800")


def test_bad_arguments_are_refused_in_a_sentence() -> None:
    pytest.importorskip("reedsolo")
    for marks, fpr, kind, message in (
        ({}, 0.1, ValueError, "at least one watermark is required, got none"),
        ({"a": KGW(key=1)}, 1.0, ValueError, "fpr must be"),
        ([KGW(key=1)], 0.1, TypeError, "watermarks must be a mapping of names to watermarks, got list; name them"),
        ({"a": 3}, 0.1, TypeError, "watermark 'a' must be a Recommended, KGW"),
        ({"a": KGW(key=1, payload_bits=8)}, 0.1, ValueError, "watermark 'a' carries a payload"),
    ):
        with pytest.raises(kind, match=message):
            KeySearch(None, marks, fpr)  # type: ignore[arg-type]


def test_keys_are_in_no_repr() -> None:
    search = KeySearch(None, {"a": KGW(key=987654321)})
    shown = repr(search) + repr(vars(search)) + repr(search.search(TEXTS[0]))
    assert "987654321" not in shown and str(KGW(key=987654321).native.signed_key) not in shown  # type: ignore[union-attr]
