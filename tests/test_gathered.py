"""Results that are gathered from runs: what one policy has over another."""

import argparse
import json
from pathlib import Path
from typing import Any

import bench_universal

ANSWERS = {  # by policy and key: p, answer, right of questions 0 to 3; unmarked answers are 1
    ("none", 0): [(0.5, "1", True), (0.5, "1", True), (0.5, "1", False), (0.5, "1", False)],
    ("universal", 0): [(0.001, "1", True), (0.001, "1", True), (0.5, "1", False), (0.001, "2", False)],
    ("own", 0): [(0.001, "1", True), (0.5, "2", False), (0.001, "2", False), (0.001, "2", False)],
    ("own", 1): [(0.001, "1", True)],
}


def maths_rows() -> list[dict[str, Any]]:
    return [
        {"model": "m", "kind": "maths", "split": "test", "policy": policy, "key": key, "id": f"q{number}",
         "tokens": 10, "p": p, "answer": answer, "right": right}
        for (policy, key), texts in ANSWERS.items() for number, (p, answer, right) in enumerate(texts)
    ]  # fmt: skip


def line_of(lines: list[dict[str, Any]], **case: str) -> dict[str, Any]:
    (line,) = [each for each in lines if all(each[name] == value for name, value in case.items())]
    return line


def test_policies_are_compared_text_by_text(tmp_path: Path) -> None:
    texts, output = tmp_path / "texts.jsonl", tmp_path / "new" / "universal.json"
    texts.write_text("".join(json.dumps(row) + "\n" for row in maths_rows()))
    asked = {"trained": [], "texts": [texts], "policies": [], "output": output, "add": False}
    bench_universal.gather(argparse.Namespace(**asked))
    found = json.loads(output.read_text())
    pair = line_of(found["pairs"], policy="universal", than="own")
    assert (pair["texts"], pair["prompts"]) == (4, 4), "only texts of a key that both have"
    assert [pair[name] for name in ("found", "kept", "right", "both")] == [0.0, 0.5, 0.25, 0.25]
    low, high = pair["kept_ci"]
    assert 0 <= low < 0.5 < high <= 1 and "rise" not in pair
    assert len(found["pairs"]) == 1, "none without texts of both policies"
    assert line_of(found["texts"], policy="own")["both"] == 0.4
