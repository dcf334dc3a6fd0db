"""The data of a report, read from a run's folder or a published copy, and a list of what is missing.

`missing` lists the missing parts, which the report leaves out.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from caw.requirements import require
from caw_lab.evaluation.answers import current_scores
from caw_lab.evaluation.config import NONE
from caw_lab.evaluation.config_file import config_of
from caw_lab.evaluation.metrics.judge import PERPLEXITY_FILE, SAID
from caw_lab.evaluation.packed_files import packed_json, read_lines
from caw_lab.evaluation.publishing import ANSWERS_FILE, Published, is_published
from caw_lab.evaluation.store import Score, Store

KINDS = ("fixed", "entropy", "logit-delta", "capacity")


@dataclass(frozen=True)
class Setting:
    """A way of generating, over all keys. watermark and policy are "none" for unmarked texts."""

    model: str
    task: str
    watermark: str = NONE
    policy: str = NONE


@dataclass
class ReportData:
    """Everything that a report shows.

    rows, comparisons, equal_detection: of results.json. scores: of scores.jsonl. correct, perplexity: for each setting,
    question id -> mean grade, and geometric mean of the perplexity, over keys. judge: the model of the perplexities.
    kinds: policy name -> kind. missing: a sentence for each part that is not there.
    """

    rows: list[dict[str, Any]]
    scores: list[Score] = field(default_factory=list)
    correct: dict[Setting, dict[str, float]] = field(default_factory=dict)
    perplexity: dict[Setting, dict[str, float]] = field(default_factory=dict)
    judge: str = ""
    kinds: dict[str, str] = field(default_factory=dict)
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    equal_detection: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def settings(self) -> list[Setting]:
        """The settings of the pooled rows, by task and model; unmarked first, then by watermark and kind of policy."""
        found = dict.fromkeys(setting_of(row) for row in self.pooled())
        return sorted(found, key=self.order)

    def pooled(self) -> list[dict[str, Any]]:
        """The row over all keys of each setting; its own row if there is one key."""
        chosen: dict[Setting, dict[str, Any]] = {}
        for row in self.rows:
            setting = setting_of(row)
            if setting not in chosen or row.get("key_id") == "all":
                chosen[setting] = row
        return list(chosen.values())

    def row(self, setting: Setting) -> dict[str, Any]:
        return next(row for row in self.pooled() if setting_of(row) == setting)

    def kind(self, policy: str) -> str:
        return self.kinds.get(policy, "fixed")

    def label(self, setting: Setting) -> str:
        """Return a label as in the paper's table: "KGW-hard", "KGW-hard+caw"."""
        return "No watermark" if setting.watermark == NONE else f"{setting.watermark.upper()}-{setting.policy}"

    def order(self, setting: Setting) -> tuple[Any, ...]:
        marked = setting.watermark != NONE
        watermarks = list(dict.fromkeys(row.get("watermark") for row in self.rows))
        place = watermarks.index(setting.watermark) if setting.watermark in watermarks else len(watermarks)
        kind = KINDS.index(self.kind(setting.policy)) if marked and self.kind(setting.policy) in KINDS else len(KINDS)
        return (setting.task, setting.model, marked, place, kind, setting.policy)


def setting_of(row: Mapping[str, Any]) -> Setting:
    return Setting(
        str(row["model"]), str(row["task"]), str(row.get("watermark") or NONE), str(row.get("policy") or NONE)
    )


def setting_of_cell(name: str, watermark: str | None = None) -> tuple[Setting, int | None]:
    """Return (setting, key number) of a cell's name, MODEL.TASK.WATERMARK.POLICY.KEY or MODEL.TASK.none.

    Names of models may hold dots. Those of policies may too where the watermark is given. Raises ValueError for a name
    of another form.
    """
    parts = name.split(".")
    if parts[-1] == NONE and len(parts) >= 3:
        return Setting(".".join(parts[:-2]), parts[-2]), None
    if len(parts) < 5 or not parts[-1].isdigit():
        raise ValueError(f"a cell must be MODEL.TASK.WATERMARK.POLICY.KEY or MODEL.TASK.none, got {name!r}; rename it")
    # a policy's name may have a dot too (caw-0.6); the watermark tells where it begins
    at = len(parts) - 3
    if watermark is not None and watermark in parts[2:-2]:
        at = len(parts) - 1 - parts[::-1].index(watermark)
    return Setting(".".join(parts[: at - 1]), parts[at - 1], parts[at], ".".join(parts[at + 1 : -1])), int(parts[-1])


