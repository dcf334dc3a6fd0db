"""Thetas from capacities, and the search for the weakest setting that is found often enough."""

import numpy as np
import pytest
import torch
from tiny import tiny_model, tiny_tokenizer

import caw
from caw.defaults import BETA
from caw.evaluator import Evaluator, FeatureSpec
from caw.settings import Settings
from caw_lab.training.tuning import BETAS, SHARES, Point, Tuner, encode, tune


class Made(Tuner):
    def __init__(self, capacities, power=lambda theta, beta: 0.0, watermark=caw.KGW(key=1)):  # noqa: B008
        self.capacities, self.prompts, self.power_of, self.calls = np.sort(capacities), [[1]], power, []
        self.watermark, self.evaluator = watermark, Evaluator(FeatureSpec(k=3), hidden=4)

    def measure(self, theta, beta):
        self.calls.append((theta, beta))
        return Point(theta, beta, self.protected(theta), self.power_of(theta, beta), 0.5, 0.4, 0.2)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.5, 0.77, 1.0])
def test_theta_protects_at_least_the_wanted_share_and_hardly_more(share):
    tuner = Made(np.random.default_rng(0).random(1013))
    tuned = tune(tuner, share=share)
    assert tuned.reached and tuner.calls == [] and tuned.tried == []
    # 4 digits of theta are a tenth of a token of 1013
    assert share <= tuner.protected(tuned.chosen.theta) <= share + 2 / 1013
    assert tuned.chosen.theta == 1.0 if share == 0 else tuned.chosen.theta < 1.0


@pytest.mark.parametrize("needed", [*SHARES, 0.0])
def test_power_finds_the_most_protection_in_five_runs(needed):
    capacities = np.random.default_rng(1).random(2000)
    tuner = Made(capacities)
    least = tuner.theta_for(needed)  # from this theta on the mark is found
    tuner.power_of = lambda theta, beta: 0.99 if theta >= least else 0.1
    tuned = tune(tuner, power=0.95)
    assert tuned.reached and tuned.chosen.theta == least and tuned.chosen.power == 0.99
    assert len(tuner.calls) <= 5 and tuner.calls[0] == (1.0, BETA) and len(set(tuner.calls)) == len(tuner.calls)
    assert sum(p.power is not None for p in tuned.curve) == len(tuner.calls)
    assert [p.theta for p in tuned.curve] == sorted(p.theta for p in tuned.curve)


def test_power_out_of_reach_takes_one_run():
    tuner = Made(np.random.default_rng(1).random(200), lambda theta, beta: 0.3)
    tuned = tune(tuner, power=0.95, beta=2.0)
    assert not tuned.reached and tuner.calls == [(1.0, 2.0)] and tuned.chosen.power == 0.3


@pytest.mark.parametrize("least", BETAS)
def test_both_targets_choose_theta_then_the_least_beta(least):
    tuner = Made(np.random.default_rng(1).random(2000), lambda theta, beta: 0.97 if beta >= least else 0.5)
    tuned = tune(tuner, share=0.6, power=0.95)
    assert tuned.reached and tuned.chosen.beta == least
    assert tuned.chosen.theta == tuner.theta_for(0.6) and len(tuner.calls) <= 5


def test_betas_that_the_watermark_refuses_are_left_out():
    tuner = Made(np.random.default_rng(1).random(200), lambda theta, beta: 0.0, caw.EXP(key=1, top_k=50))
    tune(tuner, share=0.5, power=0.9)
    assert tuner.calls[0][1] == 2.0  # beta * top_k may not exceed 100


@pytest.fixture(scope="module")
def real():
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    torch.manual_seed(3)
    evaluator = Evaluator(FeatureSpec(), hidden=8).eval().requires_grad_(False)
    prompts = encode(model, tokenizer, ["the sky is", "a small text about", "blue light"])
    return Tuner(model, tokenizer, prompts, evaluator, Settings(max_new_tokens=20), caw.KGW(key=5, delta=4.0), 1e-2, 20)


def test_measure_on_a_tiny_model(real):
    strong, weak = real.measure(1.0, 4.0), real.measure(0.0, 1.0)
    assert weak.changed == 0.0 and strong.changed > 0.1
    assert strong.score > weak.score and strong.power > weak.power
    tuned = tune(real, share=0.3, power=0.5)
    assert tuned.prompts == 3 and tuned.tokens == len(real.capacities)
