"""One evaluator for several models: sets count alike, documents and families are held out, little data makes a line."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from caw.capacity import strength_of
from caw.defaults import BETA, THETA
from caw.evaluator import FeatureSpec
from caw_lab.training.metrics import auroc
from caw_lab.training.settings import TrainSettings
from caw_lab.training.train import predict
from caw_lab.training.universal import Examples, described, interval, settle_strength, train_line, train_network

SPEC = FeatureSpec(0, 0, k=3)
SETTINGS = TrainSettings(hidden=8, learning_rate=1e-2, max_epochs=20, patience=5)


def examples(model, family, sign=1.0, count=600, seed=0):
    """Positions whose first input says, noisily, whether they matter; sign -1: the other way round."""
    rng = np.random.default_rng([seed, count])
    features = rng.normal(size=(count, SPEC.size)).astype(np.float32)
    key = rng.random(count) < 1 / (1 + np.exp(-3 * sign * features[:, 0]))
    documents = np.array([f"doc/{number // 10}" for number in range(count)])
    return Examples(model, family, "maths", torch.from_numpy(features), key, documents)


ALIKE = [examples("a", "one", seed=1), examples("b", "two", count=300, seed=2), examples("c", "two", seed=3)]


@pytest.mark.parametrize("kind", ["line", "network"])
def test_what_holds_everywhere_is_learned_and_holds_for_an_unseen_family(kind):
    if kind == "line":
        made, scored, figures = train_line(ALIKE, SPEC)
        assert set(figures["auroc"]) and figures["penalty"] > 0
        assert [len(each.seen) for each in scored] == [600, 300, 600]
    else:
        made, scored = train_network(ALIKE, SPEC, SETTINGS)
        assert [len(each.seen) for each in scored] == [int((e.part == "test").sum()) for e in ALIKE]
    assert made.universal and made.token_class is None and made.spec == SPEC
    for row in described(scored)["sets"]:
        assert row["seen"] > 0.75 and row["unseen"] > 0.75
        assert row["seen_ci"][0] <= row["seen"] <= row["seen_ci"][1]


def test_a_family_that_is_held_out_is_not_seen():
    """It says the opposite of the others: with it the line is torn, without it sure, and wrong there."""
    sets = [examples("a", "one", seed=1), examples("b", "two", -1.0, seed=2), examples("c", "three", seed=3)]
    _, scored, _ = train_line(sets, SPEC)
    rows = {row["family"]: row for row in described(scored)["sets"]}
    assert rows["two"]["unseen"] < 0.25 and rows["one"]["seen"] > 0.75


def test_small_sets_count_as_much_as_large_ones():
    """Ten times as many examples of one model do not outvote two others."""
    sets = [examples("a", "one", -1.0, 3000, 1), examples("b", "two", count=300), examples("c", "three", count=300)]
    made, _, _ = train_line(sets, SPEC)
    assert auroc(sets[1].key, predict(made, sets[1].features)) > 0.75


def test_documents_are_whole_in_parts_and_folds():
    each = ALIKE[0]
    for labels in (each.part, each.fold):
        for name in np.unique(each.documents):
            assert len(set(labels[each.documents == name].tolist())) == 1
    assert set(each.part.tolist()) == {"train", "validation", "test"} and set(each.fold.tolist()) == set(range(5))
    again = examples("z", "other", seed=9)
    assert (again.fold == each.fold).all() and (again.part == each.part).all()


def test_the_interval_is_over_documents():
    key, score = np.array([True, False] * 50), np.arange(100.0)
    narrow = interval(key, score, np.array([str(n) for n in range(100)]))
    wide = interval(np.repeat(key, 20), np.repeat(score, 20), np.repeat([str(n) for n in range(100)], 20))
    assert wide[1] - wide[0] > 0.8 * (narrow[1] - narrow[0])  # twenty copies of a document are one


@pytest.mark.parametrize(("theta", "beta"), [(0.7, 3.0), (0.5, 5.0), (0.9, 2.0), (0.8, 1.0)])
def test_defaults_act_as_the_theta_and_beta_that_were_chosen(theta, beta):
    made, _, _ = train_line(ALIKE, SPEC)
    features = torch.randn(400, SPEC.size, generator=torch.Generator().manual_seed(1)) * 2
    before, order = torch.from_numpy(predict(made, features)), made.logits(features).argsort()
    settle_strength(made, theta, beta)
    after = torch.from_numpy(predict(made, features))
    assert torch.equal(made.logits(features).argsort(), order)
    chosen, acted = strength_of(before, theta, beta), strength_of(after, THETA, BETA)
    assert ((chosen > 1e-3) != (acted > 1e-3)).float().mean() < 0.02
    half = min(beta, BETA) / 2
    near = (chosen - half).abs() < 0.05
    assert near.any() and ((acted - half).abs()[near] < 0.2).all()
    if (theta, beta) == (THETA, BETA):
        assert torch.allclose(before, after, atol=1e-5)


def test_one_family_alone_is_refused():
    with pytest.raises(ValueError, match=r"models of at least two families, .* got \['two'\]; give others"):
        train_line(ALIKE[1:], SPEC)
