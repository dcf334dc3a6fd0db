"""Tables of the pages say what the result files say, and every result file is on some page."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import result_tables
from result_tables import COMMANDS, RESULTS, TABLES, report, table

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MARKER = re.compile(r"^<!-- (table|report): (.*?) -->$", re.MULTILINE)
# the counts of a gate, not results
NOT_SHOWN = {"instruction_counts.json"}


def markers() -> list[tuple[str, str]]:
    return sorted({found for page in PAGES for found in MARKER.findall(page.read_text(encoding="utf-8"))})


def cells(text: str) -> list[list[str]]:
    """Rows of the tables in a text, headings included."""
    return [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("kind, name", markers(), ids=lambda value: value.replace(" ", "-"))
def test_markers_become_tables(kind: str, name: str) -> None:
    made = table(name) if kind == "table" else report(name)
    rows = cells(made)
    assert len(rows) > 2 and all(len(a) == len(b) for a, b in pairwise(rows) if "---" in b[0])
    assert "nan" not in made.lower().split()


def test_every_comment_is_a_marker() -> None:
    """A misspelt one would stay a comment, and its table would be missing without a word."""
    known = re.compile(r"(table|report|references): .*|commands|operators")
    for page in PAGES:
        for said in re.findall(r"<!--(.*?)-->", page.read_text(encoding="utf-8"), re.DOTALL):
            assert known.fullmatch(said.strip()), f"{page.name}: {said}"


def test_every_table_and_every_result_is_shown() -> None:
    shown = {name.split()[0] for kind, name in markers() if kind == "table"}
    assert shown >= set(TABLES)
    text = "".join(table(name) if kind == "table" else f"evaluation_{name}" for kind, name in markers())
    named = {path.name for path in RESULTS.glob("*.json")} - NOT_SHOWN
    by_pattern = {name for name in named if name.startswith(("generate_", "stages", "scaling"))}
    assert not [name for name in named - by_pattern if name not in text]
    assert not [path.name for path in RESULTS.glob("evaluation_*") if path.name not in text]


def test_tables_read_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"variant": "KGW", "found": 3, "texts": 4, "median_p": 2.5e-7, "changed": 0.125, "surprise": 1.26}]
    arguments = {"fpr": 0.01, "model": "mine", "tokens": 9}
    (tmp_path / "detection.json").write_text(json.dumps({"arguments": arguments, "rows": rows, "command": "me"}))
    monkeypatch.setattr(result_tables, "RESULTS", tmp_path)
    result_tables._read.cache_clear()
    made = table("detection")
    result_tables._read.cache_clear()
    assert cells(made)[2] == ["KGW", "3 of 4", "2.5e-07", "12 %", "1.26"]
    assert "found at 0.01" in made and "made by `me`" in made


def test_unknown_names_are_refused() -> None:
    with pytest.raises(KeyError, match="no table 'speed'"):
        table("speed")


def test_reports_find_their_figures() -> None:
    found = re.findall(r"!\[.*?\]\((.*?)\)", report("qwen05"))
    assert found and all((ROOT / "docs" / "results" / path).is_file() for path in found)


def test_commands_of_files_without_one_exist() -> None:
    for name, command in COMMANDS.items():
        assert (RESULTS / name).is_file()
        path = next(word for word in command.split() if "/" in word)
        assert (ROOT / path).is_file(), path
