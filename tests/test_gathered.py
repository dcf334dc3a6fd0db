"""Results that are gathered from runs: what replaces what, and what one policy has over another."""

import argparse
import json
from pathlib import Path
from typing import Any

import bench_guard
import bench_universal


def guard_file(path: Path, found: list[bool], *, key: int = 0, **settings: Any) -> Path:
    head = {"what": "gsm8k", "model": "folder/m.gguf", "evaluator": "e", "quantization": None, "split": "test",
            "level": 0.01, "edits": 0.0, "guard": "{}", "batch": 8, "key": key, **settings}  # fmt: skip
    text = {"tokens": 90, "nats": 0.5, "null": [0.5], "right": True, "stands": True}
    rows = [
        {"id": str(number), "seconds": 2.0, **text, "guard": {
            **text, "seconds": 5.0, "found": each, "kept": True, "rollouts": 7, "same": True}}
        for number, each in enumerate(found)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, *rows)))
    return path


def guarded(output: Path) -> dict[float, tuple[int, float]]:
    runs = json.loads(output.read_text())["runs"]
    rows = {run["level"]: row for run in runs for row in run["rows"] if row["way"] == "guard" and row["texts"] == "all"}
    assert len(rows) == len(runs)
    return {level: (row["count"], row["found"]) for level, row in rows.items()}


def test_runs_of_a_guard_are_added(tmp_path: Path) -> None:
    output = tmp_path / "new" / "guard.json"
    one = guard_file(tmp_path / "a", [True, True, False, False])
    other_key = guard_file(tmp_path / "b", [True, True, True, True], key=1)
    strict = guard_file(tmp_path / "c", [False, True], level=0.001)
    bench_guard.gather([one, other_key, strict], output)
    assert guarded(output) == {0.01: (8, 0.75), 0.001: (2, 0.5)}
    old = json.loads(output.read_text())
    old |= {"commit": "c0ffee"}
    output.write_text(json.dumps(old))

    bench_guard.gather([guard_file(tmp_path / "d", [True] * 3, level=0.001, model="other/m.gguf")], output, add=True)
    assert guarded(output) == {0.01: (8, 0.75), 0.001: (3, 1.0)}, "of the same settings the new run counts"
    new = json.loads(output.read_text())
    assert [run.get("commit") for run in new["runs"]] == ["c0ffee", None] and new["commit"] != "c0ffee"
    assert new["runs"][0]["texts"] == old["runs"][0]["texts"]
    bench_guard.gather([guard_file(tmp_path / "e", [False], edits=0.1)], output, add=True)
    again = json.loads(output.read_text())["runs"]
    assert [run["edits"] for run in again] == [0.0, 0.0, 0.1]
    assert again[0]["commit"] == "c0ffee", "a run keeps the commit that it was made with"


ANSWERS = {  # by policy and key: p, answer, right of questions 0 to 3; unmarked answers are 1
    ("none", 0): [(0.5, "1", True), (0.5, "1", True), (0.5, "1", False), (0.5, "1", False)],
    ("universal", 0): [(0.001, "1", True), (0.001, "1", True), (0.5, "1", False), (0.001, "2", False)],
    ("own", 0): [(0.001, "1", True), (0.5, "2", False), (0.001, "2", False), (0.001, "2", False)],
    ("own", 1): [(0.001, "1", True)],
}


def maths_rows(model: str = "m") -> list[dict[str, Any]]:
    return [
        {"model": model, "kind": "maths", "split": "test", "policy": policy, "key": key, "id": f"q{number}",
         "tokens": 10, "p": p, "answer": answer, "right": right}
        for (policy, key), texts in ANSWERS.items() for number, (p, answer, right) in enumerate(texts)
    ]  # fmt: skip


def gathered(tmp_path: Path, rows: list[dict[str, Any]], *, add: bool = False, **more: Any) -> dict[str, Any]:
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "new" / "universal.json"
    asked = {"trained": [], "texts": [tmp_path / "texts.jsonl"], "policies": [], "output": output}
    asked |= {"add": add, **more}
    bench_universal.gather(argparse.Namespace(**asked))
    return json.loads(output.read_text())


def line_of(lines: list[dict[str, Any]], **case: str) -> dict[str, Any]:
    (line,) = [each for each in lines if all(each[name] == value for name, value in case.items())]
    return line


def test_policies_are_compared_text_by_text(tmp_path: Path) -> None:
    found = gathered(tmp_path, maths_rows())
    pair = line_of(found["pairs"], policy="universal", than="own")
    assert (pair["texts"], pair["prompts"]) == (4, 4), "only texts of a key that both have"
    assert [pair[name] for name in ("found", "kept", "right", "both")] == [0.0, 0.5, 0.25, 0.25]
    low, high = pair["kept_ci"]
    assert 0 <= low < 0.5 < high <= 1 and "rise" not in pair
    assert len(found["pairs"]) == 1, "none without texts of both policies"
    assert line_of(found["texts"], policy="own")["both"] == 0.4
