"""Write a copy of a run that may be shown to anyone: numbers and ids, no questions, no generated texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from caw.evaluation import packed
from caw.evaluation.config import CellPlan
from caw.evaluation.judge import PERPLEXITY_FILE
from caw.evaluation.published import ANSWERS_FILE, CELLS_FILE
from caw.evaluation.scoring import Scorer
from caw.evaluation.store import SCORES_FILE, read_lines, replace_file, write_json
from caw.jsonl import encode

AS_THEY_ARE = ("attacks.json", "config.yaml")
LINES = (ANSWERS_FILE, SCORES_FILE, PERPLEXITY_FILE)
PUBLISHED = ("results.json", CELLS_FILE, *AS_THEY_ARE, *LINES, *(name + packed.SUFFIX for name in LINES))


def publish(scorer: Scorer, plans: Sequence[CellPlan], folder: str | Path) -> int:
    """Write what `caw.evaluation.published` describes, replacing what is there; returns the number of answers.

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
    lines = [{"cell": name, **asdict(answer)} for name, cell in made.items() for answer in cell.answers]
    write_lines(place / ANSWERS_FILE, lines)
    if scores := scorer.every_score():
        write_lines(place / SCORES_FILE, ({"id": score.id, **asdict(score)} for score in scores))
    if (store.path / PERPLEXITY_FILE).exists():
        write_lines(place / PERPLEXITY_FILE, read_lines(store.path / PERPLEXITY_FILE))
    for name in AS_THEY_ARE:
        if (store.path / name).exists():
            replace_file(place / name, (store.path / name).read_bytes())
    write_json(place / "results.json", store.results)
    return len(lines)


def write_cells(
    folder: Path, cells: Mapping[str, Any], runs: Mapping[str, Mapping[str, Any]], not_begun: Sequence[str]
) -> None:
    """cells.json: a line per cell, run and missing cell."""
    runs_of, planned = _lines(runs.items()), ",\n".join(json.dumps(name) for name in not_begun)
    text = f'{{"cells": {{\n{_lines(cells.items())}\n}},\n"runs": {{\n{runs_of}\n}},\n"not_begun": [\n{planned}\n]}}\n'
    replace_file(folder / CELLS_FILE, text.encode("utf-8"))


def _lines(entries: Iterable[tuple[str, Any]]) -> str:
    return ",\n".join(f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in entries)


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """A compressed file of lines without `of`, which only says whether a text was read otherwise before.

    A digest of a text cannot be compressed either: with them the files were a sixth larger.
    """
    content = b"".join(encode({name: value for name, value in line.items() if name != "of"}) for line in lines)
    replace_file(packed.packed_path(path), packed.compress(content))
    path.unlink(missing_ok=True)  # of an earlier version; readers would not know which one counts
