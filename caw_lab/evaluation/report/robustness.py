"""Detection under attacks, from the scores of a run."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from caw_lab.evaluation.config import NONE
from caw_lab.evaluation.metrics import detectability
from caw_lab.evaluation.metrics.accuracy import difference_interval
from caw_lab.evaluation.report.data import ReportData, Setting, setting_of_cell
from caw_lab.evaluation.store import Score, natural

LEVEL = 0.01  # false-positive rate at which texts count as found; p-values are exact, so it needs no calibration


@dataclass(frozen=True)
class Robust:
    """Detection of a setting at `LEVEL` under an attack, and its AUROC.

    texts: attacked marked texts. edit_rate: mean share of words that changed. found, auroc: share found, and AUROC, of
    each key, float64 [keys]; auroc is NaN without attacked negatives. loss: share found without the attack minus share
    found with it, mean over keys, float64 [questions]. loss_ci: 95 % interval of its mean, see
    `accuracy.difference_interval`. false: share of attacked negatives that are found, NaN without any.
    """

    setting: Setting
    attack: str
    texts: int
    edit_rate: float
    found: np.ndarray
    auroc: np.ndarray
    loss: np.ndarray
    loss_ci: tuple[float, float]
    false: float


def robustness(data: ReportData) -> list[Robust]:
    """Compute every attack on every marked setting that has scores with and without it."""
    groups: dict[tuple[Setting, str], dict[int, dict[str, Score]]] = defaultdict(lambda: defaultdict(dict))
    negatives: dict[tuple[str, str, str, int, str], list[float]] = defaultdict(list)
    for score in data.scores:
        setting, _ = setting_of_cell(score.cell, score.watermark)
        if score.label:
            groups[setting, score.attack][score.key][score.id] = score
        elif score.source == "model":
            negatives[setting.model, setting.task, score.watermark, score.key, score.attack].append(score.p_value)
    made = []
    for (setting, attack), keys in groups.items():
        plain = groups.get((setting, NONE))
        if attack == NONE or not plain:
            continue
        shared = {
            key: sorted(texts.keys() & plain[key].keys(), key=natural) for key, texts in keys.items() if key in plain
        }
        shared = {key: ids for key, ids in sorted(shared.items()) if ids}
        if shared:
            made.append(_robust(setting, attack, shared, keys, plain, negatives))
    return sorted(made, key=lambda r: (data.order(r.setting), natural(r.attack)))


def _robust(
    setting: Setting,
    attack: str,
    shared: Mapping[int, list[str]],
    attacked: Mapping[int, Mapping[str, Score]],
    plain: Mapping[int, Mapping[str, Score]],
    negatives: Mapping[tuple[str, str, str, int, str], list[float]],
) -> Robust:
    found, auroc, false = [], [], []
    losses: dict[str, list[int]] = defaultdict(list)
    for key, ids in shared.items():
        p = np.array([attacked[key][i].p_value for i in ids])
        for i, hit in zip(ids, p <= LEVEL, strict=True):
            losses[i].append(int(plain[key][i].p_value <= LEVEL) - int(hit))
        null = np.array(negatives.get((setting.model, setting.task, setting.watermark, key, attack), []))
        false += (null <= LEVEL).tolist()
        found.append(np.mean(p <= LEVEL))
        auroc.append(detectability.auroc(p, null))
    loss = np.array([np.mean(values) for values in losses.values()])
    ends = difference_interval(loss)
    assert ends is not None
    edits = [attacked[key][i].edit_rate for key, ids in shared.items() for i in ids]
    return Robust(
        setting, attack, sum(map(len, shared.values())), float(np.mean(edits)), np.array(found),
        np.array([np.nan if a is None else a for a in auroc]), loss, ends,
        float(np.mean(false)) if false else float("nan"),
    )  # fmt: skip
