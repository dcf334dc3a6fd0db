"""Evaluators of damage: the network that is stored is the regression that was fitted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from caw.evaluator import Evaluator, FeatureSpec
from caw_lab.training.fit_damage import fit_damage
from caw_lab.training.metrics import auroc

SPEC = FeatureSpec(previous=0, next=0, k=7)


def changes(count: int) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Answers change where the third input is large, with a tenth of the labels flipped; ten changes a question."""
    rng = np.random.default_rng(3)
    features = torch.from_numpy(rng.normal(size=(count, SPEC.size))).float() * 3 + 1
    changed = (features[:, 2].numpy() > 1) ^ (rng.random(count) < 0.1)
    return features, changed, np.arange(count) // 10


@pytest.fixture
def given() -> Evaluator:
    evaluator = Evaluator(SPEC, hidden=9)
    evaluator.mean.fill_(1.0)
    evaluator.scale.fill_(3.0)
    return evaluator


def test_it_learns_what_changes_answers_and_is_stored_like_any_other(given, tmp_path):
    features, changed, questions = changes(400)
    made, figures = fit_damage(given, features, changed, questions, {"model": "toy"})
    assert figures["auroc_cross_validated"] > 0.85 > figures["auroc_of_the_given_evaluator"]
    fresh, labels, _ = changes(900)
    assert auroc(labels[400:], made.logits(fresh[400:]).detach().numpy()) > 0.85
    made.save(tmp_path / "damage.safetensors")
    loaded = Evaluator.load(tmp_path / "damage.safetensors")
    assert torch.equal(loaded(features), made(features)) and loaded.provenance == {"model": "toy"}
    assert (loaded.spec, loaded.hidden) == (given.spec, given.hidden)


def test_logits_are_linear_and_have_the_spread_of_the_given_evaluator(given):
    features, changed, questions = changes(400)
    made, _ = fit_damage(given, features, changed, questions)
    logits, own = made.logits(features).detach(), given.logits(features).detach()
    assert float(logits.mean()) == pytest.approx(float(own.mean()), abs=1e-3)
    assert float(logits.std()) == pytest.approx(float(own.std()), rel=1e-3)
    a, b = features[:100], features[100:200]
    middle = made.logits((a + b) / 2).detach()
    ends = (made.logits(a) + made.logits(b)).detach() / 2
    assert float((middle - ends).abs().max()) < 1e-4 * float(logits.abs().max())


def test_questions_never_straddle_folds(given):
    """Labels that are a coin per question cannot be foreseen, whatever marks the question in the inputs."""
    rng = np.random.default_rng(0)
    questions = np.arange(300) // 10
    marks = torch.from_numpy(rng.normal(size=(30, SPEC.size))).float()
    changed = rng.random(30)[questions] < 0.5
    _, figures = fit_damage(given, marks[questions], changed, questions)
    assert figures["auroc_cross_validated"] < 0.75, "with rows of a question on both sides it would be near 1"


@pytest.mark.parametrize(("changed", "questions"), [([True] * 20, range(20)), ([True, False] * 10, [1] * 20)])
def test_too_little_to_learn_from_is_refused(given, changed, questions):
    with pytest.raises(ValueError, match="expected changed and unchanged answers of at least 5 questions, got"):
        fit_damage(given, torch.zeros(20, SPEC.size), np.array(changed), np.array(questions))
