"""`caw benchmark` on tiny random weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from caw.benchmark import cases
from caw.benchmark.cases import BenchmarkSettings
from caw.benchmark.sizes import SIZES
from caw.cli import app
from caw.cli.benchmark_command import _sized, notes

TINY = ("benchmark", "--shapes", "tiny", "--dtype", "float32", "--device", "cpu", "--threads", "1", "--tokens", "4",
        "--rounds", "2", "--prompt", "9")  # fmt: skip


def run(*more: str) -> Any:
    environment = {"COLUMNS": "80", "NO_COLOR": "1", "CAW_TRACEBACK": ""}
    return CliRunner().invoke(app, [*TINY, *more], env=environment)


def test_table_and_json(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run("--batch", "1,2", "--modes", "kgw+caw,exp+caw,transformers", "--json", str(out))
    assert done.exit_code == 0, done.stderr
    found = json.loads(out.read_text())
    assert len(found["rows"]) == 2 * 4 and found["checks"] and found["machine"]["threads"] == 1
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and "batch 2, prompt of 9 tokens" in done.stdout
    assert any(line.split()[:2] == ["exp+caw", f"{found['rows'][2]['ms_per_token']['median']:.2f}"] for line in lines)
    assert "excluded: warm-up runs" in done.stdout


def test_default_modes_are_one_screen() -> None:
    done = run("--rounds", "1", "--modes", "default")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.rstrip().splitlines()
    assert len(lines) <= 24 + 4 and max(map(len, lines)) <= 80 and "…" not in done.stdout


def test_sides_that_differ_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    real = cases.call_of

    def wrong(mode: str, job: Any) -> Any:
        def call(tokens: int) -> Any:
            made = real(mode, job)(tokens)
            made.tokens[0][0] += mode == "kgw+caw/sequential"
            return made

        return call

    monkeypatch.setattr(cases, "call_of", wrong)
    done = run("--modes", "kgw+caw,kgw+caw/sequential")
    assert done.exit_code == 1 and "must give the same tokens" in done.stderr and not done.stdout.strip()


def test_sizes_say_what_options_do_not() -> None:
    assert _sized("full", {"modes": None, "tokens": 7}) == {**SIZES["full"], "tokens": 7}
    assert _sized("quick", {"max_seconds": 9.0})["max_seconds"] == 9.0
    for size in SIZES.values():
        BenchmarkSettings(**size)


def test_a_gpu_without_its_kernels_is_named_under_the_table() -> None:
    arguments = {"shapes": "tiny", "model": "", "dtype": "float32", "tokens": 4}
    machine = {"gpu": "H100", "threads": 1, "cuda_kernels": "no nvcc"}
    found = {"arguments": arguments, "machine": machine, "rows": [], "checks": [], "clock": "perf_counter"}
    assert "without part of the kernels: no nvcc" in notes(found)
    assert not any("kernels" in line for line in notes(found | {"machine": machine | {"cuda_kernels": "built"}}))


@pytest.mark.parametrize("calls", [3, 17])
def test_interrupted_what_was_measured_is_kept(calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, out, count = cases.call_of, tmp_path / "out.json", 0

    def call_of(mode: str, job: Any) -> Any:
        def call(tokens: int) -> Any:
            nonlocal count
            count += 1
            if count > calls:
                raise KeyboardInterrupt
            return real(mode, job)(tokens)

        return call

    monkeypatch.setattr(cases, "call_of", call_of)
    done = run("--modes", "kgw", "--rounds", "9", "--json", str(out))
    assert done.exit_code == 130 and "interrupted" in done.stderr
    if calls == 3:  # in the first runs, which do not count
        assert not out.exists() and "saved in" not in done.stderr
        return
    found = json.loads(out.read_text())
    assert found["complete"] is False and [row["mode"] for row in found["rows"]] == ["plain", "kgw"]
    assert found["rows"][1]["ratio"]["n"] == len(found["rows"][1]["rounds_ms"]) >= 2
    assert "kgw" in done.stdout and f"results so far are saved in {out}" in done.stderr
    monkeypatch.undo()
    whole = run("--modes", "kgw", "--json", str(tmp_path / "whole.json"))
    assert whole.exit_code == 0 and json.loads((tmp_path / "whole.json").read_text())["complete"] is True
