"""`--quantization`: the same option everywhere, what it asks for reaches the loading, and refusals come before it."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli.running import KEY, assert_refused, run

import caw
from caw import ops
from caw_lab.cli import evaluate_perplexity_command
from caw_lab.evaluation import config

pytestmark = [
    pytest.mark.usefixtures("environment"),
    pytest.mark.skipif(bool(ops.missing_extension()), reason="requires the compiled extension:"),
]
LABELLED = ["--labels", "FOLDER/labels.jsonl", "--data-dir", "FOLDER"]
# what each command loads its model with, and what it needs besides one
COMMANDS = {
    "generate": ("caw.models.load", ["--prompt", "x"]),
    "demo": ("caw.models.load", ["--evaluator", "EVALUATOR"]),
    "tune": ("caw.models.load", ["--prompt", "x", "--evaluator", "EVALUATOR", "--protect", "0.5"]),
    "serve": ("caw.models.load", []),
    "evaluate perplexity": ("caw.models.load", ["."]),
    "evaluate evaluator": ("caw_lab.training.pipeline", ["--evaluator", "EVALUATOR", *LABELLED]),
    "train-evaluator": ("caw_lab.training.pipeline", ["-o", "FOLDER/w.safetensors", *LABELLED]),
    "detection-weights": (
        "caw.models.load",
        ["-i", "FOLDER/marked.jsonl", "--config", "FOLDER/keys.yaml", "-o", "FOLDER/c"],
    ),
    "detect": ("caw.models.load", ["--text", "x"]),
    "benchmark": ("caw.benchmark.subjects", []),
}
NAMED = {"detection-weights": ["--reader", "MODEL"], "detect": ["--weights", "model:MODEL"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A labelled text, and a line that says how it was marked with the key beside it."""
    made, mark = tmp_path_factory.mktemp("inputs"), caw.KGW(key=KEY)
    (made / "toy").mkdir()
    (made / "toy" / "train.jsonl").write_text('{"question": "1 + 1?", "answer": "so 2 it is\\n#### 2"}\n')
    (made / "labels.jsonl").write_text('{"dataset": "toy", "split": "train", "index": 0, "spans": [[3, 4]]}\n')
    (made / "keys.yaml").write_text(f"watermarks: [{{name: a, key: {KEY}}}]")
    line = {"tokens": [1, 2], "key_id": mark.key_id, "watermark": {"name": "kgw"}, "policy": {"name": "fixed"}}
    (made / "marked.jsonl").write_text(json.dumps(line) + "\n")
    return made


@pytest.mark.parametrize("command", COMMANDS)
def test_it_reaches_the_loading(
    command: str, model: str, evaluator: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_model(name: str, **given: Any) -> Any:
        raise ValueError(f"asked for {name} on {given['device']} with {given['quantization']}")

    module, needed = COMMANDS[command]
    loading = "load_for_command" if module == "caw.models.load" else "load_model"
    monkeypatch.setattr(importlib.import_module(module), loading, load_model)
    monkeypatch.setattr(evaluate_perplexity_command, "config_of_run", lambda run: SimpleNamespace(plan=list))
    monkeypatch.setattr(config, "choose_plans", lambda plans, only: [])
    flag = "--quantization"
    asked = [*command.split(), *needed, *NAMED.get(command, ["--model", "MODEL"])]
    for word, value in (("EVALUATOR", evaluator), ("FOLDER", str(folder)), ("MODEL", model)):
        asked = [part.replace(word, value) for part in asked]
    for given, said in (
        (["file"], f"{flag}='file' is for a .gguf file, found another model; use 'int8' or 'int4'"),
        (["int8", "--device", "cpu"], f"asked for {model} on cpu with int8"),
    ):
        result = run(*asked, "--quantization", *given)
        assert result.exit_code == 2 and result.stderr.splitlines()[-1] == f"caw: {said}"  # serve speaks before


def test_where_nothing_is_loaded_it_is_refused() -> None:
    for asked, said in (
        (["detection-weights", "--like", "x", "-o", "w.safetensors"], "--quantization require --reader"),
        (["detect", "--text", "x"], "--quantization requires --weights model:NAME; add it"),
    ):
        assert_refused(run(*asked, "--quantization", "int8"), said)


def test_texts_are_those_of_the_library(model: str) -> None:
    texts = [
        run("generate", "--model", model, "--prompt", "the sky", "--watermark", "none", "--device", "cpu",
            "--max-new-tokens", "40", *more).stdout
        for more in (("--quantization", "int4"), ("--dtype", "float32"))
    ]  # fmt: skip
    loaded = caw.load_model(model, device="cpu", quantization="int4")
    ours = caw.generate(*loaded, "the sky", max_new_tokens=40, progress=False).texts[0]
    assert texts[0].strip() == ours.strip() and texts[0] != texts[1]


def test_blocks_of_a_file_are_read_on_a_cpu(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from caw.cli import place as module
    from caw.cli.place import Place

    monkeypatch.setattr(module, "resolve_device", lambda device: device or "cuda")
    assert Place(quantization="file").prepare("x.gguf") == "cpu"
    assert Place().prepare("x.gguf") == "cuda"
    with pytest.raises(ValueError, match="--quantization='file' computes in float32 on a CPU, found auto on cuda"):
        Place(device="cuda", quantization="file").prepare("x.gguf")
