"""Figures of a report, made with matplotlib: trade-off, robustness, perplexity.

Each kind of policy has one colour in all figures (of the Okabe-Ito palette, which colour-blind people can tell apart)
and one marker, so that figures can be read in grey too.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from caw.requirements import require
from caw_lab.evaluation.config import NONE
from caw_lab.evaluation.metrics.perplexity import box
from caw_lab.evaluation.report.data import ReportData, Setting
from caw_lab.evaluation.report.robustness import Robust
from caw_lab.evaluation.report.tables import comparisons, p_value

COLOURS = {NONE: "#7a7f87", "fixed": "#d55e00", "entropy": "#009e73", "logit-delta": "#cc79a7", "capacity": "#0072b2"}
MARKERS = {"fixed": "s", "entropy": "^", "logit-delta": "D", "capacity": "o"}
NAMES = {NONE: "no watermark", "fixed": "fixed strength", "entropy": "+entropy", "logit-delta": "+logit delta",
         "capacity": "+CAW"}  # fmt: skip
DETECTION = {"tpr_at_fpr_1e2": "TPR at FPR 1 %", "auroc": "AUROC"}
INK = "#010203"


def _figure(width: float, height: float, rows: int, columns: int) -> tuple[Any, Any]:
    require("matplotlib", "the figures of a report")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def pareto(data: ReportData, task: str) -> Any | None:
    """Draw accuracy over TPR at 1 % and AUROC, by model and watermark; None if no row of the task has both."""
    usable = [s for s in data.settings() if s.task == task and s.watermark != NONE and _point(data, s, "auroc")]
    columns = list(dict.fromkeys((s.model, s.watermark) for s in usable))
    if not columns:
        return None
    figure, axes = _figure(3.6 * len(columns) + 1.2, 6.4, len(DETECTION), len(columns))
    for row, measure in enumerate(DETECTION):
        for column, (model, watermark) in enumerate(columns):
            own = [s for s in usable if (s.model, s.watermark) == (model, watermark)]
            _pareto_panel(axes[row, column], data, own, measure)
            axes[row, column].set(xlabel=DETECTION[measure], title=f"{watermark.upper()}, {model}" if row == 0 else "")
        axes[row, 0].set_ylabel("accuracy")
    _legend(figure, axes)
    return figure


def _point(data: ReportData, setting: Setting, measure: str) -> tuple[float, float] | None:
    row = data.row(setting)
    x, y = row.get(measure), row.get("accuracy")
    return None if x is None or y is None else (float(x), float(y))


def _pareto_panel(axes: Any, data: ReportData, settings: Sequence[Setting], measure: str) -> None:
    base = Setting(settings[0].model, settings[0].task)
    if base in data.settings():
        row = data.row(base)
        axes.axhline(row["accuracy"], color=COLOURS[NONE], ls="--", lw=1, label=NAMES[NONE])
        if row.get("accuracy_ci"):
            axes.axhspan(*row["accuracy_ci"], color=COLOURS[NONE], alpha=0.12, lw=0)
    for kind in dict.fromkeys(data.kind(s.policy) for s in settings):
        points = [(p, s) for s in settings if data.kind(s.policy) == kind and (p := _point(data, s, measure))]
        points.sort(key=lambda found: found[0])
        places = [p for p, _ in points]
        colour, marker = COLOURS.get(kind, INK), MARKERS.get(kind, "x")
        axes.plot(*zip(*places, strict=True), color=colour, marker=marker, lw=1.2, ms=6, label=NAMES.get(kind, kind))
        for (x, y), setting in points:
            ends = data.row(setting).get("accuracy_ci")
            if ends:
                axes.plot([x, x], ends, color=colour, lw=0.9, alpha=0.55)
            axes.annotate(setting.policy, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7, color=colour)
    axes.grid(lw=0.3)
    axes.margins(x=0.12)


def _legend(figure: Any, axes: Any) -> None:
    entries: dict[str, Any] = {}
    for panel in axes.flat:
        handles, labels = panel.get_legend_handles_labels()
        entries |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in entries}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=len(entries), fontsize=8)


def robustness_plot(data: ReportData, found: Sequence[Robust], task: str) -> Any | None:
    """Draw the loss of TPR at 1 % under attacks, with 95 % whiskers, by model and watermark; None if empty."""
    own = [r for r in found if r.setting.task == task]
    panels = list(dict.fromkeys((r.setting.model, r.setting.watermark) for r in own))
    if not panels:
        return None
    attacks = list(dict.fromkeys(r.attack for r in own))
    figure, axes = _figure(max(4.2, 1.1 * len(attacks) + 1.4) * len(panels), 4.2, 1, len(panels))
    for column, panel in enumerate(panels):
        here = [r for r in own if (r.setting.model, r.setting.watermark) == panel]
        _robustness_panel(axes[0, column], data, here, attacks)
        axes[0, column].set_title(f"{panel[1].upper()}, {panel[0]}")
    axes[0, 0].set_ylabel("loss of TPR at p = 0.01")
    return figure


def _robustness_panel(axes: Any, data: ReportData, here: Sequence[Robust], attacks: Sequence[str]) -> None:
    settings = list(dict.fromkeys(r.setting for r in here))
    width = 0.84 / len(settings)
    seen: dict[str, int] = {}
    for number, setting in enumerate(settings):
        kind = data.kind(setting.policy)
        bars = [(attacks.index(r.attack), float(r.loss.mean()), r.loss_ci) for r in here if r.setting == setting]
        places = [at - 0.42 + width * (number + 0.5) for at, _, _ in bars]
        again = seen[kind] = seen.get(kind, -1) + 1  # further settings of a kind are paler
        axes.bar(
            places, [loss for _, loss, _ in bars], 0.92 * width, color=COLOURS.get(kind, INK),
            alpha=max(0.25, 1 - 0.3 * again), label=setting.policy,
            yerr=np.array([[loss - ends[0], ends[1] - loss] for _, loss, ends in bars]).T.clip(0),
            error_kw={"lw": 0.9, "ecolor": INK},
        )  # fmt: skip
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_xticks(range(len(attacks)), attacks, rotation=25, ha="right", fontsize=8)
    axes.grid(axis="y", lw=0.3)
    axes.set_axisbelow(True)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=4)


def perplexity_plot(data: ReportData, task: str) -> Any | None:
    """Draw boxes of perplexity (5 % to 95 %) above bars of accuracy, with p-values against unmarked texts; None if
    empty.

    No bars where no text has a grade.
    """
    settings = [s for s in data.settings() if s.task == task and (s in data.perplexity)]
    models = list(dict.fromkeys(s.model for s in settings))
    if not settings:
        return None
    widest = max(sum(s.model == m for s in settings) for m in models)
    panels = 2 if any(data.correct.get(s) for s in settings) else 1
    figure, axes = _figure(max(5.0, 0.75 * widest + 1.2) * len(models), 5.8 if panels > 1 else 3.6, panels, len(models))
    found = comparisons(data)
    for column, model in enumerate(models):
        own = [s for s in settings if s.model == model]
        colours = [COLOURS[NONE] if s.watermark == NONE else COLOURS.get(data.kind(s.policy), INK) for s in own]
        _boxes(axes[0, column], [list(data.perplexity[s].values()) for s in own], colours)
        right = [data.correct.get(s, {}) for s in own]
        heights = [float(np.mean(list(g.values()))) if g else math.nan for g in right]
        axes[0, column].set(title=model, xticks=[])
        if panels > 1:
            axes[1, column].bar(range(len(own)), heights, 0.6, color=colours)
        labels = [data.label(s) for s in own]
        axes[-1, column].set_xticks(range(len(own)), labels, rotation=30, ha="right", fontsize=8)
        for at, setting in enumerate(own):
            for row, comparison in enumerate(found.get(setting, ())[:panels]):
                p = comparison.mann_whitney if row == 0 else comparison.paired
                axes[row, column].annotate(
                    f"p {p_value(p)}", (at, 1.0), xycoords=("data", "axes fraction"), xytext=(0, -3),
                    textcoords="offset points", ha="center", va="top", fontsize=6,
                )  # fmt: skip
        for row in range(panels):
            low, high = axes[row, column].get_ylim()
            axes[row, column].set_ylim(low, high + 0.12 * (high - low))  # room for the p-values
            axes[row, column].grid(axis="y", lw=0.3)
            axes[row, column].set_axisbelow(True)
            axes[row, column].set_xlim(-0.6, len(own) - 0.4)
    axes[0, 0].set_ylabel("perplexity under\n" + data.judge.replace(", ", ",\n"))
    if panels > 1:
        axes[1, 0].set_ylabel("accuracy")
    return figure


def _boxes(axes: Any, values: Sequence[Sequence[float]], colours: Sequence[str]) -> None:
    shapes = [box(v) for v in values]
    drawn = [
        {"med": s["median"], "q1": s["q1"], "q3": s["q3"], "whislo": s["low"], "whishi": s["high"], "fliers": []}
        for s in shapes
    ]
    parts = axes.bxp(drawn, positions=range(len(drawn)), widths=0.6, showfliers=False, patch_artist=True)
    for patch, colour in zip(parts["boxes"], colours, strict=True):
        patch.set(facecolor=colour, alpha=0.55, edgecolor=INK)
    for name in ("medians", "whiskers", "caps"):
        for line in parts[name]:
            line.set(color=INK, lw=1.4 if name == "medians" else 0.9)
