"""Times of steps alone, and the compiled baseline beside them: its texts are the model's own."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from caw.benchmark import compiled_torch, replays, step_times
from caw.benchmark.compiled_torch import CompiledTorch, generated
from caw.benchmark.modes import COMPILED, OTHERS, same_tokens
from caw.benchmark.step_model import model_of_step
from caw.benchmark.step_times import StepSettings, run
from caw.benchmark.subjects import random_model
from caw.cli import app

PROMPTS = [[5, 9, 11, 3, 800], [7, 7, 1999, 12, 4]]


@pytest.fixture(autouse=True)
def quick_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Traced into whole graphs as on a GPU, but run as they are: a compiler takes a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    compiled_torch.compiled.cache_clear()
    yield
    compiled_torch.compiled.cache_clear()
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 2},
        {"model_type": "qwen2", "num_key_value_heads": 4},
        {"model_type": "qwen3", "num_key_value_heads": 1},
    ],
    ids=["llama", "qwen2", "qwen3"],
)
def test_compiled_torch_gives_the_models_own_greedy_texts(changes: dict[str, Any]) -> None:
    model = random_model("tiny", "float32", "cpu", **changes)
    rows = torch.tensor(PROMPTS)
    expected = model.generate(rows, attention_mask=torch.ones_like(rows), do_sample=False, max_new_tokens=6,
                              eos_token_id=None, pad_token_id=0)[:, 5:].tolist()  # fmt: skip
    made = generated(model, PROMPTS, 6)
    assert made.tokens == expected and made.preparation > 0 and not made.drafts
    assert generated(model, PROMPTS, 1).tokens == [row[:1] for row in expected]
    assert COMPILED in OTHERS and ["plain", COMPILED] in same_tokens(["plain", COMPILED])


def test_compiled_torch_says_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="compiled torch needs whole layers"):
        CompiledTorch(
            random_model("tiny", "float32", "cpu", model_type="mistral", sliding_window=4, num_key_value_heads=2), 1, 9
        )
    gpt2 = {"model_type": "phi", "num_key_value_heads": 4}
    with pytest.raises(ValueError, match="got others; leave it out"):
        CompiledTorch(random_model("tiny", "float32", "cpu", **gpt2), 1, 9)


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


def test_replays_are_timed_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two marks around eight replays of a graph of four calls: 96 ms are 3 ms a call."""
    order: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            order.append("mark")

        def synchronize(self) -> None:
            order.append("wait")

        def elapsed_time(self, end: Any) -> float:
            return 96.0

    class Graph:
        def replay(self) -> None:
            order.append("replay")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    step = step_times.Step(lambda: None, lambda: order.append("reset"), Graph(), 0)
    assert replays.replay_timer(Graph(), 32, 8)() == pytest.approx(0.003)
    assert step_times.timed(step, lambda: 0.0)() == pytest.approx(0.012)
    assert order == ["mark", *["replay"] * 8, "mark", "wait", "reset", "mark", *["replay"] * 8, "mark", "wait"]


def test_the_command_shows_a_table_and_saves(tmp_path: Path) -> None:
    out = tmp_path / "steps.json"
    given = ("benchmark", "--steps", "--shapes", "tiny", "--dtype", "float32", "--device", "cpu", "--prompt", "9")
    done = CliRunner().invoke(app, [*given, "--modes", "plain,kgw", "--rounds", "1", "--json", str(out)])
    assert done.exit_code == 0, done.stderr
    assert json.loads(out.read_text())["complete"] and "kgw" in done.stdout and "us a step" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    wrong = CliRunner().invoke(app, [*given, "--modes", "transformers"])
    assert wrong.exit_code != 0 and "for times of steps, got 'transformers'" in " ".join(wrong.stderr.split())
