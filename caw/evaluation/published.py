"""What `caw evaluate run --publish` wrote: a copy of a run without texts, from which its results are made again.

    FOLDER/
      results.json, config.yaml, attacks.json     as in the run's folder
      cells.json              per cell its manifest and runs; the records of these runs; planned cells without texts
      answers.jsonl.xz        a line per answer: its cell and what `Answer` says
      scores.jsonl.xz, perplexity.jsonl.xz        as in the run's folder, without `of`: whether a score is of the text
                              as it is read now was looked at when the copy was made

Numbers are not rounded, so tables and results come out with the same digits: p-values of two texts may differ by their
last bit, which an AUROC sees (p-values of 10 digits changed the fourth digit of some). Nothing can be added to a copy.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from caw.evaluation.config import CellPlan
from caw.evaluation.measured import Answer, CellAnswers
from caw.evaluation.store import Score, Store, parse, read_json, read_lines

CELLS_FILE, ANSWERS_FILE = "cells.json", "answers.jsonl"


@dataclass
class Published:
    """Reads a copy; a `Source` of results. Raises ValueError for files of another kind, FileNotFoundError for none."""

    folder: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        """What cells.json says."""
        found = read_json(self.folder / CELLS_FILE)
        if found is None:
            raise FileNotFoundError(
                f"expected a published copy of a run, found no {CELLS_FILE} in {self.folder}; "
                "write it with `caw evaluate run --publish`"
            )
        return found

    @property
    def manifests(self) -> dict[str, dict[str, Any]]:
        """By name of the cell, in the order of the plan."""
        return {name: cell["manifest"] for name, cell in self.about["cells"].items()}

    @property
    def not_begun(self) -> list[str]:
        """Names of cells that the run's config planned and that had no texts."""
        return list(self.about["not_begun"])

    def plans(self) -> list[CellPlan]:
        """A plan per cell, in order."""
        return [
            CellPlan(*(about[name] for name in ("model", "task", "watermark", "policy", "key")))
            for about in self.manifests.values()
        ]

    @cached_property
    def lines(self) -> dict[str, list[Answer]]:
        """Answers by name of the cell."""
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
    """Whether a folder is a copy without texts."""
    return (folder / CELLS_FILE).is_file()
