"""Tables of published runs of `caw evaluate`, and their reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from result_files import RESULTS, as_table, per_cent, read_result, source

from caw.io.json_files import read_lines
from caw_lab.evaluation.metrics.accuracy import difference_interval
from caw_lab.evaluation.report import tables as report_tables
from caw_lab.evaluation.report.data import ReportData, Setting, read_report_data

REPORT_TITLE_LINES = 2  # of a report.md: its title and an empty line


def report(run: str) -> str:
    """report.md of a published run without its title; headings one level down would break nothing, so they stay."""
    text = (RESULTS / f"evaluation_{run}" / "report.md").read_text(encoding="utf-8")
    body = "\n".join(text.splitlines()[REPORT_TITLE_LINES:])
    return body.replace("](figures/", f"](../../benchmarks/results/evaluation_{run}/figures/")


@lru_cache
def _data(run: str) -> ReportData:
    return read_report_data(RESULTS / f"evaluation_{run}")


def accuracy(run: str, task: str = "gsm8k") -> str:
    """The paper's Table 1 of a run: accuracy, AUC, F1, share found."""
    found = report_tables.main_table(_data(run), task)
    return f"{found.markdown()}\n{source(f'evaluation_{run}/results.json.xz')}"


def cost(run: str) -> str:
    """What the marks of each setting of a run cost in accuracy and decodes."""
    return f"{report_tables.cost_table(_data(run)).markdown()}\n{source(f'evaluation_{run}/results.json.xz')}"


def drawn(run: str, drawn_run: str) -> str:
    """How right each setting's answers are beside those that the unmarked model draws instead of taking favourites.

    Several draws of a question count as their mean; a row more then has the answer that most of them give. Marked
    answers that were drawn as well have rows of their own.
    """
    data, places = _data(run), (RESULTS / f"evaluation_{name}" / "answers.jsonl" for name in (run, drawn_run))
    marked, by_draw = (_by_cell(place) for place in places)
    unmarked = {name: cell for name, cell in by_draw.items() if name.endswith(".none")}
    drawn_by_all = set.intersection(*(set(cell) for cell in unmarked.values()))
    rows = [(data.label(s), _of_policy(marked, s.policy)) for s in data.settings()]
    if len(unmarked) > 1:
        voted = {question: _most_frequent([cell[question] for cell in unmarked.values()]) for question in drawn_by_all}
        rows.append((f"No watermark, most frequent answer of {len(unmarked)} sampled", [voted]))
    for policy, label in {s.policy: data.label(s) for s in _data(drawn_run).settings() if s.policy != "none"}.items():
        rows.append((f"{label}, sampled", _of_policy(by_draw, policy)))
    lines = []
    for label, cells in rows:
        questions = sorted(drawn_by_all.intersection(*(set(cell) for cell in cells)))
        right, drawn_right = (
            np.array([np.mean([cell[question]["correct"] for cell in of]) for question in questions])
            for of in (cells, [*unmarked.values()])
        )
        difference = right - drawn_right
        bounds = difference_interval(difference)
        assert bounds is not None
        lines.append((
            label, str(len(questions)), per_cent(right.mean()), per_cent(drawn_right.mean()),
            report_tables.with_interval(float(difference.mean()), list(bounds), report_tables.points),
        ))  # fmt: skip
    header = ("setting", "questions", "accuracy", "unmarked, sampled", "difference, points (95 % interval)")
    return f"{as_table(header, lines)}\n\n{source(f'evaluation_{drawn_run}/results.json.xz')}"


def _by_cell(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """The published line of each question's answer, by cell and the question's number."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for line in read_lines(path):
        found.setdefault(line["cell"], {})[line["id"].rpartition("/")[2]] = line
    return found


def _of_policy(cells: dict[str, Any], policy: str) -> list[Any]:
    return [cell for name, cell in cells.items() if f".{policy}." in f"{name}."]


def _most_frequent(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first of the lines with the answer that most of them give; a line without an answer has no vote."""
    votes = Counter(line["answer"] for line in lines if line["answer"] is not None)
    return max(lines, key=lambda line: votes[line["answer"]])


def own_weights(run: str) -> str:
    """Share detected with one table of weights for all policies, and with one from each policy's own texts."""
    name = f"own_weights_{run}.json.xz"
    found = read_result(name)
    one, own = found["one table"], found["own tables"]
    gains = {r["policy"]: r for r in own["equal_detection"] if r["measure"] == "weighted_tpr_at_fpr_1e2"}
    right = {r["policy"]: r["accuracy"] for r in _data(run).pooled()}
    lines = []
    for policy in sorted(found["practice"], key=lambda policy: own["found"][policy]["tpr_at_fpr_1e2"]):
        shares = [part["found"][policy][f"tpr_at_fpr_{level}"] for level in ("1e2", "1e3") for part in (one, own)]
        gain = gains.get(policy)
        over = "" if gain is None else _points(gain)
        lines.append((policy, per_cent(right[policy]), *(per_cent(share) for share in shares), over))
    header = ("setting", "accuracy", "detected at 1 %, one table", "own table", "at 0.1 %, one table", "own table",
              "gain over mid or no mark detected as often, own tables, points")  # fmt: skip
    return f"{as_table(header, lines)}\n\n{source(name)}"


def _points(row: dict[str, Any]) -> str:
    return report_tables.with_interval(row["difference"], row["difference_ci"], report_tables.points)


def equal_detection(run: str, *measures: str) -> str:
    """Accuracy of a policy over an equally detected fixed strength, by the measures named (all without)."""
    data = _data(run)
    kept = [row for row in data.equal_detection if not measures or row["measure"] in measures]
    found = report_tables.equal_detection_table(ReportData(data.rows, kinds=data.kinds, equal_detection=kept))
    return f"{found.markdown()}\n{source(f'evaluation_{run}/results.json.xz')}"


def summary(run: str, task: str, watermark: str, *policies: str) -> str:
    """Accuracy, share detected and gain over an equally detected fixed strength, of the policies named."""
    data = _data(run)
    rows = {r["policy"]: r for r in data.pooled() if (r["task"], r.get("watermark")) == (task, watermark)}
    gains = {
        (r["policy"], r["measure"]): _points(r)
        for r in data.equal_detection
        if (r["task"], r["watermark"]) == (task, watermark)
    }
    unmarked = data.row(Setting(data.rows[0]["model"], task))
    lines = [("no watermark", per_cent(unmarked["accuracy"]), "", "", "", "")]
    for policy in policies:
        row = rows[policy]
        found = [per_cent(part["tpr_at_fpr_1e2"], 0) for part in (row, row["weighted"])]
        gained = [gains.get((policy, f"{kind}tpr_at_fpr_1e2"), "") for kind in ("", "weighted_")]
        lines.append((policy, per_cent(row["accuracy"]), *found, *gained))
    header = ("policy", "accuracy", "detected at 1 %", "detected, weighted",
              "gain over an equally detected fixed strength, points", "the same, weighted")  # fmt: skip
    first = rows[policies[0]]
    said = (
        f"{watermark.upper()}, {first['n']} questions of {task}, keys: {first['keys']}. The test fires on "
        f"{per_cent(first['fpr_1e2'])} of the unmarked answers, the weighted one on "
        f"{per_cent(first['weighted']['fpr_1e2'])}."
    )
    return f"{as_table(header, lines)}\n\n{said} {source(f'evaluation_{run}/results.json.xz')}"
