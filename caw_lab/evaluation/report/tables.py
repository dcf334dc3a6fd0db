"""Tables of a report: the paper's Table 1, what each run was, robustness, perplexity."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caw.io.show import format_p
from caw_lab.evaluation.config import NONE
from caw_lab.evaluation.metrics.perplexity import Comparison, box, compare_accuracy, compare_perplexity
from caw_lab.evaluation.metrics.style import REPEATED_SIZE, SIZES
from caw_lab.evaluation.report.data import ReportData, Setting
from caw_lab.evaluation.report.robustness import Robust

DASH = "–"
RATES = ("tpr_at_fpr_1e2", "tpr_at_fpr_1e3")
DETECTION = ("auroc", "f1", *RATES)
NOTHING = Comparison(0, math.nan, math.nan)


@dataclass(frozen=True)
class Table:
    """title, the columns' names, rows of as many texts, and a note for the reader."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"| {' | '.join(map(_cell, self.header))} |", "| --- |" + " ---: |" * (len(self.header) - 1)]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in self.rows]
        return "\n".join([*lines, "", self.note] if self.note else lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def number(value: Any, digits: int = 3) -> str:
    """Format a number, or a dash for None and NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    return f"{value:.{digits}f}"


def per_cent(value: Any, digits: int = 1) -> str:
    """A share, such as "27.0 %", or a dash for None and NaN."""
    shown = number(None if value is None else 100 * value, digits)
    return shown if shown == DASH else f"{shown} %"


def points(value: Any, digits: int = 1) -> str:
    """A difference of shares in percentage points, such as "-4.5", or a dash for None and NaN."""
    return number(None if value is None else 100 * value, digits)


def with_interval(value: Any, interval: Any, show: Callable[..., str] = number) -> str:
    """A number such as "0.270 [0.19, 0.36]" or, shown as per cent, "27.0 % [19, 36]"; alone without an interval."""
    if not isinstance(interval, Sequence) or len(interval) != 2 or value is None:
        return show(value)
    low, high = (number(end, 2) if show is number else points(end, 0) for end in interval)
    return f"{show(value)} [{low}, {high}]"


def p_value(value: float | None) -> str:
    return DASH if value is None or math.isnan(value) else format_p(value)


def main_table(data: ReportData, task: str) -> Table:
    """Return the paper's Table 1 for a task: accuracy, AUC, F1 and TPR at 1 % by setting, models side by side."""
    settings = [s for s in data.settings() if s.task == task]
    models = list(dict.fromkeys(s.model for s in settings))
    ways = list(dict.fromkeys((s.watermark, s.policy) for s in settings))
    second = any(data.row(s).get("weighted") for s in settings)
    names = ("Acc.", "AUC", "F1", "TPR at 1 %", *(("weighted TPR",) if second else ()))
    lead = (lambda m, n: f"{m} {n}") if len(models) > 1 else (lambda m, n: n)
    rows = []
    for watermark, policy in ways:
        row = [data.label(Setting(models[0], task, watermark, policy))]
        for model in models:
            setting = Setting(model, task, watermark, policy)
            found = data.row(setting) if setting in settings else {}
            row.append(with_interval(found.get("accuracy"), found.get("accuracy_ci"), per_cent))
            row += [number(found.get(n)) if watermark != NONE else DASH for n in ("auroc", "f1")]
            row.append(per_cent(found.get("tpr_at_fpr_1e2")) if watermark != NONE else DASH)
            row += [per_cent((found.get("weighted") or {}).get("tpr_at_fpr_1e2"))] if second else []
        rows.append(tuple(row))
    note = (
        "Accuracy with its 95 % interval. AUC and F1: marked texts against the same model's unmarked answers to the "
        "same questions; F1 on half of the questions, at the threshold that was best on the other half. TPR: at an "
        "exact p-value of 0.01. Detectors read every token up to the end of the answer and know neither model nor "
        "prompt, whatever the policy."
    )
    return Table(
        f"Accuracy and detection, {task}", ("", *(lead(m, n) for m in models for n in names)), tuple(rows), note
    )


def detection_table(data: ReportData) -> Table:
    """Return what Table 1 lacks: intervals, false positives, human answers as negatives, spread between keys."""
    rows = []
    for setting in data.settings():
        row = data.row(setting)
        if setting.watermark == NONE:
            continue
        between = row.get("sd_over_keys") or {}
        rows.append((
            setting.model, setting.task, data.label(setting), str(row.get("keys") or DASH),
            *(with_interval(row.get(n), row.get(f"{n}_ci"), per_cent if n in RATES else number) for n in DETECTION),
            per_cent(row.get("fpr_1e2")), number(row.get("auroc_human")), number(row.get("f1_human")),
            per_cent(row.get("fpr_human_1e2")), points(between.get("accuracy")), number(between.get("auroc")),
            number(between.get("f1")),
        ))  # fmt: skip
    header = ("model", "task", "setting", "keys", "AUC", "F1", "TPR at 1 %", "TPR at 0.1 %", "FPR at 1 %",
              "AUC, people", "F1, people", "FPR, people", "sd of acc., points", "sd of AUC", "sd of F1")  # fmt: skip
    note = (
        "Brackets: 95 % intervals over questions, under these keys. sd: standard deviation between keys. FPR at 1 %: "
        "share of unmarked answers with an exact p-value of at most 0.01. People: their answers to the same questions "
        "as negatives, which differ from the model's in length and style."
    )
    return Table("Detection", header, tuple(rows), note)


def run_table(data: ReportData) -> Table:
    """Return how much was measured for each setting, and the lengths of its texts."""
    rows = []
    for setting in data.settings():
        row = data.row(setting)
        rows.append((
            setting.model, setting.task, data.label(setting), str(row.get("n", DASH)), str(row.get("keys") or DASH),
            number(row.get("tokens_median"), 0), per_cent(row.get("ended")), _count(row.get("unparsed")),
            per_cent(row.get("marked")), per_cent(row.get("changed")), number(row.get("z_mean"), 2),
            per_cent(row.get("tpr_at_fpr_1e3")),
        ))  # fmt: skip
    header = ("model", "task", "setting", "n", "keys", "median tokens", "ended", "unparsed", "tokens marked",
              "tokens changed", "mean z", "TPR at 0.1 %")  # fmt: skip
    note = (
        "ended: share of texts that stopped before the token limit, by an end token or at the start of a next "
        "question. unparsed: answers that could not be parsed; they count as wrong."
    )
    return Table("What was measured", header, tuple(rows), note)


def style_table(data: ReportData) -> Table:
    """Return length and repetition of the texts of tasks without right answers."""
    rows = []
    for setting in data.settings():
        row = data.row(setting)
        if style := row.get("style"):
            rows.append((
                setting.model, setting.task, data.label(setting), str(row.get("n", DASH)),
                per_cent(row.get("tpr_at_fpr_1e3")), number(row.get("attempts"), 2),
                number(row.get("tokens_median"), 0), per_cent(row.get("ended")), number(style["words_median"], 0),
                *(per_cent(style[f"distinct_{n}"]) for n in SIZES), per_cent(style[f"repeated_{REPEATED_SIZE}"]),
            ))  # fmt: skip
    header = ("model", "task", "setting", "texts", "TPR at 0.1 %", "attempts", "median tokens", "ended", "median words",
              *(f"distinct {n}-grams" for n in SIZES), f"repeated {REPEATED_SIZE}-grams")  # fmt: skip
    note = (
        "attempts: per text, mean, if texts are tested. ended: before the token limit. distinct: share of distinct "
        "n-grams of words in each hundred words; repeated: share of a text's n-grams that occurred before in it."
    )
    return Table("Texts", header, tuple(rows), note)


def _count(value: Any) -> str:
    return DASH if value is None else f"{value:g}" if isinstance(value, (int, float)) else str(value)


def cost_table(data: ReportData) -> Table:
    """Return each setting's cost in accuracy and decodes, and its share of detectable texts."""
    differences = {
        Setting(r["model"], r["task"], r["watermark"], r["a"]): r for r in data.comparisons if r["b"] == NONE
    }
    rows = []
    for setting in data.settings():
        row, against = data.row(setting), differences.get(setting)
        if against is None:
            continue
        weighted = row.get("weighted") or {}
        rows.append((
            setting.model, setting.task, data.label(setting), str(row.get("keys") or DASH), per_cent(row["accuracy"]),
            with_interval(against["difference"], against["difference_ci"], points),
            *(per_cent(source.get(f"tpr_at_fpr_{at}")) for source in (row, weighted) for at in ("1e2", "1e3")),
            per_cent(row.get("found")), number(row.get("attempts", 1.0), 2), per_cent(row.get("changed")),
        ))  # fmt: skip
    header = ("model", "task", "setting", "keys", "accuracy", "minus unmarked, points", "detected at 1 %", "at 0.1 %",
              "weighted, 1 %", "weighted, 0.1 %", "detected as it left", "decodes", "tokens changed")  # fmt: skip
    note = (
        "Minus unmarked: accuracy minus that of the same model's unmarked answers, with a 95 % interval over "
        "questions. Detected: share of texts with an exact p-value of at most the level, up to the end of the answer. "
        "Detected as it left: by the test that decided whether the whole text was generated again. Decodes: per text, "
        "mean."
    )
    return Table("What marks cost", header, tuple(rows), note)


def equal_detection_table(data: ReportData) -> Table:
    """Return the accuracy of each policy minus that of a fixed strength with the same detection rate."""
    measures = {"tpr_at_fpr_1e2": "TPR at 1 %", "tpr_at_fpr_1e3": "TPR at 0.1 %", "z_mean": "mean z"}
    measures |= {f"weighted_{name}": f"weighted {text}" for name, text in measures.items()}
    rows = [
        (
            str(r["model"]), str(r["task"]), data.label(Setting(r["model"], r["task"], r["watermark"], r["policy"])),
            measures.get(r["measure"], r["measure"]),
            (number if r["measure"].endswith("z_mean") else per_cent)(r["target_measure"]), per_cent(r["accuracy"]),
            per_cent(r["accuracy_fixed"]), with_interval(r["difference"], r["difference_ci"], points),
            "yes" if r["inside"] else "no", str(r["n"]),
        )
        for r in data.equal_detection
    ]  # fmt: skip
    header = ("model", "task", "setting", "equal in", "at", "accuracy", "fixed strength's", "difference, points",
              "on the curve", "n")  # fmt: skip
    note = (
        "The fixed strengths and the unmarked texts form a curve of accuracy over detection; the fixed strength's "
        "accuracy is interpolated at the policy's own detection. Interval 95 %, questions resampled. Not on the curve: "
        "the policy is detected more often than the strongest (or less often than the weakest) fixed one, whose "
        "accuracy is used."
    )
    return Table("Accuracy at equal detection", header, tuple(rows), note)


def comparison_table(data: ReportData) -> Table:
    """Return the accuracy of one policy minus that of another on the same questions."""
    rows = [
        (
            str(r["model"]), str(r["task"]), str(r["watermark"]), f"{r['a']} minus {r['b']}",
            with_interval(r["difference"], r["difference_ci"], points), p_value(r["p_value"]), str(r["test"]),
            str(r["n"]),
        )
        for r in data.comparisons
    ]  # fmt: skip
    header = ("model", "task", "watermark", "accuracy of", "difference, points", "p", "test", "n")
    note = "Paired by question. Not corrected for the number of comparisons."
    return Table("Paired comparisons of accuracy", header, tuple(rows), note)


def robustness_table(data: ReportData, found: Iterable[Robust]) -> Table:
    """Return the loss of detection under attacks."""
    rows = [
        (
            r.setting.model, r.setting.task, data.label(r.setting), r.attack, per_cent(r.edit_rate),
            per_cent(float(r.found.mean() + r.loss.mean())), per_cent(float(r.found.mean())),
            with_interval(float(r.loss.mean()), r.loss_ci, points),
            points(float(np.std(r.found, ddof=1))) if len(r.found) > 1 else DASH,
            number(float(r.auroc.mean())), per_cent(r.false), str(r.texts),
        )
        for r in found
    ]  # fmt: skip
    header = ("model", "task", "setting", "attack", "words changed", "TPR before", "TPR after", "loss, points",
              "sd over keys", "AUC after", "FPR after", "texts")  # fmt: skip
    note = (
        "TPR: share of texts with an exact p-value of at most 0.01, mean over keys; loss with its 95 % interval, "
        "over questions; sd: of the TPR after, between keys. AUC and FPR: the same attack on the model's unmarked "
        "answers. Words changed: what the attack really did, whatever it was asked for."
    )
    return Table("Robustness: detection under attacks", header, tuple(rows), note)


def comparisons(data: ReportData) -> dict[Setting, tuple[Comparison, Comparison]]:
    """Return each marked setting's (perplexity, accuracy) against the unmarked texts of its model and task."""
    made = {}
    for setting in data.settings():
        if setting.watermark == NONE:
            continue
        base = Setting(setting.model, setting.task)
        pairs = []
        for values, compare in ((data.perplexity, compare_perplexity), (data.correct, compare_accuracy)):
            usable = base in values and setting in values
            pairs.append(compare(values[base], values[setting]) if usable else NOTHING)
        if any(c.n for c in pairs):
            made[setting] = (pairs[0], pairs[1])
    return made


def perplexity_table(data: ReportData) -> Table:
    """Return perplexities and accuracies with p-values against unmarked texts."""
    found = comparisons(data)
    rows = []
    for setting in data.settings():
        values = list(data.perplexity.get(setting, {}).values())
        ppl, accuracy = found.get(setting, (NOTHING, NOTHING))
        grades = data.correct.get(setting, {})
        if not values and not accuracy.n:
            continue
        shape = box(values)
        rows.append((
            setting.model, setting.task, data.label(setting), number(shape.get("median"), 2),
            f"{number(shape.get('q1'), 2)} to {number(shape.get('q3'), 2)}" if values else DASH,
            p_value(ppl.mann_whitney), p_value(ppl.wilcoxon),
            per_cent(sum(grades.values()) / len(grades)) if grades else DASH,
            p_value(accuracy.paired),
        ))  # fmt: skip
    header = ("model", "task", "setting", "median perplexity", "middle half", "p, unpaired", "p, paired", "accuracy",
              "p, accuracy")  # fmt: skip
    note = (
        f"Perplexity under {data.judge or 'a second model'}. p-values against unmarked texts: "
        "Mann-Whitney of all texts (what a box plot can show), Wilcoxon's signed ranks of the same questions; accuracy "
        "by the exact McNemar test (one key) or signed ranks (means over keys)."
    )
    return Table("Perplexity and accuracy", header, tuple(rows), note)
