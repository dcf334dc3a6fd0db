"""Tables of the pages say what the result files say, and every result file is on some page."""

from __future__ import annotations

import json
import lzma
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import loading_tables
import pytest
import result_files
import result_tables
import universal_tables
from result_files import COMMANDS, RESULTS
from result_tables import TABLES, table
from run_tables import report

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MARKER = re.compile(r"^<!-- (table|report): (.*?) -->$", re.MULTILINE)
NOT_SHOWN = {"instruction_counts.json"}  # a gate's counts


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
    named = {path.name for pattern in ("*.json", "*.json.xz") for path in RESULTS.glob(pattern)} - NOT_SHOWN
    by_pattern = {name for name in named if name.startswith(("generate_", "stages", "scaling"))}
    assert not [name for name in named - by_pattern if name not in text]
    assert not [path.name for path in RESULTS.glob("evaluation_*") if path.name not in text]


def test_tables_read_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"variant": "KGW", "found": 3, "texts": 4, "median_p": 2.5e-7, "changed": 0.125, "surprise": 1.26}]
    arguments = {"fpr": 0.01, "model": "mine", "tokens": 9}
    (tmp_path / "detection.json").write_text(json.dumps({"arguments": arguments, "rows": rows, "command": "me"}))
    monkeypatch.setattr(result_files, "RESULTS", tmp_path)
    result_files.read_result.cache_clear()
    made = table("detection")
    result_files.read_result.cache_clear()
    assert cells(made)[2] == ["KGW", "3 of 4", "2.5e-07", "12 %", "1.26"]
    assert "detected at 0.01" in made and "made by `me`" in made


def test_loading_says_how_many_processes_each_row_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads((RESULTS / "loading.json").read_text())
    rounds = found["runs"][0]["rows"][0]["rounds"]
    found["runs"][0]["rows"][0]["rounds"] = [*rounds, rounds[0]]
    monkeypatch.setattr(loading_tables, "read_result", lambda name: found)
    assert "medians of 3 or 4 processes" in loading_tables.loading()


def test_policies_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged texts show the rise over that of the model's own evaluator; what was not measured is no number."""
    found: dict[str, Any] = {"policies": {"universal": "any", "own": "its own"}, "texts": [], "pairs": [], "grid": []}
    monkeypatch.setattr(universal_tables, "read_result", lambda name: found)
    monkeypatch.setattr(universal_tables, "source", lambda name: name)
    for name in ("universal-judged", "universal-texts"):
        *_, [first, *rest] = cells(table(name))
        assert first == "not measured yet" and not any(rest)
    case = {"model": "m", "split": "test", "texts": 8, "prompts": 4, "found": 0.75, "found_ci": [0.5, 1.0]}
    judged = {"kind": "everyday", "nats": 1.5, "rise": 0.25, "rise_ci": [0.125, 0.5]}
    kept = {"kind": "maths", "kept": 0.5, "kept_ci": [0.25, 0.75], "right": 0.5, "right_ci": [0.25, 0.75]}
    found["texts"] = [{**case, **judged, "policy": name} for name in ("none", "own", "universal")]
    found["texts"].append({**case, **kept, "policy": "own"})
    gap = {**case, "policy": "universal", "than": "own", "found": -0.125, "found_ci": [-0.25, 0.0]}
    found["pairs"] = [{**gap, **judged, "rise_ratio": 0.5, "rise_ratio_ci": [0.25, 0.75]}]
    bare, own, universal = cells(table("universal-judged"))[2:]
    assert bare[6:] == ["", "", ""] and own[6:] == ["0.25 (0.12 - 0.50)", "", ""]
    assert universal[3:8] == [
        "any",
        "75 % (50 - 100)",
        "1.50",
        "0.25 (0.12 - 0.50)",
        "0.50 (0.25 - 0.75); -12.5 (-25 to 0)",
    ]
    assert cells(table("universal-windows"))[2][0] == "not measured yet", "one window is no comparison"
    found["texts"].append({**case, **judged, "policy": "window00"})
    found["pairs"].append({**found["pairs"][0], "than": "window00"})
    assert len(cells(table("universal-judged"))) == 5, "without windows"
    assert cells(table("universal-beside"))[2][0] == "not measured yet", "everyday texts have no answers"
    points = {"kept": 0.25, "kept_ci": [0.125, 0.5], "both": 0.5, "both_ci": [0.0, 1.0]}
    found["pairs"].append({**gap, **points, "kind": "maths"})
    assert cells(table("universal-beside"))[2:] == [
        ["m", "4", "any", "its own", "-12.5 (-25 to 0)", "+25.0 (12 to 50)", "+50.0 (0 to 100)"]
    ]
    assert cells(table("universal-windows"))[2:] == [
        ["m", "(1, 1)", "8", "75 % (50 - 100)", "0.25 (0.12 - 0.50)", "", ""],
        ["m", "(0, 0)", "8", "75 % (50 - 100)", "0.25 (0.12 - 0.50)", "-12.5 (-25 to 0)", "0.50 (0.25 - 0.75)"],
    ]
    assert cells(table("universal-texts"))[2:] == [
        ["m", "4", "8", "its own", "75 % (50 - 100)", "50 % (25 - 75)", "", "50 %"]
    ]
    assert cells(table("universal-grid"))[2][0] == "not measured yet"
    found["grid"] = [{**case, **judged, "policy": "t0.7b3"}]
    assert cells(table("universal-grid"))[2:] == [["0.7", "3", "75 %; 0.25 (0.12 - 0.50)"]]
    found["texts"] = [{**row, "split": "train"} for row in found["texts"]]
    for name in ("universal-texts", "universal-judged"):
        assert cells(table(name))[2][0] == "not measured yet", "prompts of the train split stand apart"
    [own] = [row for row in cells(table("universal-combined")) if row[1] == "maths"]
    assert own == ["m", "maths", "8", "its own", "75 % (50 - 100)", "50 % (25 - 75)", ""]


