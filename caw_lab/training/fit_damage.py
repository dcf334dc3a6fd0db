"""Train an evaluator of damage instead of importance: will the answer change if this token does?

Labels need no annotator (`lab/damage.py`): a candidate took a token's place, the model went
on, the final answer stayed or changed. A few hundred such labels are too few for a network, so a logistic regression
is fitted on the inputs of an evaluator that was trained on key segments. It is stored in the same form (two
hidden units that carry a sum and its negative through the rectifiers), so everything that takes an evaluator takes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from caw.evaluator.network import Evaluator
from caw.io.progress import watched
from caw.requirements import require
from caw_lab.training.metrics import auroc

PENALTIES = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)  # scikit-learn's C: smaller is stronger
FOLDS = 5


def fit_damage(
    evaluator: Evaluator,
    features: torch.Tensor,
    changed: np.ndarray,
    questions: np.ndarray,
    provenance: dict[str, Any] | None = None,
) -> tuple[Evaluator, dict[str, float]]:
    """Return (evaluator of damage, its cross-validated metrics).

    Args:
        evaluator: gives spec, standardisation, hidden size and token classes; not changed.
        features: float32 [N, spec.size], as `FeatureSpec.assemble` makes them of the records around each changed token.
        changed: bool [N], whether the answer changed. questions: int [N]; no question is in two folds.

    The penalty with the greatest AUROC over folds is taken. Logits are scaled and shifted to the mean and deviation of
    the given evaluator's on the same rows: the order stays, and theta protects about as many tokens as with it.
    Deterministic. Raises ValueError where an answer never or always changes or the questions are fewer than folds.
    """
    require("scikit-learn", "fitting an evaluator of damage")
    x = ((features - evaluator.mean) / evaluator.scale).double().numpy()
    changed, questions = np.asarray(changed, bool), np.asarray(questions)
    if len(np.unique(questions)) < FOLDS or changed.all() or not changed.any():
        raise ValueError(
            f"expected changed and unchanged answers of at least {FOLDS} questions, got {int(changed.sum())} of "
            f"{len(changed)} changed, {len(np.unique(questions))} questions; measure more changes"
        )
    with torch.inference_mode():
        own = evaluator.logits(features).double().numpy()
    scored = {
        penalty: auroc(changed, _crossed(x, changed, questions, penalty))
        for penalty in watched(PENALTIES, "fitting a regression", "penalties", announced=True)
    }
    best = max(scored, key=lambda penalty: scored[penalty])
    weight, bias = regression(x, changed, best)
    sums = x @ weight + bias
    gain = own.std() / sums.std()
    figures = {
        "changes": len(changed), "questions": len(np.unique(questions)), "penalty": best,
        "auroc_cross_validated": round(scored[best], 4), "auroc_of_the_given_evaluator": round(auroc(changed, own), 4),
    }  # fmt: skip
    made = as_network(evaluator, weight * gain, float(own.mean() - gain * (sums.mean() - bias)), provenance)
    return made, figures


def _crossed(x: np.ndarray, changed: np.ndarray, questions: np.ndarray, penalty: float) -> np.ndarray:
    from sklearn.model_selection import GroupKFold

    sums = np.empty(len(x))
    for train, test in GroupKFold(FOLDS).split(x, changed, questions):
        weight, bias = regression(x[train], changed[train], penalty)
        sums[test] = x[test] @ weight + bias
    return sums


def regression(x: np.ndarray, changed: np.ndarray, penalty: float) -> tuple[np.ndarray, float]:
    """Return weights [n] and bias of the log odds, with the inputs' deviation over these rows folded into the
    weights.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    fitted = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=5000)).fit(x, changed)
    scaler, line = fitted[0], fitted[1]
    weight = line.coef_[0] / scaler.scale_
    return weight, float(line.intercept_[0] - weight @ scaler.mean_)


def as_network(evaluator: Evaluator, weight: np.ndarray, bias: float, provenance: dict[str, Any] | None) -> Evaluator:
    """Build a network with log odds = weight . x + bias, x the standardised inputs, as relu(s) - relu(-s) through both
    layers.
    """
    made = Evaluator(
        evaluator.spec, evaluator.hidden, provenance, evaluator.token_class, evaluator.vocabulary, evaluator.universal
    )
    with torch.no_grad():
        made.mean.copy_(evaluator.mean)
        made.scale.copy_(evaluator.scale)
        for layer in (made.layer1, made.layer2, made.layer3):
            layer.weight.zero_()
            layer.bias.zero_()
        row = torch.from_numpy(weight).float()
        made.layer1.weight[0], made.layer1.weight[1] = row, -row
        made.layer1.bias[0], made.layer1.bias[1] = bias, -bias
        made.layer2.weight[0, 0] = made.layer2.weight[1, 1] = 1.0
        made.layer3.weight[0, 0], made.layer3.weight[0, 1] = 1.0, -1.0
    return made
