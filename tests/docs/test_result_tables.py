"""Tables of the pages say what the result files say, and every result file is on some page."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import result_files
from result_files import RESULTS
from result_tables import TABLES, table

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MARKER = re.compile(r"^<!-- table: (.*?) -->$", re.MULTILINE)
NOT_SHOWN = {"instruction_counts.json"}  # a gate's counts


def markers() -> list[str]:
    return sorted({marker for page in PAGES for marker in MARKER.findall(page.read_text(encoding="utf-8"))})


def cells(text: str) -> list[list[str]]:
    return [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_markers_become_tables() -> None:
    for name in markers():
        text = table(name)
        rows = cells(text)
        assert len(rows) > 2 and all(len(a) == len(b) for a, b in pairwise(rows) if "---" in b[0]), name
        assert "nan" not in text.lower().split(), name


def test_every_comment_is_a_marker() -> None:
    """A misspelt one would stay a comment, and its table would be missing without a word."""
    known = re.compile(r"(table|file|object): .*|commands|operators|end")
    for page in PAGES:
        for comment in re.findall(r"<!--(.*?)-->", page.read_text(encoding="utf-8"), re.DOTALL):
            assert known.fullmatch(comment.strip()), f"{page.name}: {comment}"


def test_every_table_and_every_result_is_shown() -> None:
    shown = {name.split()[0] for name in markers()}
    assert shown >= set(TABLES)
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = {path.name for pattern in ("*.json", "*.json.xz") for path in RESULTS.glob(pattern)} - NOT_SHOWN
    assert not [name for name in named if f"/{name.split('.json')[0]}." not in text]
    assert not [path.name for path in RESULTS.glob("evaluation_*") if path.name not in text]


def test_tables_read_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [{"level": 0.01, "rate": 0.0125, "low": 0.011}]
    rows = [{"watermark_name": "kgw", "once": rates, "rates": rates}]
    (tmp_path / "detect_null.json").write_text(json.dumps({"texts": 3, "tokens": 1234, "rows": rows, "command": "me"}))
    monkeypatch.setattr(result_files, "RESULTS", tmp_path)
    result_files.read_result.cache_clear()
    text = table("null")
    result_files.read_result.cache_clear()
    assert cells(text)[2] == ["kgw", "once in the corpus", "1.2 % - 1.2 %"]
    assert "3 texts, 1,234 tokens" in text and "1 of 1 rates are above" in text and "made by `me`" in text
