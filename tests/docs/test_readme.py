"""README says what is so: its ten lines run, its numbers are the committed results', what it names is there."""

from __future__ import annotations

import ast
import json
import lzma
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import commands

from caw.cli import app
from caw.io.json_files import read_json, read_lines

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINES = 130
[EXAMPLE] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def results(name: str) -> Any:
    return read_json(RESULTS / name)


def cells(text: str) -> list[list[str]]:
    """Rows of the tables of a Markdown text."""
    rows = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]


def measured() -> dict[str, str]:
    """Result of each measured row, by what was measured."""
    [table] = re.findall(r"## Measured\n(.*?)\n## ", README, re.DOTALL)
    return {what: result for what, result, _ in cells(table)[1:]}


def short(number: float, digits: int = 3) -> str:
    """Without the zero before the point."""
    return f"{number:.{digits}f}".removeprefix("0")


def test_it_stays_short() -> None:
    assert len(README.splitlines()) <= LINES
    assert len(measured()) == 9 and all(len(result.split()) <= 12 for result in measured().values())


def test_the_example_is_ten_lines_and_the_guides() -> None:
    assert len(ast.parse(EXAMPLE).body) <= 10 and len([line for line in EXAMPLE.splitlines() if line]) <= 10
    assert EXAMPLE in (ROOT / "docs" / "start.md").read_text(encoding="utf-8")


@pytest.mark.slow(seconds=20)
def test_the_example_runs(demo_model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(compile(EXAMPLE, "README.md", "exec"), names)
    assert names["result"].is_watermarked and names["out"].texts[0] in capsys.readouterr().out


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_what_is_linked_or_run_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text):
        assert (path.parent / target).exists(), target
    for script in re.findall(r"python ((?:benchmarks|docs)/[\w/]+\.py)", text):
        assert (ROOT / script).is_file(), script
    for name in re.findall(r"`((?:caw|benchmarks|tests|triton_kernels|csrc|gates)/[\w./]*)`", text):
        assert (ROOT / name).exists() or name == "caw/triton_kernels", name


def test_the_layout_is_that_of_the_tree() -> None:
    [layout] = re.findall(r"## Layout\n\n```\n(.*?)```", README, re.DOTALL)
    named = re.findall(r"(?:^| )(\w+/[\w./]*)(?=[ )])", layout, re.MULTILINE)
    assert len(named) > 12 and all((ROOT / name).exists() for name in named)
    rooms = {path.parent.name for path in ROOT.glob("caw/*/__init__.py")} - {"demo"}
    assert rooms <= {name.strip("/").split("/")[-1] for name in named}


def test_every_command_is_named() -> None:
    [table] = re.findall(r"## Commands\n(.*?)\n## ", README, re.DOTALL)
    named = re.findall(r"[a-z-]+", table)
    for path, _ in commands(typer.main.get_command(app), ["caw"]):
        assert path == ["caw", "demo"] or path[-1] in named, path


def test_marks_in_the_demo_models_texts() -> None:
    plain, kgw, caw = results("detection.json")["rows"]
    assert {row["texts"] for row in (plain, kgw, caw)} == {24}
    [(what, figures)] = [item for item in measured().items() if "surprise" in item[0]]
    said = "; ".join(
        f"{name} {row['changed']:.1%}, {row['surprise']:.2f}" for name, row in (("KGW", kgw), ("CAW", caw))
    )
    assert figures == said.replace("%", " %") and f"unmarked {plain['surprise']:.2f}" in what


def test_everyday_texts() -> None:
    shares = {}
    for name in ("qwen05", "smollm2"):
        cells = json.loads(lzma.decompress((RESULTS / f"everyday_{name}.json.xz").read_bytes()))["cells"].values()
        greedy = [cell for cell in cells if cell["manifest"]["task"] == "greedy-300"]
        p = {(cell["manifest"]["policy"] or "none"): cell["p"]["none"] for cell in greedy}
        assert len(p["found"]) == len(p["none"]) == 100
        shares[name] = {policy: sum(value <= 0.001 for value in p[policy]) / 100 for policy in ("found", "none")}
    [(what, said)] = [item for item in measured().items() if "everyday" in item[0]]
    assert said == ", ".join(
        f"{model} {short(shares[name]['found'], 2)}"
        for model, name in (("Qwen2.5-Coder-0.5B", "qwen05"), ("demo model", "smollm2"))
    )
    assert {found["none"] for found in shares.values()} == {0} and "unmarked 0, 0" in what


