"""Training: learns what can be learnt, nothing from shuffled labels, the same weights from the same seed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from stored_positions import made_up_positions

from caw.evaluator import FeatureSpec
from caw.testing import assert_close
from caw_lab.training import metrics as m
from caw_lab.training.train import TrainSettings, calibrate, choose_transform, fit, predict, train

SPEC = FeatureSpec(previous=0, next=0, k=20)
QUICK = TrainSettings(hidden=32, max_epochs=8, patience=3)


def separable(count):
    features = torch.randn(count, SPEC.size)
    return features, (features[:, 3] * features[:, 7] > 0).float()  # no single input tells


def test_learns_a_separable_problem():
    (x, y), (vx, vy), (tx, ty) = separable(6000), separable(1000), separable(1000)
    network, history = fit(x, y, vx, vy, SPEC, TrainSettings(max_epochs=30, hidden=64))
    assert m.auroc(ty.bool().numpy(), predict(network, tx)) > 0.97
    assert not network.training and history["epochs"] <= 30


def test_same_seed_same_weights_and_global_state_untouched():
    (x, y), (vx, vy) = separable(800), separable(200)
    state = torch.get_rng_state()
    first, again = (fit(x, y, vx, vy, SPEC, QUICK)[0] for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    other = fit(x, y, vx, vy, SPEC, TrainSettings(hidden=32, max_epochs=8, seed=1))[0]
    for a, b in zip(first.weights(), again.weights(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.layer1.weight, other.layer1.weight)


def test_calibration_finds_the_temperature():
    x, _ = separable(20000)
    network, _ = fit(*separable(200), *separable(100), SPEC, QUICK)
    logits = network.logits(x)
    network.layer3.weight.mul_(3.0), network.layer3.bias.mul_(3.0)  # three times too sure
    y = (torch.rand(len(x)) < logits.sigmoid()).float()
    temperature = calibrate(network, x, y)
    # labels drawn from the original logits: the temperature of 20000 of them is within 10 % of 3
    assert 2.7 < temperature < 3.3
    assert_close(network.logits(x) * (temperature / 3), logits, "capacity")


@pytest.mark.parametrize("signal, low, high", [(4.0, 0.97, 1.0), (1.0, 0.38, 0.62)], ids=["signal", "none"])
def test_train_on_positions(tmp_path, signal, low, high):
    positions = made_up_positions(tmp_path, signal=signal)
    evaluator, measured = train(positions, FeatureSpec(), QUICK)
    capacity = measured["evaluators"]["capacity"]
    assert low <= capacity["auroc"] <= high
    test = positions.part == "test"
    assert measured["tokens"] == test.sum()
    again = predict(evaluator, positions.features(FeatureSpec(), np.flatnonzero(test)))
    assert capacity["auroc"] == round(roc_auc_score(positions.key[test], again), 4)
    assert measured["agree"]["tokens"] == (test & positions.agree).sum()
    assert set(measured["evaluators"]) == {"capacity", "entropy", "logit_delta", "all_tokens_key"}
    base = positions.key[test].mean()
    all_key = measured["evaluators"]["all_tokens_key"]
    assert (all_key["auroc"], all_key["recall"]) == (0.5, 1.0) and all_key["precision"] == round(base, 4)
    assert all_key["f1"] == round(2 * base / (1 + base), 4)
    interval = measured["auroc_ci"]
    assert interval[0] <= capacity["auroc"] <= interval[1]


def test_choose_transform_goes_by_the_mean_of_seeds(tmp_path):
    positions = made_up_positions(tmp_path, documents=40, tokens=20)
    specs = [FeatureSpec(previous=0, next=0, k=5, transform=t) for t in ("raw", "log", "gap")]
    evaluator, measured = choose_transform(positions, specs, QUICK, seeds=2)
    choice = measured["choice"]
    assert list(choice) == ["raw", "log", "gap"] and all(len(aurocs) == 2 for aurocs in choice.values())
    chosen = choice[evaluator.spec.transform]
    assert sum(chosen) == max(sum(aurocs) for aurocs in choice.values())
    assert measured["validation_auroc"] == max(chosen)
    seed = measured["settings"]["seed"]
    assert chosen[seed - QUICK.seed] == max(chosen)
    alone, again = train(positions, evaluator.spec, replace(QUICK, seed=seed))
    assert again["validation_auroc"] == max(chosen)
    for a, b in zip(evaluator.weights(), alone.weights(), strict=True):
        assert torch.equal(a, b)


def test_a_model_that_never_agrees_is_measured_on_all_tokens(tmp_path):
    positions = made_up_positions(tmp_path)
    positions.arrays["token"] = np.full(len(positions), -5)
    measured = m.compare(positions, {"capacity": np.linspace(0, 1, len(positions))})
    assert measured["agree"] == {"tokens": 0, "base_rate": None, "evaluators": {}}
    assert "capacity" in measured["evaluators"]


def test_too_little_data_is_named(tmp_path):
    positions = made_up_positions(tmp_path, documents=1)
    with pytest.raises(ValueError, match=r"(validation|train) part must have key tokens and others"):
        train(positions, SPEC, QUICK)
