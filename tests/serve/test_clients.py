"""Real clients against `caw serve` with the demo model, in a process of its own: lm-eval and openai."""

from __future__ import annotations

import json
import os
import re
import site
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from serve.serving import NAME as TINY
from serve.serving import Running, parts
from serve.test_messages import CALLS_TEMPLATE

LM_EVAL = ("lm-eval==0.4.13", "aiohttp", "tenacity", "requests", "tqdm")
NAME, QUESTIONS = "smollm2-135m", 20
HELLO: Any = [{"role": "user", "content": "Why is the sky blue?"}]
PARAMETERS = {"type": "object", "properties": {"day": {"type": "integer"}}, "required": ["day"],
              "additionalProperties": False}  # fmt: skip
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}]
LOOK: Any = {"type": "function", "function": {"name": "look"}}
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

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0, timeout=120)

    def closed(self) -> list[dict[str, Any]]:
        """The closing lines so far."""
        lines = [json.loads(line) for line in self.receipts.read_text().splitlines()]
        return [line for line in lines if line["event"] == "closed"]


@pytest.fixture(scope="module")
def demo_server(tmp_path_factory: pytest.TempPathFactory, demo_tokenizer: Any) -> Iterator[Demo]:
    """demo_tokenizer: skips where the demo model is not installed."""
    receipts = tmp_path_factory.mktemp("served") / "receipts.jsonl"
    command = [sys.executable, "-m", "caw.cli", "serve", "--model", NAME, "--port", "0", "--receipts", str(receipts)]
    environment = {**os.environ, "CAW_KEY": "a key of the test's own", "HF_HUB_OFFLINE": "1"}
    environment.pop("CAW_REGISTRY", None)
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(r"listening at (http://\S+)", line):
            break
    else:
        pytest.fail(f"the server did not start: {''.join(said)}")
    threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True).start()
    try:
        yield Demo(found[1], receipts)
    finally:
        process.terminate()
        assert process.wait(60) == 0 and "Traceback" not in "".join(said), "".join(said)


@pytest.fixture(scope="module")
def lm_eval(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, in an environment of its own that finds this one's packages behind its own."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    ours = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))] or site.getsitepackages()
    (packages / "behind.pth").write_text("\n".join(ours))
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-compile", *LM_EVAL]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        *_, last = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
        pytest.skip(f"pip could not install {LM_EVAL[0]}: {last}")
    return folder / "bin" / "lm_eval"


def evaluate(program: Path, folder: Path, model: str, url: str, option: str) -> Any:
    """A run of lm-eval over a task of QUESTIONS questions; option: one more of `model_args`, or of its own."""
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
@pytest.mark.parametrize(
    "model, path, option",
    [
        ("local-chat-completions", "/v1/chat/completions", "--apply_chat_template"),
        ("local-completions", "/v1/completions", "tokenizer_backend=None"),
    ],
)
def test_lm_eval_has_every_question_answered(
    demo_server: Demo, lm_eval: Path, tmp_path: Path, model: str, path: str, option: str
) -> None:
    """Its messages have `"type": "text"`, which was refused."""
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


@pytest.mark.gate("clients")
def test_openai_is_answered(demo_server: Demo) -> None:
    """Whole, streamed and completed; every answer says that it is marked."""
    client = demo_server.client()
    asked: dict[str, Any] = {"model": NAME, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(messages=HELLO, **asked)
    text = whole.choices[0].message.content
    assert text and whole.to_dict()["caw"]["marked"]  # type: ignore[index]
    chunks = list(client.chat.completions.create(messages=HELLO, stream=True, **asked))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    said = whole.choices[0].message.model_dump()
    again = client.chat.completions.create(messages=[*HELLO, said, *HELLO], **asked)
    assert again.choices[0].message.content and again.usage and whole.usage
    assert again.usage.prompt_tokens > whole.usage.prompt_tokens + 24
    completed = client.completions.create(prompt="The sky is", **asked)
    assert completed.choices[0].text and completed.to_dict()["caw"]["marked"]  # type: ignore[index]


@pytest.mark.gate("clients")
def test_openai_is_told_what_is_not_served(demo_server: Demo) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    content: Any = [{"type": "text", "text": "what is this?"}, image]
    with pytest.raises(openai.BadRequestError, match="content parts of type 'image_url' are not supported") as caught:
        demo_server.client().chat.completions.create(model=NAME, messages=[{"role": "user", "content": content}])
    assert caught.value.param == "messages.0.content"


def streamed_call(client: openai.OpenAI, name: str) -> dict[str, Any]:
    """The message of a call, put together from a stream."""
    asked: dict[str, Any] = {"model": name, "temperature": 0, "max_tokens": 60, "tools": TOOLS, "tool_choice": LOOK}
    calls: list[dict[str, Any]] = []
    for chunk in client.chat.completions.create(messages=HELLO, stream=True, **asked):
        for call in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
            calls.append(call.model_dump())
    assert [call["index"] for call in calls] == [0] and isinstance(json.loads(calls[0]["function"]["arguments"]), dict)
    return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.gate("clients")
def test_openai_sends_a_streamed_call_back(demo_server: Demo) -> None:
    """The demo model's template has no place for calls, and that is what the client is told."""
    client = demo_server.client()
    said: Any = streamed_call(client, NAME)
    result: Any = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "rain"}
    with pytest.raises(openai.BadRequestError, match="the chat template has no place for calls"):
        client.chat.completions.create(model=NAME, messages=[*HELLO, said, result], max_tokens=8)


@pytest.mark.gate("clients")
def test_openai_sends_a_streamed_call_back_to_a_model_that_reads_it(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts()[1], "chat_template", CALLS_TEMPLATE)
    client = served.client()
    said: Any = streamed_call(client, TINY)
    result: Any = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "rain"}
    answer = client.chat.completions.create(model=TINY, messages=[*HELLO, said, result], max_tokens=8, temperature=0)
    assert answer.choices[0].finish_reason == "length"
