"""An evaluator from a model and prompts alone, with a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from stored_positions import made_up_positions
from tiny import save_tiny

from caw.evaluator import Evaluator, FeatureSpec
from caw_lab.training import stored_swaps as stored
from caw_lab.training.metrics import auroc, document_interval, gain_interval
from caw_lab.training.positions import Positions
from caw_lab.training.self_training import (
    even_odds,
    figures_of,
    label_swaps,
    train_on_own_texts,
)
from caw_lab.training.settings import OwnTexts, Reading, TrainSettings
from caw_lab.training.stored_swaps import stored_swaps
from caw_lab.training.swaps import SwapSettings

QUICK = TrainSettings(hidden=8, max_epochs=2)
SWAPS = SwapSettings(keys=2, horizon=4)


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    """(what reads, texts, folder) of 24 prompts; the folder is complete after the first training."""
    folder = tmp_path_factory.mktemp("self")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"the small text {i}"}) + "\n" for i in range(24)))
    texts = OwnTexts(prompts, max_new_tokens=16, temperature=0.8)
    return Reading(str(save_tiny(folder / "tiny")), folder=folder / "positions"), texts


def test_from_prompts_to_weights(setup, tmp_path):
    reading, texts = setup
    output = tmp_path / "own.safetensors"
    written = train_on_own_texts(
        reading, texts, output, FeatureSpec(), QUICK, SWAPS, command="made by a test", progress=False
    )
    assert json.loads(output.with_suffix(".json").read_text()) == json.loads(json.dumps(written))
    evaluator = Evaluator.load(output)
    assert evaluator.provenance == json.loads(json.dumps(written)) and written["model"] == reading.model
    data, measured = written["data"], written["metrics"]
    assert data["documents"] == 48 and data["files"] == ["prompts.jsonl"]
    assert sum(data["split"][part]["tokens"] for part in ("train", "validation", "test")) == data["swaps"] > 100
    assert 0.05 < measured["base_rate"] < 0.2
    assert {"capacity", "entropy"} <= set(measured["evaluators"]) and len(measured["gain_over_entropy_ci"]) == 2
    assert "key" not in data["settings"], "keys of swaps are nobody's, but keys are never written"

    # what the folder keeps is used again, and only for what it was made from
    nobody = replace(reading, device="none")
    again = train_on_own_texts(nobody, texts, tmp_path / "b.safetensors", FeatureSpec(), QUICK, SWAPS, progress=False)
    assert again["metrics"] == written["metrics"]
    with pytest.raises(ValueError, match="were made with swaps"):
        train_on_own_texts(reading, texts, output, FeatureSpec(), QUICK, replace(SWAPS, horizon=3), progress=False)
    with pytest.raises(ValueError, match="were made with texts_sha256"):
        train_on_own_texts(reading, replace(texts, seed=1), output, FeatureSpec(), QUICK, SWAPS, progress=False)

    with stored_swaps(reading, texts, SWAPS, progress=False) as (positions, harm):
        assert len(positions) == len(harm) and not positions.key.any()
        whole = Positions.open(reading.folder)
        assert len(whole) == whole.meta["written_tokens"] == data["written_tokens"]
        labelled, bound = label_swaps(positions, harm)
        assert abs(float(labelled.key[labelled.part == "train"].mean()) - 0.1) < 0.02
        assert np.array_equal(labelled.key, harm > bound)


@pytest.mark.parametrize("when", ["writing", "measuring", "storing"])
def test_an_interrupted_run_continues(setup, tmp_path, when, monkeypatch):
    """What was made is not made again, and the folder is that of a run that was not interrupted."""
    reading, texts = setup
    whole, broken = (replace(reading, folder=tmp_path / name) for name in ("whole", "broken"))
    with stored_swaps(whole, texts, SWAPS, progress=False) as (_, harm):
        pass
    made = {"writing": 0, "measuring": 0, "storing": 0}

    class Interrupted(Exception):
        pass

    def counting(name, original):
        def call(*given, **options):
            made[name] += 1
            if made[name] == 9 and name == when and not made.get("again"):
                raise Interrupted
            return original(*given, **options)

        return call

    monkeypatch.setattr(stored.EncodedText, "unlabelled", counting("writing", stored.EncodedText.unlabelled))
    monkeypatch.setattr(stored, "measure_swaps", counting("measuring", stored.measure_swaps))
    monkeypatch.setattr(stored, "store_rows", counting("storing", stored.store_rows))
    with pytest.raises(Interrupted), stored_swaps(broken, texts, SWAPS, progress=False):
        pass
    made.update(again=1, measuring=0, storing=0)
    with stored_swaps(broken, texts, SWAPS, progress=False) as (_, again):
        assert np.array_equal(harm, again)
    assert made["measuring"] == made["storing"] == (48 if when == "writing" else 40)
    for name, array in Positions.open(whole.folder).arrays.items():
        assert np.array_equal(array, Positions.open(broken.folder).arrays[name]), name


def test_capacity_is_at_even_odds():
    evaluator, x = Evaluator(FeatureSpec(), 8), torch.randn(50, FeatureSpec().size)
    before = evaluator(x).double()
    even_odds(evaluator, 0.1)
    after = evaluator(x).double()
    assert torch.allclose(after / (1 - after), 9 * before / (1 - before), rtol=1e-4)


def test_too_little_written(setup, tmp_path):
    reading, texts = setup
    bare = replace(reading, folder=None)
    with pytest.raises(ValueError, match="expected texts of more than 32 tokens"):
        train_on_own_texts(bare, texts, tmp_path / "e.safetensors", swaps=SwapSettings(), progress=False)
    (tmp_path / "meta.json").touch()
    with pytest.raises(ValueError, match="found positions of labelled texts"):
        train_on_own_texts(replace(bare, folder=tmp_path), texts, tmp_path / "e.safetensors", progress=False)
    with pytest.raises(FileNotFoundError, match="the output folder"):
        train_on_own_texts(bare, texts, tmp_path / "none" / "e.safetensors", progress=False)


def test_harm_left_is_that_of_the_swaps_still_allowed(tmp_path):
    positions = made_up_positions(tmp_path, documents=40, tokens=25)
    test = positions.part == "test"
    harm = np.where(test, np.arange(len(positions)), 0.0)
    left = figures_of(positions, harm, Evaluator(FeatureSpec(), 4))["harm_left"]
    n = int(test.sum())
    ordered = np.sort(harm[test])[::-1]
    assert left["harm itself"]["0.5"] == pytest.approx(ordered[round(n / 2) :].sum() / ordered.sum(), abs=1e-4)
    assert left["harm itself"]["0.1"] < left["entropy"]["0.1"] <= 1


def test_intervals_draw_texts_of_one_prompt_together(tmp_path):
    """Each document there twice under its own name is no more evidence than once."""
    positions = made_up_positions(tmp_path, documents=60, tokens=10, signal=1.5)
    score = -np.asarray(positions.baselines()["entropy"])
    every = np.arange(len(positions))
    names = positions.meta["documents"]
    twice = Positions(
        {n: np.concatenate([a, a + 60]) if n == "document" else np.concatenate([a, a]) if len(a) == 600 else a
         for n, a in positions.arrays.items()},
        positions.bounds, {**positions.meta, "documents": [*names, *names]},
    )  # fmt: skip
    doubled = np.concatenate([score, score])
    once = document_interval(positions, score, every)
    assert document_interval(twice, doubled, np.arange(1200)) == pytest.approx(once, abs=1e-4)
    low, high = gain_interval(positions, score, np.zeros(600), every)
    assert (low, high) == pytest.approx((once[0] - 0.5, once[1] - 0.5), abs=2e-4)
    assert gain_interval(positions, score, score, every) == (0.0, 0.0)
    assert auroc(positions.key, score) == pytest.approx(sum(once) / 2, abs=0.05)
