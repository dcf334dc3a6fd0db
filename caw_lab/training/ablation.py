"""The paper's ablation of evaluator inputs, from stored positions.

Trained variants differ in the window (no context, N- only, N+ only, N- = N+ = 1, 2, 3), the transform of the
probabilities, their number, and token classes. They are compared with baselines without training. Thresholds of
precision, recall and F1 are chosen on validation documents; all metrics are on held-out documents.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from caw.evaluator.features import FeatureSpec
from caw.evaluator.network import Evaluator
from caw.evaluator.token_classes import CLASSES
from caw.io.figures import save_figure
from caw.op_indices import Transform
from caw.record import RECORD_SIZE
from caw.requirements import require
from caw_lab.training.metrics import auroc, best_threshold, document_interval, figures, require_both_classes
from caw_lab.training.positions import Positions
from caw_lab.training.settings import QUICK, WINDOWS, TrainSettings
from caw_lab.training.train import fit, predict

FIGURES = ("precision", "recall", "f1", "auroc", "average_precision")
WITH_CLASSES = ("no_context", "window_1", "window_2_1")  # what decoding can use, and what more context adds to classes


@dataclass(frozen=True)
class Measured:
    """One evaluator on held-out documents.

    rows: the FIGURES and "threshold" for each training seed; one row if nothing is trained. documents: 95 % interval of
    the first row's AUROC over documents. validation: mean validation AUROC. spec: its features, None if it has none.
    epochs: how long each training took.
    """

    rows: list[dict[str, float]]
    documents: tuple[float, float]
    validation: float
    spec: FeatureSpec | None = None
    epochs: list[int] = field(default_factory=list)

    def mean(self, name: str) -> float:
        return round(float(np.mean([row[name] for row in self.rows])), 4)

    def half_width(self, name: str) -> float | None:
        """Half of the 95 % interval of the mean over seeds (Student's t); None for a single row."""
        if len(self.rows) < 2:
            return None
        spread = float(np.std([row[name] for row in self.rows], ddof=1)) / len(self.rows) ** 0.5
        return float(stats.t.ppf(0.975, len(self.rows) - 1)) * spread


@dataclass(frozen=True)
class Parts:
    """The tokens, int64 [n], for training, for choosing thresholds and the end of training, and for measuring."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    @classmethod
    def of(cls, positions: Positions, *, unseen: bool = False) -> Parts:
        """Split the tokens by documents. unseen: no evaluator was trained on this data set, so every third document
        chooses thresholds and the others are measured.

        Raises ValueError if a required part has one class only.
        """
        if unseen:
            third = np.asarray(positions.arrays["document"]) % 3 == 0
            parts = cls(np.arange(0), np.flatnonzero(third), np.flatnonzero(~third))
        else:
            parts = cls(*(np.flatnonzero(positions.part == name) for name in ("train", "validation", "test")))
        for name, tokens in (("validation part", parts.validation), ("held-out part", parts.test)):
            require_both_classes(positions.key[tokens], name)
        return parts


def variants(
    transforms: Sequence[Transform],
    window: str | None = None,
    line_ends: bool = False,
    top_ks: Sequence[int] = (RECORD_SIZE,),
) -> dict[str, FeatureSpec]:
    """Return specs by name: each window (or this one) with each transform, e.g. "window_1_log".

    The windows of WITH_CLASSES come with token classes too, e.g. "window_1_log_classes". line_ends: of these classes,
    see `FeatureSpec`. top_ks: probabilities kept of each position; all but 100 are named, e.g. "window_1_log_k10".
    """
    specs: dict[str, FeatureSpec] = {}
    chosen = [name for name in WINDOWS if window in (None, name)]
    for transform, name, k in itertools.product(transforms, chosen, top_ks):
        spec = FeatureSpec(*WINDOWS[name], k, transform=transform)
        label = f"{name}_{transform}" + (f"_k{k}" if k != RECORD_SIZE else "")
        specs[label] = spec
        if name in WITH_CLASSES:
            specs[f"{label}_classes"] = replace(spec, classes=len(CLASSES), line_ends=line_ends)
    return specs


def ablate(
    positions: Positions,
    specs: Mapping[str, FeatureSpec],
    seeds: int = 5,
    settings: TrainSettings | None = None,
    table: torch.Tensor | None = None,
    done: Callable[[str], None] = lambda name: None,
) -> Iterator[tuple[str, Measured]]:
    """Train evaluators of each spec and measure them, one spec after the other.

    seeds: how many for each spec, with the seeds settings.seed, settings.seed + 1, ... table: class of every token id,
    uint8 [V], see `train.train`. done: called with the spec's name after each training. Deterministic for a number of
    threads. Raises ValueError if the train part holds one class only.
    """
    settings, parts = settings or QUICK, Parts.of(positions)
    require_both_classes(positions.key[parts.train], "train part")
    for name, spec in specs.items():
        classes = table if spec.classes else None
        every = positions.features(spec, np.arange(len(positions)), classes)
        scores, epochs = [], []
        for seed in range(settings.seed, settings.seed + seeds):
            network, history = fit(
                *_data(positions, every, parts.train), *_data(positions, every, parts.validation), spec,
                replace(settings, seed=seed), classes,
            )  # fmt: skip
            scores.append(predict(network, every))
            epochs.append(int(history["epochs"]))
            done(name)
        yield name, _measure(positions, scores, parts, spec, epochs)


def untrained(positions: Positions, parts: Parts) -> dict[str, Measured]:
    """Measure the baselines without training: entropy, logit delta, and "all tokens are key"."""
    scores = {**positions.baselines(), "all_tokens_key": np.zeros(len(positions))}
    return {name: _measure(positions, [score], parts) for name, score in scores.items()}


def measure_evaluator(positions: Positions, evaluator: Evaluator, parts: Parts) -> Measured:
    """Measure a trained evaluator."""
    capacity = predict(evaluator, positions.features(evaluator.spec, np.arange(len(positions)), evaluator.token_class))
    return _measure(positions, [capacity], parts, evaluator.spec)


def _data(positions: Positions, every: torch.Tensor, tokens: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return every[torch.from_numpy(tokens)], torch.from_numpy(positions.key[tokens]).float()


def _measure(
    positions: Positions,
    scores: Sequence[np.ndarray],
    parts: Parts,
    spec: FeatureSpec | None = None,
    epochs: Sequence[int] = (),
) -> Measured:
    key = positions.key
    rows = [
        figures(key[parts.test], s[parts.test], best_threshold(key[parts.validation], s[parts.validation]))
        for s in scores
    ]
    validation = float(np.mean([auroc(key[parts.validation], s[parts.validation]) for s in scores]))
    return Measured(rows, document_interval(positions, scores[0], parts.test), validation, spec, list(epochs))


def best_variant(results: Mapping[str, Measured]) -> str:
    """Return the trained variant with the greatest mean validation AUROC among those that decoding supports; ties: the
    first.

    Raises ValueError if there is none.
    """
    usable = {n: m.validation for n, m in results.items() if m.spec is not None and _decodable(m.spec)}
    if not usable:
        raise ValueError("at least one variant must support decoding, got none; add window_1")
    return max(usable, key=usable.__getitem__)


def _decodable(spec: FeatureSpec) -> bool:
    try:
        spec.check_decodable()
    except ValueError:
        return False
    return True


def as_json(results: Mapping[str, Measured]) -> dict[str, Any]:
    """Return {"evaluators": {name: means of FIGURES over seeds}}; with several seeds also "half_widths" of
    intervals.
    """
    found: dict[str, Any] = {"evaluators": {name: {f: m.mean(f) for f in FIGURES} for name, m in results.items()}}
    trained = {name: {f: m.half_width(f) for f in FIGURES} for name, m in results.items() if len(m.rows) > 1}
    if trained:
        found["half_widths"] = {n: {f: round(w or 0.0, 4) for f, w in own.items()} for n, own in trained.items()}
    return found


def as_markdown(results: Mapping[str, Measured], about: Mapping[str, Any]) -> str:
    """Return a page with the table, its intervals, and the command that made it. about: see `about_run`."""
    lines = [f"# {about['title']}", "", *(f"- {name}: {value}" for name, value in about.items() if name != "title")]
    lines += ["", "| evaluator | " + " | ".join(f.replace("_", " ") for f in FIGURES) + " | AUROC over documents |"]
    lines.append("| --- |" + " ---: |" * (len(FIGURES) + 1))
    for name, m in results.items():
        low, high = m.documents
        cells = [cell(m, f) for f in FIGURES] + [f"{low:.3f} to {high:.3f}"]
        chosen = [other for other, same in results.items() if same is m and other != name] if name == "capacity" else []
        lines.append(f"| {' = '.join([name, *chosen]).replace('_', ' ')} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cell(measured: Measured, name: str) -> str:
    """Format a figure; with several seeds, with half of its interval over seeds."""
    half = measured.half_width(name)
    return f"{measured.mean(name):.3f}" + ("" if half is None else f" ± {half:.3f}")


def about_run(
    positions: Positions, parts: Parts, seeds: int, settings: TrainSettings, command: str, line_ends: bool = False
) -> dict[str, Any]:
    """Return the facts that a reader of a table needs, title first. seeds: 0 = nothing was trained. line_ends: whether
    those are key.
    """
    documents = "the last column is a 95 % bootstrap over documents of the AUROC (of the first seed)"
    about = {
        "title": f"Evaluators of {positions.meta['model']} on held-out documents",
        "command": f"`{command}`",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "tokens": f"{len(parts.train)} train, "
        * bool(seeds)
        + f"{len(parts.validation)} validation, {len(parts.test)} held out; "
        f"{positions.key[parts.test].mean():.3f} of the held-out ones are key" + ", line ends among them" * line_ends,
        "intervals": documents,
        "thresholds": "greatest F1 on validation documents",
        "versions": f"torch {torch.__version__}",
    }
    if seeds:
        about["intervals"] = f"± is half a 95 % interval of the mean over seeds (Student's t); {documents}"
        about["training"] = (
            f"{seeds} seeds a variant, batches of {settings.batch_size}, learning rate {settings.learning_rate}, at "
            f"most {settings.max_epochs} epochs, patience {settings.patience}"
        )
    return about


def plot(found: Mapping[str, Any], path: str | Path) -> None:
    """Plot AUROC, average precision and F1 of each evaluator, with intervals over seeds, into a file.

    found: as `as_json` returns it. Raises ImportError without matplotlib.
    """
    require("matplotlib", "the plot of evaluators")
    from matplotlib.figure import Figure

    shown = ("auroc", "average_precision", "f1")
    means, widths = found["evaluators"], found.get("half_widths", {})
    figure = Figure(figsize=(8, 0.45 * len(means) + 1.5), layout="constrained")
    axes = figure.add_subplot()
    place = np.arange(len(means))[::-1]
    for i, name in enumerate(shown):
        errors = [widths.get(evaluator, {}).get(name, 0.0) for evaluator in means]
        axes.barh(
            place - 0.27 * (i - 1), [m[name] for m in means.values()], 0.25, xerr=errors,
            label=name.replace("_", " ").replace("auroc", "AUROC").replace("f1", "F1"),
        )  # fmt: skip
    axes.set_yticks(place, [name.replace("_", " ") for name in means])
    axes.set(xlim=(0.45, 1.0), xlabel="held-out documents")
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(axis="x", lw=0.4)
    axes.set_axisbelow(True)
    save_figure(figure, path)
