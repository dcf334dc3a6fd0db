"""The table of speed goals, and the sentences beside it, say what result files say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import goal_tables
import pytest
import step_tables

from caw.io.json_files import read_json

ROOT = Path(__file__).resolve().parents[2]


def results(name: str) -> Any:
    return read_json(ROOT / "benchmarks" / "results" / name)


def page(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


def goals() -> dict[str, list[str]]:
    """Cells by the goal's first words."""
    lines = [line for line in goal_tables.speed_goals().splitlines() if line.startswith("|")][2:]
    return {goal: rest for goal, *rest in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)}


def one(part: str) -> list[str]:
    [found] = [rest for goal, rest in goals().items() if part in goal]
    return found


def test_met_and_missed() -> None:
    judged = goal_tables._judged
    assert judged({"a": 1.1, "b": 1.0}, 1.1) == "met" and judged({"a": 1.101, "b": 1.0}, 1.1) == "missed: a"
    assert judged({"a": 2.0, "b": 1.6}, 1.5, most=False) == "met" and judged({"a": 1.0}, 1.5, most=False) == "missed"


def test_a_goal_without_a_row_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    real = goal_tables.read_result

    def without(name: str) -> Any:
        found = real(name)
        if name == "drafts.json.xz":
            return {**found, "rows": [row for row in found["rows"] if row["instructions"] != "amx_bf16"]}
        if name == "servers.json":
            return {**found, "rows": [row for row in found["rows"] if row["way"] != "drawn"]}
        if name == "loading.json":
            kept = [[row for row in run["rows"] if "gemma" not in row["model"]] for run in found["runs"]]
            return {**found, "runs": [{**run, "rows": rows} for run, rows in zip(found["runs"], kept, strict=True)]}
        return found

    monkeypatch.setattr(goal_tables, "read_result", without)
    for part in ("CAW over unmarked on AMX", "`load_model`"):
        assert one(part)[:2] == ["not measured", "not measured"]
    assert "T 0.7 not measured" in one("16 requests: >=")[0]


def test_misses_by_little_are_said() -> None:
    drawn = {(r["case"], r["batch"]): r["ratio"][0] for r in results("drawn.json")["rows"]}
    nucleus = {(case, batch): n for (case, batch), n in drawn.items() if case.endswith("T .7, top-p .95")}
    [(case, value)] = [(case, value) for case, value in nucleus.items() if value > 1.05]
    assert case == ("plain, T .7, top-p .95", 8) and one("T 0.7, top-p 0.95")[1] == "missed: unmarked at batch 8"
    assert f"unmarked, at batch 8, with {value}." in page("performance.md")
    race = [r for r in results("synthid_steps.json")["rows"] if r.get("over_race", [0])[0] > 1.1]
    assert [(r["case"], r["batch"]) for r in race] == [("synthid+caw, greedy", 8), ("synthid+caw, greedy", 16)]
    said = "with {} and {}: there a token takes".format(*(r["over_race"][0] for r in race))
    assert said in page("performance.md") and one("SynthID")[1].startswith("missed: greedy under CAW at batch 8")


def test_sentences_about_servers() -> None:
    rows = {(r["dtype"], r["clients"], r["way"], r["side"].removeprefix("caw, ")): r
            for r in results("servers.json")["rows"]}  # fmt: skip
    caw, without, race, peer = "KGW under CAW", "KGW under CAW, no look-ahead", "race", "vLLM, unmarked"

    def ratio(clients: int, way: str, side: str, dtype: str = "bfloat16", name: str = "ratio") -> str:
        return f"{rows[dtype, clients, way, side][name][0]:.2f}"

    busy, other, theirs = (rows["bfloat16", 16, "busy", side] for side in (caw, without, peer))
    still = theirs["gap_ms"][0] * theirs["gap_99"][0] / 1000
    cores = {s: rows["bfloat16", 1, "nucleus", s]["rate"][0] / rows["bfloat16", 1, "nucleus", s]["own"][0]
             for s in (caw, race, peer)}  # fmt: skip
    text = page("serve.md")
    for said in (
        f"{ratio(16, 'nucleus', caw)} with KGW under CAW and {ratio(16, 'nucleus', race)} with the race",
        f"({ratio(16, 'greedy', without)} greedy). Missed on greedy text under CAW ({ratio(16, 'greedy', caw)})",
        f"met by the race ({ratio(1, 'nucleus', race)}), missed by KGW under CAW ({ratio(1, 'greedy', caw)} greedy, "
        f"{ratio(1, 'nucleus', caw)} sampled)",
        f"{ratio(1, 'greedy', caw, name='own_ratio')} and {ratio(1, 'nucleus', caw, name='own_ratio')} times vLLM's",
        f"keeps {cores[caw]:.1f} of the two cores busy, where vLLM and the race keep {cores[race]:.1f}",
        "{:.0f} tokens a second with 64 and {:.0f} with 16 (greedy".format(
            *(rows["bfloat16", n, "greedy", caw]["rate"][0] for n in (64, 16))
        ),
        f"{busy['first_ratio'][0]:.2f} times as long as in vLLM, without a look-ahead {other['first_ratio'][0]:.2f}",
        f"stop for {still:.2f} s, {theirs['gap_99'][0]:.0f} of their usual gaps",
        f"{busy['gap_99'][0]:.2f} times the usual gap of {busy['gap_ms'][0]:.0f} ms, in the worst round "
        f"{busy['gap_99'][2]:.2f}; without a look-ahead {other['gap_99'][0]:.2f}",
        "with {}, {} and {}.".format(*(ratio(n, "greedy", caw, "blocks") for n in (1, 4, 8))),
    ):  # fmt: skip
        assert said in text
    assert f"{cores[peer]:.1f}" == f"{cores[race]:.1f}"
    assert {r["rounds"] for r in rows.values()} == {2, 3} and "of two or three rounds" in text


def test_a_call() -> None:
    rows = results("call.json")["rows"]
    took = {r["setting"]: r["ms"] for r in rows if r.get("model", "smollm2-135m") == "smollm2-135m"}
    said = f"unmarked; KGW under CAW | {took['plain']:.2f} ms; {took['KGW under CAW']:.2f} ms |"
    assert said in page("performance.md")
    assert ("missed" in one("`generate` before prefill")[1]) == (max(r["ms"] for r in rows) > 3)


def test_parts_of_several_dtypes_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"dtype": dtype, "threads": threads, "batch": batch, "case": "plain, greedy", "parts": {"all": ms}}
        for dtype, threads, batch, ms in (("float32", 1, 1, 2.0), ("float32", 1, 8, 5.0), ("bfloat16", 2, 1, 1.0),
                                          ("bfloat16", 2, 8, 1.5))
    ]  # fmt: skip
    monkeypatch.setattr(step_tables, "read_result", lambda name: {"rows": rows})
    made = step_tables.step_parts()
    assert made.startswith("| dtype | threads | batch |") and "| bfloat16 | 2 | 8 | unmarked, greedy | 1.50 |" in made
    assert "2.50 at batch 8 (float32, 1 thread); 1.50 at batch 8 (bfloat16, 2 threads)." in made
    monkeypatch.undo()
    assert step_tables.step_parts().startswith("| batch | step |"), "one dtype, one number of threads: no column"
