"""One evaluator for several models: sets count alike, documents and families are held out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from caw.evaluator import FeatureSpec
from caw_lab.training.metrics import auroc
from caw_lab.training.settings import TrainSettings
from caw_lab.training.train import predict
from caw_lab.training.universal import Examples, train_network

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


def test_what_holds_everywhere_is_learned_and_holds_for_an_unseen_family():
    made, scored = train_network(ALIKE, SPEC, SETTINGS)
    assert [len(each.seen) for each in scored] == [int((e.part == "test").sum()) for e in ALIKE]
    assert made.universal and made.token_class is None and made.spec == SPEC
    for row in (each.row() for each in scored):
        assert row["seen"] > 0.75 and row["unseen"] > 0.75
        assert row["seen_ci"][0] <= row["seen"] <= row["seen_ci"][1]


def test_a_family_that_is_held_out_is_not_seen():
    """It says the opposite of the others: with it the network is torn, without it sure, and wrong there."""
    sets = [examples("a", "one", seed=1), examples("b", "two", -1.0, seed=2), examples("c", "three", seed=3)]
    rows = {each.examples.family: each.row() for each in train_network(sets, SPEC, SETTINGS)[1]}
    assert rows["two"]["unseen"] < 0.25 and rows["one"]["seen"] > 0.75


def test_small_sets_count_as_much_as_large_ones():
    """Ten times as many examples of one model do not outvote two others."""
    sets = [examples("a", "one", -1.0, 3000, 1), examples("b", "two", count=300), examples("c", "three", count=300)]
    made, _ = train_network(sets, SPEC, SETTINGS)
    assert auroc(sets[1].key, predict(made, sets[1].features)) > 0.75


def test_one_family_alone_is_refused():
    with pytest.raises(ValueError, match=r"models of at least two families, .* got \['two'\]; give others"):
        train_network(ALIKE[1:], SPEC, SETTINGS)
