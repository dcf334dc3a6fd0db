"""benchmarks/evaluation/join.py: a published copy whose keys were run in two parts is that of the whole run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caw.io.json_files import read_lines
from caw_lab.evaluation.publishing import ANSWERS_FILE, CELLS_FILE, Published, write_cells, write_lines
from caw_lab.evaluation.store import SCORES_FILE

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
WHOLE = BENCHMARKS / "results" / "evaluation_qwen05others"
FILES = (ANSWERS_FILE, SCORES_FILE)
Line = dict[str, Any]


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS / "evaluation")


def is_marked(name: str) -> bool:
    return not name.endswith(".none")


def part(folder: Path, keeps: Callable[[int], bool], change: Callable[[Line], Line] = dict) -> Published:
    """Of the whole run what was made or scored under these keys; change: of unmarked answers."""
    folder.mkdir()
    whole = Published(WHOLE)
    names = {name for name, about in whole.manifests.items() if not is_marked(name) or keeps(about["key"])}
    cells = {name: cell for name, cell in whole.about["cells"].items() if name in names}
    write_cells(folder, cells, whole.about["runs"], [])
    answers, scores = (read_lines(WHOLE / name) for name in FILES)
    own = [line for line in answers if line["cell"] in names]
    write_lines(folder / ANSWERS_FILE, (line if is_marked(line["cell"]) else change(line) for line in own))
    write_lines(folder / SCORES_FILE, (line for line in scores if line["cell"] in names and keeps(line["key"])))
    return Published(folder)


def joined(first: Published, second: Published) -> dict[str, list[Line]]:
    importlib.import_module("join").join(first, second)
    return {name: read_lines(first.folder / name) for name in FILES}


def test_two_parts_are_the_whole(tmp_path: Path) -> None:
    found = joined(part(tmp_path / "a", lambda key: key < 2), part(tmp_path / "b", lambda key: key >= 2))
    assert (tmp_path / "a" / CELLS_FILE).read_bytes() == (WHOLE / CELLS_FILE).read_bytes()
    whole = {name: read_lines(WHOLE / name) for name in FILES}
    assert found[ANSWERS_FILE] == whole[ANSWERS_FILE]

    def in_order(lines: list[Line]) -> list[Line]:
        return sorted(
            lines, key=lambda line: (line["cell"], line["key"], line["watermark"], line["source"], line["id"])
        )

    assert in_order(found[SCORES_FILE]) == in_order(whole[SCORES_FILE])


def test_answers_of_the_first_stay(tmp_path: Path) -> None:
    """Unmarked texts that another machine made otherwise count under further keys alone."""

    def other(line: Line) -> Line:
        return {**line, "tokens": line["tokens"] + 1}

    found = joined(part(tmp_path / "a", lambda key: key < 2), part(tmp_path / "b", lambda key: key >= 2, other))
    assert found[ANSWERS_FILE] == read_lines(WHOLE / ANSWERS_FILE)
    assert len(found[SCORES_FILE]) == len(read_lines(WHOLE / SCORES_FILE))


def test_parts_of_different_runs_are_refused(tmp_path: Path) -> None:
    second = part(tmp_path / "b", lambda key: key < 2)
    first = part(tmp_path / "a", lambda key: key < 2)
    cells = first.about["cells"]
    cells[next(iter(cells))]["manifest"]["dtype"] = "float32"
    with pytest.raises(ValueError, match=r"was made otherwise in .*; join parts of one run"):
        joined(first, second)
