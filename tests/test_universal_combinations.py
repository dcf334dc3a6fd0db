"""Combinations of labels of changes: scores of documents unseen, and networks that say a sum of others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from universal_combinations import (
    Changes,
    Ranked,
    deeper,
    figures,
    joint,
    log_odds,
    mean_auroc,
    merged,
    ranks,
    safest,
    scores_of,
)
from universal_labels import DEPTH
from universal_training import SPEC

from caw_lab.training.metrics import auroc
from caw_lab.training.universal import Examples

FAMILIES = {"one": "a", "two": "b"}


def changes(model: str, kind: str, count: int = 200) -> Changes:
    """The first input says what heals, the second what harms; the key knows nothing, and the third token all."""
    rng = np.random.default_rng(len(model) + len(kind))
    features = torch.from_numpy(rng.normal(size=(count, SPEC.size)).astype(np.float32))
    unhealed = features[:, 0].numpy() + rng.normal(size=count) > 0
    harm = features[:, 1].numpy() + rng.normal(size=count)
    ahead = rng.normal(size=(count, DEPTH, 6)).astype(np.float32)
    ahead[:, 2, 4] = unhealed
    every, names = np.ones(count, bool), np.array([f"d{number % 20}" for number in range(count)])
    targets = {"does not heal": (unhealed, every), "harmful": (harm > np.quantile(harm, 0.9), every)}
    if kind == "maths":
        targets["other answer"] = (unhealed, rng.random(count) < 0.8)
    length = np.where(np.arange(count) % 4 == 0, DEPTH + 1, 30)
    key = rng.normal(size=count)
    return Changes(
        Examples(model, FAMILIES[model], kind, features, unhealed, names), targets, ahead, length, (key, key)
    )


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("universal_combinations.RESAMPLES", 40)


@pytest.fixture(scope="module")
def sets() -> list[Changes]:
    return [changes(model, kind) for model in FAMILIES for kind in ("maths", "everyday")]


def test_scores_and_figures(sets: list[Changes]) -> None:
    scores, evaluators = scores_of(sets)
    found = {row["score"]: row["auroc"] for row in figures(sets, scores)["rows"]}
    assert set(found["key"]) == {
        f"{target}, {kind}" for target in ("does not heal", "harmful") for kind in ("maths", "everyday")
    } | {"other answer, maths"}
    assert 0.4 < found["key"]["does not heal, maths"][0][0] < 0.6
    for which in (0, 1):
        assert found["healing"]["does not heal, everyday"][which][0] > 0.65
        assert found["healing"]["other answer, maths"][which][0] > 0.65
        assert found["harm"]["harmful, maths"][which][0] > found["healing"]["harmful, maths"][which][0] + 0.1
        assert found["all three, regression"]["harmful, maths"][which][0] > 0.65
    low, high = found["healing"]["does not heal, maths"][0][1:]
    assert low < found["healing"]["does not heal, maths"][0][0] < high
    parts = [scores[part] for part in ("key", "harm", "healing")]
    for which in (0, 1):
        [spread, *others] = [np.concatenate([each[which] for each in part]).std() for part in parts]
        expected = sum(part[3][which] * spread / s for part, s in zip(parts, (spread, *others), strict=True))
        assert np.allclose(scores["all three, standardised"][3][which] * spread, expected)
    assert found["all three, standardised"]["does not heal, maths"][0][0] > 0.6
    features = sets[0].of.features
    both = merged([evaluators["harm"], evaluators["key"]], [0.5, -0.25], 0.125)
    expected = 0.5 * log_odds(evaluators["harm"], features) - 0.25 * log_odds(evaluators["key"], features) + 0.125
    assert np.abs(log_odds(both, features) - expected).max() < 1e-4


def test_the_safest_fifth_keeps_its_answer_more_often(sets: list[Changes]) -> None:
    known = [each.targets["other answer"] for each in sets if "other answer" in each.targets]
    perfect = [(each.targets["does not heal"][0].astype(float),) * 2 for each in sets]  # the answer, in these sets
    one, other, wrong = safest(sets, {"perfect": perfect, "wrong": [(-score, -score) for score, _ in perfect]})
    assert one == {"score": "all", "kept": [round(float(np.mean([np.mean(~key[on]) for key, on in known])), 3)] * 2}
    assert (other["kept"], wrong["kept"]) == ([1.0, 1.0], [0.0, 0.0])
    assert safest(sets[1::2], {}) == [], "everyday text has no answer"


def test_a_regression_sees_no_document_of_its_own(sets: list[Changes]) -> None:
    """Scores that name the document tell nothing about another one's."""
    rng = np.random.default_rng(1)
    noise = {"noise": [(score, score) for score in (rng.normal(size=len(each.of.key)) for each in sets)]}
    for which in (0, 1):
        found = [each[which] for each in joint(sets, noise, ("noise",), "other answer") if each is not None]
        assert len(found) == 2, "of sets that have the target"
        [mean, *_] = mean_auroc([
            Ranked(each.of.key, score, each.of.documents) for each, score in zip(sets[::2], found, strict=True)
        ])  # fmt: skip
        assert 0.38 < mean < 0.62


def test_deeper_tokens_are_read(sets: list[Changes]) -> None:
    by_depth = {row["depth"]: row for row in deeper(sets)}
    assert by_depth[0]["maths changes"] == 300, "rollouts that had ended by the last token are left out"
    assert by_depth[2]["auroc"]["maths"][0] < 0.85 < 0.95 < by_depth[4]["auroc"]["maths"][0]


def test_ranks() -> None:
    rng = np.random.default_rng(2)
    key, score = rng.random(60) < 0.3, rng.integers(9, size=60).astype(float)
    assert Ranked(key, score, key).auroc(np.arange(60)) == pytest.approx(auroc(key, score))
    assert ranks(np.array([5.0, -1.0, 7.0])).tolist() == [0.0, -1.0, 1.0]
