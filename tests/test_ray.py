"""Shards of prompts: without Ray what an actor does, with Ray a pool of two on the CPU, killed and started again."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats
from tiny import save_tiny

import caw
import caw.ray as scale
from caw.detection import TokenWeights
from caw.io.jsonl import JsonlWriter
from caw.models import load_model

PROMPTS = [{"id": f"p{i}", "prompt": f"small text {i}, a"} for i in range(12)]
OPTIONS: dict[str, Any] = {"max_new_tokens": 8, "batch_size": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("ray") / "tiny"))


@pytest.fixture(scope="module")
def expected(model: str) -> dict[str, str]:
    network, tokenizer = load_model(model, dtype="float32")
    out = caw.generate(network, tokenizer, [p["prompt"] for p in PROMPTS], watermark=caw.KGW(key=11), **OPTIONS)
    return {p["id"]: text for p, text in zip(PROMPTS, out.texts, strict=True)}


def job(model: str, output: Path, **changes: Any) -> scale.RayRun:
    made = scale.RayRun(str(output), 1, model, caw.KGW(key=11), dtype="float32", options=OPTIONS)
    return replace(made, **changes)


def write(model: str, made: scale.RayRun, path: Path, rows: list[dict[str, Any]]) -> dict[str, int]:
    network, tokenizer = load_model(model, dtype="float32")
    ids = np.array([row["id"] for row in rows], dtype=object)
    return scale.write_shard(network, tokenizer, made, path, ids, [row["prompt"] for row in rows])


def test_shards_are_even_and_the_same_everywhere() -> None:
    assert [scale.shard_of(f"p{i}", 7) for i in range(3)] == [scale.shard_of(f"p{i}", 7) for i in range(3)]
    counts = Counter(scale.shard_of(i, 16) for i in range(16_000))
    assert stats.chisquare([counts[i] for i in range(16)]).pvalue > 1e-3 and len(counts) == 16


def test_a_shard_goes_on_after_a_line_cut_short(model: str, tmp_path: Path, expected: dict[str, str]) -> None:
    path, made = tmp_path / "shard-00000-of-00001.jsonl", job(model, tmp_path)
    assert write(model, made, path, PROMPTS[:5]) == {"written": 5, "errors": 0, "repeated": 0}
    path.write_bytes(path.read_bytes()[:-9])
    rows = [*PROMPTS, PROMPTS[0]]
    assert write(model, made, path, rows) == {"written": 8, "errors": 0, "repeated": 1}
    found = list(scale.read_output(tmp_path))
    assert {line["id"]: line["text"] for line in found} == expected and len(found) == 12
    assert found[0].keys() == {
        "id", "text", "tokens", "finish_reason", "key_id", "prompt_digest", "made",
    }  # fmt: skip


def test_a_shard_of_tested_texts_has_their_receipts(model: str, tmp_path: Path) -> None:
    options = {"max_new_tokens": 30, "detectable_at": 1e-2, "batch_size": 4}
    made = job(model, tmp_path / "a", options=options, policy=caw.FixedStrength(0.2))
    whole, cut = tmp_path / "a" / "shard-00000-of-00001.jsonl", tmp_path / "b" / "shard-00000-of-00001.jsonl"
    for path in (whole, cut):
        path.parent.mkdir()
    write(model, made, whole, PROMPTS)
    lines = [json.loads(line) for line in whole.read_bytes().splitlines()]
    assert max(line["receipt"]["attempts"] for line in lines) > 1 and all(line["receipt"]["digest"] for line in lines)
    third, _, first = whole.read_bytes().splitlines(keepends=True)[2::-1]
    cut.write_bytes(third + first[:-20])
    write(model, made, cut, PROMPTS[::-1])
    assert cut.read_bytes() == whole.read_bytes()
    assert made.label["options"]["detectable_at"] == "0.01" and "weights" not in made.label


def test_texts_are_tested_with_the_weights_of_the_job(model: str, tmp_path: Path) -> None:
    table = TokenWeights(np.arange(60000, dtype=np.uint8) % 16)
    made = job(model, tmp_path / "a", options={"max_new_tokens": 30, "detectable_at": 1e-2}, weights=table)
    path = tmp_path / "a" / "shard-00000-of-00001.jsonl"
    path.parent.mkdir()
    write(model, made, path, PROMPTS[:2])
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert {line["receipt"]["weights"]["digest"] for line in lines} == {table.digest} == {made.label["weights"]}
    options = {"max_new_tokens": 12, "detectable_at": 1e-6, "max_attempts": 1, "on_undetected": "raise"}
    strict = replace(made, options=options, policy=caw.FixedStrength(0.01), weights=None)
    with pytest.raises(ValueError, match="detectable at 1e-06, text 'p2' is not after 1 attempt "):
        write(model, strict, path, PROMPTS[:3])


def test_what_cannot_be_tested_is_refused_before_anything_starts(model: str, tmp_path: Path) -> None:
    for changes, message in (
        ({"options": {"detectable_at": 1e-3}, "watermark": None}, "requires a watermark, got None"),
        ({"options": {"detectable_at": 1e-3, "select": max}}, "select must be a name in caw.ray"),
        ({"options": {"best_of": 2}}, "best_of requires detectable_at"),
        ({"options": {"max_new_tokens": 0}}, r"max_new_tokens must be an integer in .* got 0"),
        (
            {"options": {"detectable_at": 0.1, "guard": caw.Guard(keeps=lambda old, new: True)}},
            "guard must keep what has a",
        ),
        ({"quantization": "int3"}, "quantization must be one of file, file-fast, fp8, int8, int4, got 'int3'"),
        ({"weights": TokenWeights(np.ones(4, dtype=np.uint8))}, "weights requires detectable_at"),
        ({"options": {"detectable_at": 1e-3}, "policy": caw.FixedStrength(0.0)}, "requires a policy that marks"),
    ):
        with pytest.raises(ValueError, match=message):
            job(model, tmp_path, **changes)


def test_actors_load_what_the_job_says(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(scale, "load_model", lambda name, **given: asked.append(given) or (None, None))
    for quantization, place in (("file", "cpu"), ("int8", None), (None, None)):
        scale.ShardActor(job(model, tmp_path, quantization=quantization))
        assert asked[-1] == {"device": place, "dtype": "float32", "quantization": quantization}


def test_an_actor_waits_while_another_writes_its_shard(model: str, tmp_path: Path) -> None:
    path, made = tmp_path / "shard-00000-of-00001.jsonl", job(model, tmp_path)
    write(model, made, tmp_path / "before.jsonl", PROMPTS[:1])
    [line] = map(json.loads, (tmp_path / "before.jsonl").read_bytes().splitlines())
    other, counts = JsonlWriter(path), list[dict[str, int]]()
    second = threading.Thread(target=lambda: counts.append(write(model, made, path, PROMPTS[:2])))
    second.start()
    other.write(line)
    other.close()
    second.join(timeout=120)
    assert counts == [{"written": 1, "errors": 0, "repeated": 0}]


def test_a_shard_of_other_prompts_or_numbers_is_refused(model: str, tmp_path: Path) -> None:
    path, made = tmp_path / "shard-00000-of-00001.jsonl", job(model, tmp_path)
    write(model, made, path, PROMPTS[:3])
    before = path.read_bytes()
    changed = [PROMPTS[0], {**PROMPTS[1], "prompt": "another"}, *PROMPTS[2:]]
    with pytest.raises(ValueError, match=f"text {PROMPTS[1]['id']!r} answers another prompt than the row with"):
        write(model, made, path, changed)
    with pytest.raises(ValueError, match="was made with dtype float32, this run has bfloat16; use the same settings"):
        write(model, replace(made, dtype="bfloat16"), path, PROMPTS)
    assert path.read_bytes() == before
    scale.begin(made)
    with pytest.raises(ValueError, match="was made with dtype float32, this run has auto"):
        scale.begin(replace(made, dtype="auto"))


def test_prompts_that_cannot_be_continued_are_lines_too(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, made = tmp_path / "shard-00000-of-00001.jsonl", job(model, tmp_path)
    rows = [{"id": np.int64(1), "prompt": ""}, {"id": np.int64(2), "prompt": None}]
    assert write(model, made, path, rows) == {"written": 2, "errors": 2, "repeated": 0}
    found = list(scale.read_output(tmp_path))
    assert [(line["id"], line["finish_reason"]) for line in found] == [(1, "error"), (2, "error")]
    assert all(line["error"] for line in found)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[::-1]) + b'{"text": "of no id"}\n')
    with monkeypatch.context() as full:
        full.setattr(os, "replace", Mock(side_effect=OSError(errno.EACCES, "Permission denied")))
        assert write(model, made, path, rows)["written"] == 0
    assert f"the lines of {path} are all written, and stay in the order in which they were: Permission" in caplog.text
    assert [line.get("id") for line in scale.read_output(tmp_path)] == [2, 1, None]
    assert write(model, made, path, rows)["written"] == 0
    assert [line.get("id") for line in scale.read_output(tmp_path)] == [None, 1, 2]


def test_a_folder_keeps_to_its_settings_and_holds_no_key(model: str, tmp_path: Path) -> None:
    secret = 123_456_789_123_456_789
    made = job(model, tmp_path, watermark=caw.KGW(key=secret))
    scale.begin(made)
    scale.begin(replace(made, options={**OPTIONS, "batch_size": 2}))
    assert str(secret) not in (tmp_path / "run.json").read_text()
    others = (
        {"watermark": caw.KGW(key=1)},
        {"shards": 2},
        {"policy": caw.FixedStrength(0.5)},
        {"quantization": "int8"},
    )
    for change in others:
        with pytest.raises(ValueError, match=r"was made with \w+ .*or another folder"):
            scale.begin(replace(made, **change))  # type: ignore[arg-type]


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'caw-watermark\[ray\]'"):
        scale.generate_dataset(PROMPTS, "nowhere", model="x")


PROGRAM = """
import sys
import ray, caw, caw.ray
model, source, output, shards = sys.argv[1:]
ray.init(num_cpus=3, include_dashboard=False, object_store_memory=100 << 20, logging_level="error")
print("STARTED", flush=True)
done = caw.ray.generate_dataset(
    source, output, model=model, watermark=caw.KGW(key=11), shards=int(shards), actors=2, dtype="float32",
    max_new_tokens=8, batch_size=4,
)
print("SUMMARY", done.written, done.total, done.errors, done.repeated, flush=True)
"""


@pytest.mark.slow
def test_two_actors_killed_and_started_again(model: str, tmp_path: Path, expected: dict[str, str]) -> None:
    pytest.importorskip("ray.data", reason="needs Ray; pip install 'caw-watermark[ray]'")
    source, output = tmp_path / "prompts.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    # this folder's copy of the package, and no accelerator of the machine's
    environment = {**os.environ, "PYTHONPATH": str(Path(caw.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    environment |= {"RAY_DATA_DISABLE_PROGRESS_BARS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    command = [sys.executable, "-c", PROGRAM, model, str(source), str(output), "4"]

    def lines() -> int:
        return sum(1 for _ in scale.read_output(output)) if output.is_dir() else 0

    first = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                             start_new_session=True)  # fmt: skip
    deadline = time.monotonic() + 400
    while lines() < 3 and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    kept = lines()
    second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert second.returncode == 0, second.stderr[-2000:]
    assert f"SUMMARY {12 - kept} 12 0 0" in second.stdout
    found = list(scale.read_output(output))
    assert len(found) == 12 and {line["id"]: line["text"] for line in found} == expected
    assert len([path for path in output.iterdir() if scale.SHARD.fullmatch(path.name)]) > 1


def test_a_shard_of_conversations(model: str, tmp_path: Path) -> None:
    """As Arrow hands them out: arrays of dictionaries that have all fields of all rows."""
    talk = [{"role": "system", "content": "be brief", "name": None}, {"role": "user", "content": "why", "name": "x"}]
    cells: list[Any] = [np.array(talk, dtype=object), "why", np.array([1, 2])]
    made = job(model, tmp_path, options={**OPTIONS, "chat": True})
    rows = [{"id": f"p{place}", "prompt": cell} for place, cell in enumerate(cells)]
    path = tmp_path / "shard-00000-of-00001.jsonl"
    assert write(model, made, path, rows) == {"written": 3, "errors": 1, "repeated": 0}
    network, tokenizer = load_model(model, dtype="float32")
    out = caw.generate(network, tokenizer, [talk, "why"], watermark=caw.KGW(key=11), chat=True, **OPTIONS)
    assert [line["text"] for line in scale.read_output(tmp_path)][:2] == out.texts
