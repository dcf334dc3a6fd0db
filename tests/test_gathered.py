"""Results that are gathered from runs: what replaces what, and what one policy has over another."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import bench_guard
import bench_universal
import numpy as np
import pytest


# ---- the guard -------------------------------------------------------------------------------------------------------
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
    """(texts, share found) of each level."""
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

    begun = guard_file(tmp_path / "f", [], edits=0.2)
    spaced = [guard_file(tmp_path / name, [True], guard=given, level=0.5)
              for name, given in (("g", '{"keeps":"content"}'), ("h", '{"keeps": "content"}'))]  # fmt: skip
    bench_guard.gather([begun, *spaced], output, add=True)
    assert [run["guard"] for run in json.loads(output.read_text())["runs"]] == [*["{}"] * 3, '{"keeps":"content"}']

    bench_guard.gather([one], output)
    assert guarded(output) == {0.01: (4, 0.5)}, "without --add nothing stays"

    old = json.loads(output.read_text())
    old["runs"][0]["commit"] = "c0ffee"
    old["runs"][0]["rows"].append({"way": "votes", "texts": "all", "count": 2})
    output.write_text(json.dumps(old))
    bench_guard.gather([other_key], output, add=True)
    assert guarded(output) == {0.01: (4, 1.0)}
    [run] = json.loads(output.read_text())["runs"]
    assert run["rows"][-1] == {"commit": "c0ffee", "way": "votes", "texts": "all", "count": 2}
    assert "commit" not in run["rows"][0], "of ways that were run again only the new rows count"


# ---- evaluators of every model ---------------------------------------------------------------------------------------
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


def everyday_rows(model: str = "m") -> list[dict[str, Any]]:
    nats = {"none": [1.0, 1.0, 2.0, None], "universal": [1.2, 1.1, 2.3, 1.0], "own": [1.4, 1.2, 2.6, 1.0]}
    return [
        {"model": model, "kind": "everyday", "split": "test", "policy": policy, "key": 0, "id": f"test/{number}",
         "tokens": 10, "p": 1e-4, "nats": each}
        for policy, values in nats.items() for number, each in enumerate(values)
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


def test_an_answer_that_was_not_there_is_not_kept(tmp_path: Path) -> None:
    """Two texts without an answer used to count as kept; and a lost answer is none."""
    rows = maths_rows()
    for row in rows:
        if (row["policy"], row["id"]) in {("none", "q1"), ("universal", "q1"), ("own", "q0")}:
            row["answer"] = None
    found = gathered(tmp_path, rows)["texts"]
    assert line_of(found, policy="universal")["kept"] == pytest.approx(2 / 3, abs=1e-4)
    assert line_of(found, policy="universal")["both"] == pytest.approx(1 / 3, abs=1e-4)
    assert line_of(found, policy="universal")["found"] == 0.75, "of all four"
    assert line_of(found, policy="own")["kept"] == 0.0


def test_a_policys_name_stands_for_one_policy() -> None:
    asked = argparse.Namespace(tokens=200, judge=None)
    rows = [{"policy": "own", "made_by": ["one:0.9:2", 200, None]}, {"policy": "other"}]
    for policy in ("own=one:0.9:2", "other=two:0.9:2"):
        bench_universal.refuse_another(rows, bench_universal.made_by(asked, policy))
    with pytest.raises(ValueError, match=r"rows of own must be of \['one:0.9:1', 200, None\], found \['one:0.9:2'"):
        bench_universal.refuse_another(rows, bench_universal.made_by(asked, "own=one:0.9:1"))


def test_a_text_that_stands_twice_counts_once(tmp_path: Path) -> None:
    rows = maths_rows()
    assert gathered(tmp_path, rows + rows[2:9]) == gathered(tmp_path, rows)


def test_rises_are_compared(tmp_path: Path) -> None:
    found = gathered(tmp_path, everyday_rows())
    pair = line_of(found["pairs"], policy="universal", than="own")
    assert pair["rise"] == pytest.approx(-0.2, abs=1e-4) and pair["rise_ratio"] == 0.5
    low, high = pair["rise_ratio_ci"]
    assert low == pytest.approx(0.5, abs=1e-4) and high == pytest.approx(0.5, abs=1e-4)
    assert line_of(found["texts"], policy="own")["rise"] == 0.4, "of texts whose unmarked one was read"
    assert "kept" not in pair and "nats" not in pair


def test_texts_of_other_models_stay(tmp_path: Path) -> None:
    (tmp_path / "healing.json").write_text(json.dumps({"trained_on": "changes", "metrics": {"sets": []}}))
    old = gathered(
        tmp_path, maths_rows() + maths_rows("n"), trained=[tmp_path / "healing.json"], policies=["own=the own"]
    )
    rows = [row | {"right": True} for row in maths_rows("n") if row["policy"] != "own"] + everyday_rows("m")
    new = gathered(tmp_path, rows, add=True, policies=["universal=universal (0.9, 2)"])
    assert new["trained"] == {"healing": {"trained_on": "changes", "sets": []}} == old["trained"]
    assert new["policies"] == {"own": "the own", "universal": "universal (0.9, 2)"}
    same = {"model": "m", "kind": "maths"}
    for policy in ("none", "universal", "own"):
        assert line_of(new["texts"], **same, policy=policy) == line_of(old["texts"], **same, policy=policy)
    assert line_of(new["texts"], model="n", policy="universal")["right"] == 1.0
    assert line_of(new["texts"], model="n", policy="own") == line_of(old["texts"], model="n", policy="own")
    assert [(line["model"], line["kind"]) for line in new["pairs"]] == [
        ("m", "everyday"),
        ("m", "maths"),
        ("n", "maths"),
    ]
    alone = gathered(tmp_path, rows)
    assert alone["trained"] == {} and {line["model"] for line in alone["pairs"]} == {"m"}


def test_intervals_are_over_prompts() -> None:
    ids = [f"q{number % 50}" for number in range(150)]
    values = np.array([number % 50 < 25 for number in range(150)], dtype=float)
    mean, (low, high) = bench_universal.mean_of(values, ids)
    assert mean == 0.5 and 0.33 < low < 0.4 and 0.6 < high < 0.67, "three keys of a prompt are no three prompts"
    assert bench_universal.mean_of(np.where(values > 0, values, np.nan), ids) == (1.0, (1.0, 1.0))