def read_report_data(folder: str | Path) -> ReportData:
    """Read everything in a run's folder or a published copy.

    Raises FileNotFoundError for a folder without results.json (a copy has it compressed), and ValueError for files of
    another kind.
    """
    place = Path(folder)
    if not any(path.is_file() for path in (place / "results.json", packed_json(place / "results.json"))):
        raise FileNotFoundError(f"{place} must contain results.json, found none; run `caw evaluate run` first")
    store = Store(place)
    rows = store.results.get("rows")
    if not isinstance(rows, list) or not all(isinstance(r, dict) and {"model", "task"} <= r.keys() for r in rows):
        raise ValueError(f"{place / 'results.json'} must have rows with model and task; write it with caw evaluate run")
    data = ReportData(rows, current_scores(store.read_scores()))
    data.comparisons = store.results.get("comparisons") or []
    data.equal_detection = store.results.get("equal_detection") or []
    copy = Published(place) if is_published(place) else None
    manifests = copy.manifests if copy else {cell.name: cell.manifest for cell in store.cells()}
    for manifest in manifests.values():
        parameters = manifest.get("policy_parameters") or {}
        if manifest.get("policy") and parameters.get("kind"):
            data.kinds[manifest["policy"]] = parameters["kind"]
    data.correct = _means(_grades(store), manifests, np.mean)
    lines = read_lines(place / PERPLEXITY_FILE, missing_ok=True)
    data.judge = "; ".join(
        dict.fromkeys(f"{line['model']}, {SAID.get(line['given'], line['given'])}" for line in lines)
    )
    given = ((li["cell"], li["id"], li.get("given_prompt") or li.get("alone")) for li in lines)
    data.perplexity = _means(
        ((c, i, v) for c, i, v in given if v), manifests, lambda v: float(np.exp(np.mean(np.log(v))))
    )
    data.missing = _missing(data, copy.not_begun if copy else _not_begun(store))
    return data


def _grades(store: Store) -> Iterator[tuple[str, str, float]]:
    """Yield (cell, question, 1 or 0) for each graded answer of a run or of a published copy."""
    lines = [(cell.name, line) for cell in store.cells() for path in cell.files() for line in read_lines(path)]
    lines += [(line["cell"], line) for line in read_lines(store.path / ANSWERS_FILE, missing_ok=True)]
    yield from ((cell, line["id"], float(line["correct"])) for cell, line in lines if line["correct"] is not None)


def _means(
    values: Iterator[tuple[str, str, float]], manifests: Mapping[str, Mapping[str, Any]], mean: Any
) -> dict[Setting, dict[str, float]]:
    """Return the mean over keys, by setting and question. values: (cell, question, value)."""
    gathered: dict[Setting, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for cell, question, value in values:
        manifest = manifests.get(cell)
        setting = setting_of(manifest) if manifest else setting_of_cell(cell)[0]
        gathered[setting][question][cell] = value
    return {s: {q: float(mean(list(v.values()))) for q, v in questions.items()} for s, questions in gathered.items()}


def _missing(data: ReportData, planned: Iterable[str] = ()) -> list[str]:
    """Return a sentence for each missing part. planned: names of planned cells without texts."""
    said = [f"planned and not begun: {_some(list(planned))}"] if planned else []
    settings = data.settings()
    marked = dict.fromkeys((s.watermark, s.policy) for s in settings if s.watermark != NONE)
    for model, task in dict.fromkeys((s.model, s.task) for s in settings):
        here = [s for s in settings if (s.model, s.task) == (model, task)]
        if not any(s.watermark == NONE for s in here):
            said.append(f"{model}, {task}: no unmarked texts, so no accuracy to compare with")
        absent = [f"{w}.{p}" for w, p in marked if Setting(model, task, w, p) not in here]
        if absent:
            said.append(f"{model}, {task}: no results of {_some(absent)}")
        counts = {s: len(data.correct.get(s, ())) for s in here}
        short = [f"{data.label(s)} {n}" for s, n in counts.items() if 0 < n < max(counts.values())]
        if short:
            said.append(f"{model}, {task}: fewer than {max(counts.values())} questions so far: {_some(short)}")
    if not data.scores:
        said.append("no scores.jsonl, so no robustness figures")
    elif all(score.attack == NONE for score in data.scores):
        said.append("no attacked texts were scored; run `caw evaluate attack`")
    if not data.perplexity:
        said.append("no perplexities; run `caw evaluate perplexity`")
    if not data.correct and any(row.get("accuracy") is not None for row in data.rows):
        said.append("no grades question by question, so no p-values of accuracy")
    return said


def _some(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _not_begun(store: Store) -> list[str]:
    """Return the planned cells without texts; [] without a config."""
    path = store.path / "config.yaml"
    if not path.exists():
        return []
    require("pyyaml", "reading the run's config")
    import yaml

    names = dict.fromkeys(plan.name for plan in config_of(yaml.safe_load(path.read_text("utf-8")), str(path)).plan())
    return [name for name in names if not store.cell(name).files()]