def everyday_cell(policy: str | None, p: list[float], after: list[float], **asked: Any) -> dict[str, Any]:
    manifest = {"model": "m", "task": "t", "policy": policy, "generation": {
        "max_new_tokens": 90, "do_sample": True, "temperature": 0.7, **asked}}  # fmt: skip
    return {
        "manifest": manifest, "ids": [1, 2, 3, 4], "tokens": [90, 80, 70, 90], "ended": [0, 1, 1, 0],
        "attempts": [1, 1, 1, 3], "scored": [60, 50, 40, 60], "distinct": [[0.5] * 4, [0.75] * 4, [1.0] * 4],
        "repeated": [0.25] * 4, "perplexity": [2.0 if policy is None else 3.0] * 4,
        "p": {"none": p, "word-d-0.1": after}, "edit_rate": {"word-d-0.1": 0.12},
    }  # fmt: skip


@pytest.mark.parametrize("tested", ["detectable_at", "found_at"])  # its name in the published files
def test_everyday_texts_with_and_without_runs(tested: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_tables, "RESULTS", tmp_path)
    result_tables._everyday.cache_clear()
    for name in ("everyday", "everyday-attacks"):
        *_, [first, *rest] = cells(table(name))
        assert first == "not measured yet" and not any(rest), "no number without a measurement"
    found = {"judge": "judge.gguf", "given": "prompt", "runs": {}, "cells": {
        "m.t.none": everyday_cell(None, [0.3, 0.2, 0.0005, 0.9], [0.5] * 4),
        "m.t.kgw.found.0": everyday_cell("found", [1e-4, 1e-3, 1e-5, 1e-9], [0.1, 0.1, 0.1, 1e-9], **{tested: 0.001}),
    }}  # fmt: skip
    (tmp_path / "everyday_m.json.xz").write_bytes(lzma.compress(json.dumps(found).encode()))
    result_tables._everyday.cache_clear()
    made, after = table("everyday"), cells(table("everyday-attacks"))
    result_tables._everyday.cache_clear()
    _, _, bare, marked = cells(made)
    assert bare[:7] == ["m", "temperature 0.7", "90", "no watermark", "4", "25 % (5 - 70)", ""]  # Wilson's
    assert marked[3:11] == ["found", "4", "100 % (51 - 100)", "1.50", "85", "50 %", "55", "1.50 (1.50 - 1.50)"]
    assert marked[11:] == ["50.0 %", "75.0 %", "100.0 %", "25.0 %", "+0.0 (0.0 to 0.0)"]
    assert "m under judge.gguf" in made and "benchmarks/results/everyday_m.json.xz" in made
    assert after[0][-2:] == ["not attacked", "word-d-0.1"]
    assert after[3][-2:] == ["100 % (51 - 100)", "25 % (5 - 70); 12 %"]


def test_attacked_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cell(policy: str | None, correct: list[bool], **p: list[float]) -> dict[str, Any]:
        attacked = {
            name.replace("_", "-"): {"p": values, "weighted": [0.5, *values[1:]], "edit_rate": 0.25}
            for name, values in p.items()
        }
        plain = {"none": {**attacked.pop("none"), "edit_rate": 0.0}}
        return {"manifest": {"model": "m", "policy": policy}, "correct": correct, "attacked": {**plain, **attacked}}

    found = {
        "attacks": {
            "word-s-context": {"kind": "word-s-context", "rate": 0.3},
            "word-d": {"kind": "word-d", "rate": 0.1},
        },
        "command": "me",
        "cells": {
            "a": cell(None, [True, True], none=[0.3, 0.9], word_d=[0.01, 0.9], word_s_context=[0.5, 0.6]),
            "b": cell("soft", [True, False], none=[0.001, 0.01], word_d=[0.01, 0.02], word_s_context=[0.5, 0.01]),
        },
    }
    (tmp_path / "attacked_x.json.xz").write_bytes(lzma.compress(json.dumps(found).encode()))
    monkeypatch.setattr(result_files, "RESULTS", tmp_path)
    made = table("attacked x")
    header, _, bare, marked = cells(made)
    assert header[2:] == ["detected at 1 % (weighted)", "10 % words deleted", "30 % by synonyms that fit"]
    assert bare == [
        "no watermark",
        "100 %",
        "0 % (0 %; 0 - 66)",
        "50 % (0 %; 0 - 66)",
        "0 % (0 %; 0 - 66)",
    ]
    assert marked[2:] == ["100 % (50 %; 9 - 91)", "50 % (0 %; 0 - 66)", "50 % (50 %; 9 - 91)"]
    assert "2 answers per setting" in made and "word-d 25 %; word-s-context 25 %" in made and "made by `me`" in made


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
