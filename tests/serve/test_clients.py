"""lm-eval against `caw serve` with the demo model, in a process of its own."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from environments import environment
from serve.serving import Process

LM_EVAL = ("lm-eval==0.4.13", "aiohttp", "tenacity", "requests", "tqdm")
NAME, QUESTIONS = "smollm2-135m", 20
TASK = """\
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: sums.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n", "Question:"], max_gen_toks: 12, do_sample: false, temperature: 0.0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@dataclass
class Demo:
    """A server with the demo model. url: its address. receipts: its file."""

    url: str
    receipts: Path

    def closed(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.receipts.read_text().splitlines()]
        return [line for line in lines if line["event"] == "closed"]


@pytest.fixture(scope="module")
def demo_server(tmp_path_factory: pytest.TempPathFactory, demo_tokenizer: Any) -> Iterator[Demo]:
    """demo_tokenizer: skips where the demo model is not installed."""
    receipts = tmp_path_factory.mktemp("served") / "receipts.jsonl"
    with Process("--model", NAME, "--receipts", str(receipts), CAW_KEY="a key of the test's own") as server:
        yield Demo(server.url, receipts)
        server.stop()
        assert "Traceback" not in "".join(server.said)


@pytest.fixture(scope="module")
def lm_eval(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, in an environment of its own that finds this one's packages behind its own."""
    return environment(tmp_path_factory.mktemp("environment"), *LM_EVAL).with_name("lm_eval")


def evaluate(program: Path, folder: Path, model: str, url: str, option: str) -> Any:
    sums = [{"question": f"What is {n} plus 2?", "answer": str(n + 2)} for n in range(QUESTIONS)]
    (folder / "sums.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in sums))
    (folder / "sums.yaml").write_text(TASK)
    arguments = f"model={NAME},base_url={url},num_concurrent=4,max_retries=1"
    more = [arguments, option] if option.startswith("--") else [f"{arguments},{option}"]
    command = [str(program), "run", "--model", model, "--model_args", *more, "--tasks", "sums",
               "--include_path", str(folder), "--output_path", str(folder / "out"), "--log_samples"]  # fmt: skip
    own = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    return subprocess.run(command, env={**os.environ, **own}, cwd=folder, capture_output=True, text=True)


@pytest.mark.gate("clients")
@pytest.mark.parametrize("model, path, option", [
    ("local-chat-completions", "/v1/chat/completions", "--apply_chat_template"),
    ("local-completions", "/v1/completions", "tokenizer_backend=None"),
])  # fmt: skip
def test_lm_eval_has_every_question_answered(
    demo_server: Demo, lm_eval: Path, tmp_path: Path, model: str, path: str, option: str
) -> None:
    before = len(demo_server.closed())
    done = evaluate(lm_eval, tmp_path, model, demo_server.url + path, option)
    assert done.returncode == 0, done.stderr
    [results] = (tmp_path / "out").rglob("results_*.json")
    counted = json.loads(results.read_text())["n-samples"]["sums"]
    assert counted == {"original": QUESTIONS, "effective": QUESTIONS}
    [samples] = (tmp_path / "out").rglob("samples_*.jsonl")
    answers = [json.loads(line)["resps"][0][0] for line in samples.read_text().splitlines()]
    assert len(answers) == QUESTIONS and all(isinstance(answer, str) and answer.strip() for answer in answers)
    closed = demo_server.closed()[before:]
    assert len(closed) == QUESTIONS and all(line["ending"] == "complete" for line in closed)
