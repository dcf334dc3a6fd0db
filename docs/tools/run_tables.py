"""Tables of published runs of `caw evaluate`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from result_files import RESULTS, as_table, per_cent, source

from caw_lab.evaluation.report import tables as report_tables
from caw_lab.evaluation.report.data import ReportData, Setting, read_report_data


def _source(run: str) -> str:
    return source(f"evaluation_{run}/results.json.xz", f"caw evaluate run --config benchmarks/evaluation/{run}.yaml")


@lru_cache
def _data(run: str) -> ReportData:
    return read_report_data(RESULTS / f"evaluation_{run}")


def cost(run: str) -> str:
    """What the marks of each setting of a run cost in accuracy and decodes."""
    return f"{report_tables.cost_table(_data(run)).markdown()}\n{_source(run)}"


def _points(row: dict[str, Any]) -> str:
    return report_tables.with_interval(row["difference"], row["difference_ci"], report_tables.points)


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
    return f"{as_table(header, lines)}\n\n{said} {_source(run)}"
