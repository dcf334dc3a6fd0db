"""`bench_generate.py` under pytest-benchmark: time per token of every mode of every run, and its ratio to plain."""

import functools
from typing import Any

import pytest
import torch
from bench_generate import SETS, measure


@functools.cache
def rows_of(kind: str, name: str, results: Any) -> dict[tuple[str, int, int], dict[str, Any]]:
    """All modes of a run, measured in turns by the first test that asks."""
    found = measure(name, SETS[kind][name], results)
    return {(row["mode"], row["batch"], row["prompt"]): row for row in found["rows"]}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    size = metafunc.config.getoption("--size")
    gpu = torch.cuda.is_available()
    kind = "smoke" if size == "smoke" else "gpu" if gpu else "cpu"
    names = ["llama-2-7b_quick"] if (size, gpu) == ("normal", True) else list(SETS[kind])
    cases = []
    for name in names:
        settings = SETS[kind][name]
        for batch in settings.batches:
            for prompt in settings.prompts:
                for mode in settings.modes:
                    label = f"{name}-{mode}-b{batch}-p{prompt}"
                    cases.append(pytest.param(kind, name, (mode, batch, prompt), id=label))
    metafunc.parametrize(("kind", "name", "case"), cases)


def test_generate(benchmark: Any, replay: Any, kind: str, name: str, case: tuple[str, int, int]) -> None:
    row = rows_of(kind, name, replay.results)[case]
    if "error" in row:
        pytest.skip(f"does not work here: {row['error']}")
    group = f"a token: {name}, batch {case[1]}, prompt {case[2]}"
    extra = {key: value for key, value in row.items() if key != "rounds_ms"}
    replay.play(benchmark, group, [ms / 1e3 for ms in row["rounds_ms"]], **extra)
