"""`caw evaluate run --publish`: a copy of a run that holds no questions and no texts, only ids and numbers.

Its results can be computed again from it:

    FOLDER/
      config.yaml, attacks.json     as in the run's folder
      results.json.xz         results.json of the run's folder, compressed
      cells.json              per cell its manifest and runs; the records of these runs; planned cells without texts
      answers.columns.xz      for each answer its cell and the fields of `Answer`, by column (packed_files.py)
      scores.columns.xz, perplexity.columns.xz    the lines of the run's folder by column, without `of` (only scores of
                              the current texts are copied)

Numbers are not rounded, so tables and results come out digit by digit: two p-values may differ in their last bit only,
and an AUROC sees that (p-values of 10 digits changed the fourth digit of some). Nothing can be added to a copy.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from caw.io.json_files import read_json, replace_file
from caw_lab.evaluation.answers import Answer, CellAnswers
from caw_lab.evaluation.config import CellPlan
from caw_lab.evaluation.metrics.judge import PERPLEXITY_FILE
from caw_lab.evaluation.metrics.scoring import Scorer
from caw_lab.evaluation.packed_files import compress, forms_of, parse, read_lines, small, to_columns
from caw_lab.evaluation.store import SCORES_FILE, Score, Store

CELLS_FILE, ANSWERS_FILE = "cells.json", "answers.jsonl"
AS_THEY_ARE = ("attacks.json", "config.yaml")
LINES = (ANSWERS_FILE, SCORES_FILE, PERPLEXITY_FILE)
PUBLISHED = (
    "results.json", "results.json.xz", CELLS_FILE, *AS_THEY_ARE,
    *(form.name for name in LINES for form in forms_of(Path(name))),
)  # fmt: skip


@dataclass
class Published:
    """A published copy as a source of results, see `Source`.

    Raises FileNotFoundError for a folder without a copy, ValueError for files of another kind.
    """

    folder: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        found = read_json(self.folder / CELLS_FILE)
        if found is None:
            raise FileNotFoundError(
                f"{self.folder} is not a published run, {CELLS_FILE} is missing; write it with `caw evaluate run "
                "--publish`"
            )
        return found

    @property
    def manifests(self) -> dict[str, dict[str, Any]]:
        """Manifests by cell name, in plan order."""
        return {name: cell["manifest"] for name, cell in self.about["cells"].items()}

    @property
    def not_begun(self) -> list[str]:
        """Names of the planned cells without texts."""
        return list(self.about["not_begun"])

    def plans(self) -> list[CellPlan]:
        return [
            CellPlan(*(about[name] for name in ("model", "task", "watermark", "policy", "key")))
            for about in self.manifests.values()
        ]

    @cached_property
    def lines(self) -> dict[str, list[Answer]]:
        found: dict[str, list[Answer]] = defaultdict(list)
        path = self.folder / ANSWERS_FILE
        for line in read_lines(path):
            found[line["cell"]].append(parse(Answer, line, path))
        return found

    def answers(self, plan: CellPlan) -> CellAnswers:
        cell = self.about["cells"].get(plan.name, {"manifest": {}, "runs": []})
        return CellAnswers(cell["manifest"], tuple(cell["runs"]), self.lines.get(plan.name, []))

    def every_score(self) -> list[Score]:
        return Store(self.folder).read_scores()

    def command(self, run: str) -> str:
        return str(self.about["runs"].get(run, {}).get("command", ""))


def is_published(folder: Path) -> bool:
    return (folder / CELLS_FILE).is_file()


def publish(scorer: Scorer, plans: Sequence[CellPlan], folder: str | Path) -> int:
    """Write a copy of the run into a folder, replacing its contents; return the number of answers.

    Answers longer than a number or a letter are left out (null), as they may be whole texts. Raises ValueError if
    `folder` is the run's own.
    """
    store, place = scorer.store, Path(folder)
    if place.exists() and store.path.exists() and place.samefile(store.path):
        raise ValueError(f"--publish must name another folder than the run's, got {place} for both; name a new one")
    cells = {name: scorer.answers(plan) for name, plan in {plan.name: plan for plan in plans}.items()}
    made = {name: cell for name, cell in cells.items() if cell.answers}
    about = {name: {"manifest": dict(cell.manifest), "runs": list(cell.runs)} for name, cell in made.items()}
    runs = sorted({run for cell in made.values() for run in cell.runs})
    write_cells(place, about, {run: store.run(run) for run in runs}, [name for name in cells if name not in made])
    lines = [{"cell": name, **answer.line} for name, cell in made.items() for answer in cell.answers]
    write_lines(place / ANSWERS_FILE, lines)
    if scores := scorer.every_score():
        write_lines(place / SCORES_FILE, ({"id": score.id, **asdict(score)} for score in scores))
    if (store.path / PERPLEXITY_FILE).exists():
        write_lines(place / PERPLEXITY_FILE, read_lines(store.path / PERPLEXITY_FILE))
    for name in AS_THEY_ARE:
        if (store.path / name).exists():
            replace_file(place / name, (store.path / name).read_bytes())
    Store(place).write_results(store.results, packed=True)
    return len(lines)


def write_cells(
    folder: Path, cells: Mapping[str, Any], runs: Mapping[str, Mapping[str, Any]], not_begun: Sequence[str]
) -> None:
    """Write cells.json, with a line for each cell, run and missing cell."""
    runs_of, planned = _lines(runs.items()), ",\n".join(json.dumps(name) for name in not_begun)
    text = f'{{"cells": {{\n{_lines(cells.items())}\n}},\n"runs": {{\n{runs_of}\n}},\n"not_begun": [\n{planned}\n]}}\n'
    replace_file(folder / CELLS_FILE, text.encode("utf-8"))


def _lines(entries: Iterable[tuple[str, Any]]) -> str:
    return ",\n".join(f"{small(name)}:{small(value)}" for name, value in entries)


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write the lines by column, compressed, without the text's digest `of`; files in other formats are removed.

    The digest only tells whether a text has changed, and cannot be compressed: files were a sixth larger with it.
    """
    content = to_columns({name: value for name, value in line.items() if name != "of"} for line in lines)
    *others, packed = forms_of(path)
    replace_file(packed, compress(content))
    for other in others:
        other.unlink(missing_ok=True)  # of an earlier version; readers could not tell which one counts
