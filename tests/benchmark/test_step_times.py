"""Times of steps alone, and the compiled baseline beside them: its texts are the model's own."""

import functools
import json
from collections.abc import Iterator
from typing import Any

import compiled_torch
import pytest
import step_times
import torch
from compiled_torch import COMPILED
from step_model import model_of_step
from step_times import StepSettings, run


@pytest.fixture(autouse=True)
def quick_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Traced into whole graphs as on a GPU, but run as they are: a compiler takes a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    compiled_torch.compiled.cache_clear()
    yield
    compiled_torch.compiled.cache_clear()
    torch._dynamo.reset()


def test_steps_are_timed_beside_plain_and_one_that_fails_takes_none_along(monkeypatch: pytest.MonkeyPatch) -> None:
    real = step_times.compiled_step

    def fails_at_batch_two(subject: Any, batch: int, prefix: int) -> Any:
        if batch == 2:
            raise torch.OutOfMemoryError("out of memory\nmore")
        return real(subject, batch, prefix)

    monkeypatch.setattr(step_times, "compiled_step", fails_at_batch_two)
    saved: list[Any] = []
    modes = ("plain", "kgw+caw", "exp/drawn", COMPILED)
    settings = StepSettings("tiny", "float32", "cpu", modes, (1, 2), (9,), rounds=2)
    found = run(settings, saved=lambda now: saved.append(json.loads(json.dumps(now))))
    rows = {(row["mode"], row["batch"]): row for row in found["rows"]}
    assert found["complete"] and [len(now["rows"]) for now in saved] == [4, 8] and not saved[0]["complete"]
    assert rows[COMPILED, 2]["error"] == "OutOfMemoryError: out of memory"
    for key in (("plain", 1), ("kgw+caw", 1), (COMPILED, 1), ("plain", 2), ("kgw+caw", 2), ("exp/drawn", 1)):
        row = rows[key]
        assert row["step_us"]["median"] > 0 and row["step_us"]["n"] == 2 and row["memory_ratio"] == 1.0
        launches = [] if key[0] in (COMPILED, "exp/drawn") else model_of_step(key[0], "tiny", "float32", key[1], 9)
        assert row["bytes"] == (sum(launch.bytes for launch in launches) or None)
    plain = rows["plain", 1]
    assert plain["ratio"]["median"] == 1 and rows["kgw+caw", 1]["ratio"]["median"] > 1 / 3
    assert plain["share_of_bandwidth"] == pytest.approx(
        plain["bytes"] / found["bandwidth"] / plain["step_us"]["median"] * 1e6, rel=0.1, abs=1e-4
    )
    assert not run(StepSettings("tiny", "float32", "cpu", ("plain",), (1, 2), (9,), 1, seconds=0.0))["complete"]
