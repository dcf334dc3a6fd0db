"""`caw label`: files that training reads, resuming, what is refused, and that neither key nor text gets out."""

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cli import running
from stand_in_endpoint import completion, segments, serve

from caw_lab.training.labels import read_labels

KEY = "sk-very-secret"
pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "toy").mkdir(parents=True)
    rows = [
        {"question": f"{i} + {i}?", "answer": f"It is {i}+{i}=<<{i}+{i}={2 * i}>>{2 * i}\n#### {2 * i}"}
        for i in range(10)
    ]
    (folder / "toy" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(data: Path, output: Path, *arguments: str, key: str | None = KEY) -> Any:
    environment: dict[str, Any] = {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": None}
    given = ("label", "--data-dir", str(data), "--dataset", "toy", "-o", str(output), *arguments)
    return running.run(*given, environment=environment)


def ask(data: Path, output: Path, url: str, *arguments: str, **settings: Any) -> Any:
    fixed = ("--labeler", "openai", "--model", "m", "--base-url", url, "--retries", "0", "--workers", "2", "--yes")
    return run(data, output, *fixed, *arguments, **settings)


def last_number(body: dict[str, Any]) -> str:
    return str(body["messages"][1]["content"].rsplit(" ", 1)[1])


def test_lexical_labels_are_read_by_training(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    done = run(data, output, "--limit", "4")
    assert done.exit_code == 0, done.stderr
    assert "holds 4 of 4" in done.stderr
    texts = read_labels(output, data)
    assert [t.index for t in texts] == [0, 1, 2, 3]
    assert [texts[2].solution[a:b] for a, b in texts[2].spans] == ["2+2=4", "4"]
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert all(set(line) == {"dataset", "split", "index", "spans"} for line in lines)
    assert json.loads(output.with_suffix(".json").read_text())["made_by"]["labeler"] == "lexical"


def test_resume_does_what_is_missing(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    assert run(data, output, "--limit", "3").exit_code == 0
    before = output.read_bytes()
    again = run(data, output)
    assert again.exit_code == 2 and "--resume" in again.stderr
    output.write_bytes(before + b'{"dataset": "toy", "sp')  # killed while it wrote
    assert run(data, output, "--resume").exit_code == 0
    assert output.read_bytes().startswith(before)
    assert [t.index for t in read_labels(output, data)] == list(range(10))
    other = run(data, output, "--resume", "--kinds", "numbers")
    assert other.exit_code == 2 and "resume with the same options" in other.stderr
    output.with_suffix(".json").unlink()
    assert "unknown labeler" in run(data, output, "--resume").stderr


def test_endpoint_labels_failures_and_resume(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    broken = {"6": completion(None, refusal="no"), "10": (500, {}), "14": completion("nonsense")}
    with serve(lambda body: broken.get(last_number(body), segments(last_number(body)))) as endpoint:
        done = ask(data, output, endpoint.url)
        assert done.exit_code == 1, done.stderr
        assert sorted(t.index for t in read_labels(output, data)) == [0, 1, 2, 4, 6, 8, 9]
        for name, reason in (("toy/train/3", "refused"), ("toy/train/5", "500"), ("toy/train/7", "expected JSON")):
            assert any(name in line and reason in line for line in done.stderr.splitlines())
        assert "endpoint usage:" in done.stderr and "holds 7 of 10" in done.stderr
        broken.clear()
        asked = len(endpoint.requests)
        again = ask(data, output, endpoint.url, "--resume")
        assert again.exit_code == 0, again.stderr
        assert len(endpoint.requests) == asked + 3
        nothing = ask(data, output, endpoint.url, "--resume")
        assert nothing.exit_code == 0 and len(endpoint.requests) == asked + 3
    assert sorted(t.index for t in read_labels(output, data)) == list(range(10))
    everything = output.read_text() + output.with_suffix(".json").read_text() + done.stderr + done.stdout
    assert KEY not in everything and "It is" not in everything


def test_interrupted_keeps_what_is_done(data: Path, tmp_path: Path) -> None:
    output, main, seen = tmp_path / "labels.jsonl", threading.main_thread().ident, list[str]()

    def script(body: dict[str, Any]) -> tuple[int, Any]:
        seen.append(last_number(body))
        if len(seen) == 5:
            time.sleep(0.2)  # the main thread writes the first four
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.2)
        return segments(last_number(body))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with serve(script) as endpoint:
            done = ask(data, output, endpoint.url, "--workers", "1")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.exit_code == 130, done.stderr
    assert "continue with --resume" in done.stderr
    assert 0 < len(read_labels(output, data)) < 10


def test_a_local_endpoint_needs_no_key_and_another_does(data: Path, tmp_path: Path) -> None:
    with serve(lambda body: segments(last_number(body))) as endpoint:
        assert ask(data, tmp_path / "a.jsonl", endpoint.url, "--limit", "1", key=None).exit_code == 0
    done = ask(data, tmp_path / "b.jsonl", "https://example.invalid/v1", key=None)
    assert done.exit_code == 2 and "OPENAI_API_KEY" in done.stderr


def test_the_run_must_be_confirmed(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    with serve(lambda body: segments("x")) as endpoint:
        done = run(data, output, "--labeler", "openai", "--model", "m", "--base-url", endpoint.url)
        assert done.exit_code == 2 and "add --yes" in done.stderr
        assert not endpoint.requests
    assert not output.exists() and not output.with_suffix(".json").exists()


def test_bad_input_is_named(data: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (("-o", "labels.json"), "must end in .jsonl"),
        (("--labeler", "human"), "labeler must be one of"),
        (("--labeler", "openai"), "requires --model"),
        (("--kinds", "verbs"), "got 'verbs'"),
        (("--dataset", "none"), "data file"),
    ):
        done = run(data, tmp_path / "labels.jsonl", *arguments)
        assert done.exit_code == 2 and message in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
