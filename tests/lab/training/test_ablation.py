"""The ablation on made-up positions: which figures come from which tokens, and that signals are found."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from stored_positions import made_up_positions

from caw.evaluator import FeatureSpec
from caw.evaluator.token_classes import CLASSES
from caw.testing import assert_close
from caw_lab.training import ablation
from caw_lab.training.metrics import best_threshold
from caw_lab.training.train import TrainSettings, fit, predict

QUICK = TrainSettings(hidden=16, max_epochs=6, patience=3, batch_size=256, learning_rate=3e-3)


@pytest.fixture(scope="module")
def positions(tmp_path_factory):
    return made_up_positions(tmp_path_factory.mktemp("positions"))


def test_variants():
    specs = ablation.variants(["raw", "log"])
    assert len(specs) == 2 * (len(ablation.WINDOWS) + len(ablation.WITH_CLASSES))
    assert specs["window_2_raw"] == FeatureSpec(2, 2, transform="raw")
    assert specs["window_1_log_classes"] == FeatureSpec(1, 1, transform="log", classes=len(CLASSES))
    assert list(ablation.variants(["gap"], "next_only")) == ["next_only_gap"]
    of_sizes = ablation.variants(["log"], "window_1", line_ends=True, top_ks=[10, 100])
    names = ["window_1_log_k10", "window_1_log_k10_classes", "window_1_log", "window_1_log_classes"]
    assert list(of_sizes) == names
    assert of_sizes[names[1]] == FeatureSpec(1, 1, 10, "log", len(CLASSES), line_ends=True)


def test_figures_are_of_held_out_tokens_with_thresholds_from_validation(positions):
    spec = FeatureSpec(0, 0, k=5)
    seen = []
    results = dict(ablation.ablate(positions, {"mine": spec}, 2, QUICK, done=seen.append))
    assert seen == ["mine", "mine"] and list(results) == ["mine"]
    measured = results["mine"]
    part, key = positions.part, positions.key
    every = positions.features(spec, np.arange(len(positions)))
    for seed, row in enumerate(measured.rows):
        data = [(every[part == p], ablation.torch.from_numpy(key[part == p]).float()) for p in ("train", "validation")]
        network, _ = fit(*data[0], *data[1], spec, ablation.replace(QUICK, seed=seed))
        score = predict(network, every)
        test, validation = part == "test", part == "validation"
        assert row["auroc"] == round(roc_auc_score(key[test], score[test]), 4)
        assert row["average_precision"] == round(average_precision_score(key[test], score[test]), 4)
        threshold = best_threshold(key[validation], score[validation])
        assert row["f1"] == round(f1_score(key[test], score[test] >= threshold), 4)
    assert measured.rows[0] != measured.rows[1]
    assert measured.mean("auroc") == round(np.mean([r["auroc"] for r in measured.rows]), 4) > 0.95
    low, high = measured.documents
    assert low <= measured.rows[0]["auroc"] <= high
    # the standard error of two values is half their distance; Student's t of one degree of freedom is a Cauchy law
    distance = abs(measured.rows[0]["f1"] - measured.rows[1]["f1"])
    assert_close(measured.half_width("f1"), np.tan(np.pi * 0.475) * distance / 2, "float64")


def test_untrained_and_unseen(positions):
    parts = ablation.Parts.of(positions)
    results = ablation.untrained(positions, parts)
    assert set(results) == {"entropy", "logit_delta", "all_tokens_key"}
    everything = results["all_tokens_key"]
    assert (everything.mean("auroc"), everything.mean("recall"), everything.half_width("f1")) == (0.5, 1.0, None)
    assert len(parts.test) == (positions.part == "test").sum()
    unseen = ablation.Parts.of(positions, unseen=True)
    document = np.asarray(positions.arrays["document"])
    assert len(unseen.test) + len(unseen.validation) == len(positions) and len(unseen.train) == 0
    assert set(document[unseen.validation]) == set(range(0, 60, 3))
    measured = ablation.untrained(positions, unseen)["entropy"]
    assert measured.rows[0]["auroc"] == round(
        roc_auc_score(positions.key[unseen.test], positions.baselines()["entropy"][unseen.test]), 4
    )


def test_json_and_table(positions):
    results = {"no_context_raw": ablation.untrained(positions, ablation.Parts.of(positions))["entropy"]}
    found = ablation.as_json(results)
    assert list(found) == ["evaluators"]
    assert set(found["evaluators"]["no_context_raw"]) == {"precision", "recall", "f1", "auroc", "average_precision"}
    page = ablation.as_markdown(results, {"title": "T", "command": "`c`"})
    assert page.startswith("# T\n\n- command: `c`\n") and "| no context raw | 1.000 | 1.000 |" in page
    both = ablation.as_markdown({"capacity": results["no_context_raw"], **results}, {"title": "T"})
    assert "| capacity = no context raw | 1.000 |" in both


def test_best_variant_is_one_that_decoding_supplies(positions):
    specs = {"window_1": FeatureSpec(1, 1), "window_3": FeatureSpec(3, 3)}
    fake = {
        name: ablation.Measured([], (0, 1), auroc, spec)
        for (name, spec), auroc in zip(specs.items(), (0.8, 0.9), strict=True)
    }
    assert ablation.best_variant(fake) == "window_1"
    with pytest.raises(ValueError, match="got none"):
        ablation.best_variant({"window_3": fake["window_3"]})


def test_one_class_only_is_named(positions, monkeypatch):
    monkeypatch.setattr(type(positions), "key", property(lambda self: np.ones(len(self), dtype=bool)))
    with pytest.raises(ValueError, match="validation part must have key tokens and others"):
        ablation.Parts.of(positions)
