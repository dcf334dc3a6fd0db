"""Train an evaluator: standardised inputs, Adam on binary cross-entropy, early stopping, temperature calibration.

The paper's printed loss lacks the `1 -` inside its second logarithm (appendix "Details of Watermark Capacity
Evaluator"): as printed it would push every capacity up, whatever the label. The loss here is the cross-entropy
    -(c log E + (1 - c) log(1 - E))
that the text beside it names.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import scipy  # its parts load when they are used: optimize takes a second
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from caw.evaluator.features import FeatureSpec
from caw.evaluator.network import Evaluator
from caw.io.progress import Bar
from caw_lab.training.metrics import auroc, compare, document_interval, reliability, require_both_classes
from caw_lab.training.positions import Positions
from caw_lab.training.settings import TrainSettings

CHUNK = 8192
SCALE_FLOOR = 1e-6  # inputs that never change (padding) must not be divided by 0
TEMPERATURES = (0.1, 10.0)


def train(
    positions: Positions,
    spec: FeatureSpec | None = None,
    settings: TrainSettings | None = None,
    table: torch.Tensor | None = None,
) -> tuple[Evaluator, dict[str, Any]]:
    """Train on the train part of stored positions, stop and calibrate on validation, measure on test.

    table: class of every token id, uint8 [V]; needed if the spec counts token classes.

    Returns the evaluator (eval mode, no provenance yet) and what was measured: `metrics.compare`'s figures of
    "capacity" beside the untrained evaluators, the AUROC's interval, validation AUROC, calibration, epochs. The same
    arguments and thread count give the same weights.
    """
    spec, settings = spec or FeatureSpec(), settings or TrainSettings()
    part = positions.part
    data = {}
    for name in ("train", "validation"):
        tokens = np.flatnonzero(part == name)
        require_both_classes(positions.key[tokens], f"{name} part")
        data[name] = (positions.features(spec, tokens, table), torch.from_numpy(positions.key[tokens]).float())
    evaluator, history = fit(*data["train"], *data["validation"], spec, settings, table)
    capacity = predict(evaluator, positions.features(spec, np.arange(len(positions)), table))
    measured = compare(positions, {"capacity": capacity})
    validation, test = part == "validation", part == "test"
    return evaluator, {
        "validation_auroc": round(auroc(positions.key[validation], capacity[validation]), 4),
        **measured,
        "auroc_ci": document_interval(positions, capacity, "test"),
        "calibration": {"temperature": history["temperature"], **reliability(positions.key[test], capacity[test])},
        "epochs": history["epochs"],
        "settings": asdict(settings),
    }


def choose_transform(
    positions: Positions,
    specs: Sequence[FeatureSpec],
    settings: TrainSettings | None = None,
    seeds: int = 3,
    table: torch.Tensor | None = None,
) -> tuple[Evaluator, dict[str, Any]]:
    """Train `seeds` evaluators for each spec (seed, seed + 1, …) and choose by validation AUROC.

    The spec with the greatest mean wins, the first on ties, and its best evaluator is returned: seeds differ by as much
    as transforms do, so a single draw of each would choose by luck. The metrics gain "choice": validation AUROC of
    every seed, by transform.
    """
    settings = settings or TrainSettings()
    trained: list[list[tuple[Evaluator, dict[str, Any]]]] = [[] for _ in specs]
    with Bar(len(specs) * seeds, "training", "networks", announced=True) as bar:
        for spec, of_spec in zip(specs, trained, strict=True):
            for s in range(seeds):
                bar.begin(f"training on {spec.transform} probabilities, seed {settings.seed + s}")
                of_spec.append(train(positions, spec, replace(settings, seed=settings.seed + s), table))
                bar()
    aurocs = [[measured["validation_auroc"] for _, measured in of_spec] for of_spec in trained]
    chosen = int(np.argmax([sum(a) for a in aurocs]))
    evaluator, measured = trained[chosen][int(np.argmax(aurocs[chosen]))]
    return evaluator, {**measured, "choice": {s.transform: a for s, a in zip(specs, aurocs, strict=True)}}


def fit(
    features: torch.Tensor,
    key: torch.Tensor,
    validation_features: torch.Tensor,
    validation_key: torch.Tensor,
    spec: FeatureSpec,
    settings: TrainSettings,
    table: torch.Tensor | None = None,
    *,
    universal: bool = False,
) -> tuple[Evaluator, dict[str, Any]]:
    """Fit a network of features float32 [n, spec.size] to key float32 [n], calibrated on the validation arrays.

    universal: whether it is for every model, and has no table of token classes.

    Leaves the global random state unchanged. Also returns {"epochs", "losses" (validation, per epoch), "temperature"}.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = Evaluator(spec, settings.hidden, token_class=table, universal=universal)
        network.dropout = settings.dropout
        network.mean.copy_(features.mean(0))
        network.scale.copy_(features.std(0, correction=0).clamp_min(SCALE_FLOOR))
        best, losses = _descend(network, (features, key), (validation_features, validation_key), settings)
    network.load_state_dict(best)
    network.eval().requires_grad_(False)
    temperature = calibrate(network, validation_features, validation_key)
    return network, {"epochs": len(losses), "losses": losses, "temperature": round(temperature, 4)}


def _descend(
    network: Evaluator,
    data: tuple[torch.Tensor, torch.Tensor],
    validation: tuple[torch.Tensor, torch.Tensor],
    settings: TrainSettings,
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Return the weights of the epoch with the smallest validation loss, and every epoch's validation loss."""
    features, key = data
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    best: dict[str, torch.Tensor] = {}
    losses: list[float] = []
    for _ in range(settings.max_epochs):
        network.train()
        for batch in torch.randperm(len(key)).split(settings.batch_size):
            optimizer.zero_grad()
            cross_entropy(network.logits(features[batch]), key[batch]).backward()
            optimizer.step()
        network.eval()
        losses.append(float(cross_entropy(_logits(network, validation[0]), validation[1])))
        if losses[-1] == min(losses):
            best = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
        if len(losses) - losses.index(min(losses)) > settings.patience:
            break
    return best, losses


def calibrate(network: Evaluator, features: torch.Tensor, key: torch.Tensor) -> float:
    """Divide logits by the temperature of least cross-entropy, folded into the last layer; return it."""
    logits = _logits(network, features).double()

    def loss(log_temperature: float) -> float:
        return float(cross_entropy(logits / float(np.exp(log_temperature)), key.double()))

    temperature = float(np.exp(scipy.optimize.minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded").x))
    with torch.no_grad():
        network.layer3.weight.div_(temperature)
        network.layer3.bias.div_(temperature)
    return temperature


def predict(network: Evaluator, features: torch.Tensor) -> np.ndarray:
    """Return the capacity float32 [n] of features [n, spec.size]."""
    return _logits(network, features).sigmoid().numpy()


def _logits(network: Evaluator, features: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return torch.cat([network.logits(some) for some in features.split(CHUNK)])
