"""A calibration learned under some keys: finds more under another, keeps the null, and is refused for its own keys."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tiny import tiny_model, tiny_tokenizer

import caw
from caw.detection.calibration import NAMES, NUMBERS, Calibration
from caw_lab.training.fit_calibration import fit_calibration

PROMPTS = [f"{a} {b}" for a in ("the sky", "a small text", "red light", "which knows") for b in ("is", "of", "and", "")]
MARKS = {"kgw": caw.KGW(key="c", delta=1.5), "exp": caw.EXP(key="c", top_k=3)}


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    tokenizer = tiny_tokenizer()
    return tiny_model(len(tokenizer)), tokenizer


@pytest.fixture(scope="module")
def made(loaded: tuple[Any, Any]) -> dict[str, dict[Any, list[list[int]]]]:
    options: dict[str, Any] = {"max_new_tokens": 40, "min_new_tokens": 40, "progress": False, "return_trace": False}
    marks = {name: [mark.with_key(key) for key in (1, 2, 3)] for name, mark in MARKS.items()}
    return {
        name: {mark: caw.generate(*loaded, PROMPTS, watermark=mark, **options).sequences for mark in of_keys}
        for name, of_keys in marks.items()
    }


@pytest.fixture(scope="module")
def learned(loaded: tuple[Any, Any], made: dict[str, Any]) -> dict[str, Calibration]:
    reader = caw.ReaderWeights(*loaded)
    return {
        name: fit_calibration(dict(list(texts.items())[:2]), reader, {"note": "x"}, progress=False)
        for name, texts in made.items()
    }


@pytest.mark.parametrize("name", MARKS)
def test_it_finds_more_under_another_key(
    loaded: tuple[Any, Any], made: dict[str, Any], learned: dict[str, Calibration], name: str
) -> None:
    mark, texts = list(made[name].items())[2]
    calibrated = caw.ReaderWeights(*loaded, calibration=learned[name])

    def typical(weights: Any) -> float:
        return float(np.mean([np.log10(r.p_value) for r in caw.detect(texts, None, mark, weights=weights)]))

    with_it, without = typical(calibrated), typical(caw.ReaderWeights(*loaded))
    # a reader that believes too much is worse than none; races leave a model of random weights much the same room
    assert with_it < without - (0.5 if name == "kgw" else 0.0)
    assert name == "exp" or with_it < typical(None)


def test_the_null_is_kept_whatever_it_says(loaded: tuple[Any, Any], made: dict[str, Any], learned: Any) -> None:
    weights = caw.ReaderWeights(*loaded, calibration=learned["kgw"])
    texts = next(iter(made["kgw"].values()))[:3]
    p = [
        r.p_value
        for key in range(10, 110)
        for r in caw.detect(texts, None, caw.KGW(key=key, delta=1.5), weights=weights)
    ]
    for level in (0.1, 0.02):
        assert stats.binomtest(sum(x <= level for x in p), len(p), level, "greater").pvalue > 1e-4


def test_files_and_digests(learned: dict[str, Calibration], loaded: tuple[Any, Any], tmp_path: Path) -> None:
    path, one = tmp_path / "calibration.json", learned["kgw"]
    one.save(path)
    again = Calibration.load(path)
    assert again == one and again.digest == one.digest and path.stat().st_size < 10_000
    assert replace(one, provenance={}).digest == one.digest != replace(one, intercept=0.0).digest
    assert one.key_ids == tuple(sorted(caw.KGW(key=k).key_id for k in (1, 2))) and one.provenance["note"] == "x"
    weights = caw.ReaderWeights(*loaded, calibration=path)
    assert weights.calibration == one and "without the prompt, calibrated, Fixed" in weights.name
    assert weights.digest != caw.ReaderWeights(*loaded).digest
    with pytest.raises(FileNotFoundError, match="does not exist"):
        Calibration.load(tmp_path / "nowhere")
    for change in ({"version": 0}, {"features": ["x"]}, {"mean": [1.0]}, {"intercept": "x"}, {"extra": 1}):
        bad = {**json.loads(path.read_text()), **change}
        (tmp_path / "bad.json").write_text(json.dumps(bad))
        with pytest.raises(ValueError, match=r"must be a calibration of this version \(") as caught:
            Calibration.load(tmp_path / "bad.json")
        assert "\n" not in str(caught.value)


def test_what_is_refused(learned: dict[str, Calibration], loaded: tuple[Any, Any], made: dict[str, Any]) -> None:
    weights = caw.ReaderWeights(*loaded, calibration=learned["kgw"])
    with pytest.raises(ValueError, match="which would make"):
        caw.detect([1, 2], None, caw.KGW(key=1, delta=1.5), weights=weights)
    for mark in (caw.Unigram(key=9), caw.KGW(key=9, gamma=0.5), caw.EXP(key=9)):
        with pytest.raises(ValueError, match=r"the calibration is for kgw with mean unmarked score 0\.25, got"):
            caw.detect([1, 2], None, mark, weights=weights)
    with pytest.raises(ValueError, match="whose prompt is unknown, got a prompt"):
        weights.with_prompt("red")
    with pytest.raises(TypeError, match="calibration must be a Calibration or its file, got int"):
        caw.ReaderWeights(*loaded, calibration=3)  # type: ignore[arg-type]
    texts = {mark: items[:1] for mark, items in made["kgw"].items()}
    with pytest.raises(ValueError, match="must have no prompt and no calibration"):
        fit_calibration(texts, weights, progress=False)
    with pytest.raises(ValueError, match="must have no prompt and no calibration"):
        fit_calibration(texts, caw.ReaderWeights(*loaded, "red"), progress=False)
    reader = caw.ReaderWeights(*loaded)
    mixed = {**texts, caw.KGW(key=4, delta=2.0): [[1, 2, 3]]}
    for given in ({}, mixed):
        with pytest.raises(ValueError, match="one watermark that differ in the key alone"):
            fit_calibration(given, reader, progress=False)
    with pytest.raises(ValueError, match="with tokens that count, got none"):
        fit_calibration({caw.KGW(key=4): [[]]}, reader, progress=False)
    with pytest.raises(ValueError, match="scales must be positive"):
        replace(learned["kgw"], scale=[0.0] * len(NAMES))
    assert len(NUMBERS) == len(set(NUMBERS))