def test_maths_under_five_keys() -> None:
    rows = {row["policy"]: row for row in results("evaluation_qwen05keys/results.json")["rows"] if is_mean(row)}
    none, mid, caw = (rows[name] for name in ("none", "mid", "hard+caw"))
    [(what, said)] = [item for item in measured().items() if "maths" in item[0]]
    figures = [f"{short(row['accuracy'])}, {short(row['tpr_at_fpr_1e2'], 2)}" for row in (mid, caw)]
    assert said == f"KGW {figures[0]}; CAW {figures[1]}"
    assert f"unmarked {short(none['accuracy'])}" in what


def test_marked_until_they_are_found() -> None:
    every = results("evaluation_qwen05target/results.json")["rows"]
    rows = {row["policy"]: row for row in every if row["keys"] in (0, 3)}
    names = ("none", "caw", "closed-0.01", "found-0.01", "found-vote")
    none, *marked = (short(rows[name]["accuracy"]) for name in names)
    found = [short(rows[name]["weighted"]["tpr_at_fpr_1e2"], 2) for name in names[1:]]
    [(what, said)] = [item for item in measured().items() if "drawn" in item[0]]
    labels = ("CAW", "`target`", "`found_at`", "voting")
    shown = [f"{name} {right}, {share}" for name, right, share in zip(labels, marked, found, strict=True)]
    assert said == "; ".join(shown)
    asked, drawn = {str(rows[name]["n"]) for name in names}, short(right_when_drawn())
    assert f"{' or '.join(sorted(asked))} other questions (unmarked {none}, drawn {drawn})" in what
    assert f"{rows['caw']['keys']} keys:" in what
    introduction = (f"({marked[1]} and {drawn} of {rows['caw']['n']})", f"({marked[3]})", f"({none})", f"({marked[0]})")
    assert all(part in README for part in introduction)


def right_when_drawn() -> float:
    """Share of right answers over all draws without a mark, of the questions that every draw has."""
    draws: dict[str, dict[str, bool]] = {}
    for line in read_lines(RESULTS / "evaluation_qwen05drawn" / "answers.jsonl"):
        if line["cell"].endswith(".none"):
            draws.setdefault(line["cell"], {})[line["id"].rpartition("/")[2]] = line["correct"]
    asked = set.intersection(*map(set, draws.values()))
    return sum(draw[question] for draw in draws.values() for question in asked) / (len(asked) * len(draws))


def is_mean(row: dict[str, Any]) -> bool:
    """Whether a row is over all keys (or of unmarked texts)."""
    return row["keys"] in (0, 5)


def test_false_alarms() -> None:
    found = results("detect_null.json")
    rates = [rate for row in found["rows"] for rate in row["once"]]
    above = [rate for rate in rates if rate["low"] > rate["level"]]
    [(what, said)] = [item for item in measured().items() if "alarms" in item[0] and "unmarked texts" in item[0]]
    assert not above and said == f"none of {len(rates)} rates above its level (95 %)"
    keys, marks = ({row[name] for row in found["rows"]} for name in ("key", "watermark_name"))
    assert f"{found['texts']:,} unmarked texts, {len(keys)} keys, {len(marks)} watermarks" in what


def test_drafts() -> None:
    faster = {
        row["prompts"]: row["speed_over_plain"]
        for row in results("drafts.json")["rows"]
        if row["model"] == "smollm2-135m" and row["variant"] == "KGW, CAW + drafts" and row["batch"] == 1
    }
    said = ", ".join(
        f"{name} {faster[prompts]:.1f}"
        for name, prompts in (("maths", "GSM8K"), ("rewriting", "rewriting"), ("chat", "chat"))
    )
    assert f"{said} times" in measured().values()


def test_times() -> None:
    alone, together = (
        next(r["ratio"]["median"] for r in results(f"generate_cpu_{name}.json")["rows"] if r["mode"] == "kgw+caw")
        for name in ("float32", "float32_b8")
    )
    floors = [row["ratio"] for row in results("floor.json")["rows"] if row["dtype"] == "float32"]
    assert f"{alone:.2f}; {together:.2f}" in measured().values()
    assert f"{floors[0]:.1f}; {floors[1]:.1f} times" in measured().values()


def test_speed_over_another_program() -> None:
    said = []
    for name, model in (("demo", "smollm2-135m"), ("0.5B", "qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf")):
        [run] = [
            run for run in results("quantised.json")["runs"] if "EPYC" in run["processor"]
            and (run["arguments"]["model"], run["arguments"]["prefix"]) == (model, 128)
        ]  # fmt: skip
        faster = {row["batch"]: statistics.median(row["ratios"]) for row in run["rows"] if row["side"] == "kgw+caw"}
        said.append(f"{name} {faster[1]:.1f}; {faster[8]:.1f}")
    assert f"{', '.join(said)} times" in measured().values()
