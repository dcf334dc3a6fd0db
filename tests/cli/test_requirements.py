"""A command that will need a package says so at once: exit code 2, nothing read by a model, nothing written."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.running import assert_refused, run

from caw.requirements import PACKAGES, namesake

pytestmark = pytest.mark.usefixtures("environment")

TRAINING = ["--model", "MODEL", "--labels", "labels.jsonl", "--data-dir", ".", "--positions", "positions"]
CASES: dict[str, tuple[str, list[str]]] = {
    "train-evaluator": ("scikit-learn", ["train-evaluator", *TRAINING, "-o", "weights.safetensors"]),
    "evaluate evaluator": ("scikit-learn", ["evaluate", "evaluator", *TRAINING, "--json", "out.json"]),
    "evaluate run": ("scikit-learn", ["evaluate", "run", "--config", "run.yaml"]),
    "evaluate run --config": ("pyyaml", ["evaluate", "run", "--config", "run.yaml"]),
    "evaluate run, a .gguf file": ("gguf", ["evaluate", "run", "--config", "gguf.yaml"]),
    "evaluate run, a hub's data": ("datasets", ["evaluate", "run", "--config", "hub.yaml"]),
    "evaluate run, payload": ("reedsolo", ["evaluate", "run", "--config", "payload.yaml"]),
    "evaluate attack": ("scikit-learn", ["evaluate", "attack", "run", "--attack", "word-d:0.1"]),
    "evaluate attack, config": ("pyyaml", ["evaluate", "attack", "run", "--attack", "word-d:0.1"]),
    "evaluate perplexity": ("pyyaml", ["evaluate", "perplexity", "run", "--model", "MODEL"]),
    "evaluate report": ("matplotlib", ["evaluate", "report", "run", "-o", "report"]),
    "evaluate report --anew": ("scikit-learn", ["evaluate", "report", "run", "-o", "report", "--anew"]),
    "detection-weights": (
        "pyyaml",
        ["detection-weights", "--tokenizer", "MODEL", "-i", "marked.jsonl", "--config", "keys.yaml", "-o", "w.st"],
    ),
    "detect --config": ("pyyaml", ["detect", "--tokenizer", "MODEL", "--text", "x", "--config", "keys.yaml"]),
    "detect --qq": (
        "matplotlib", ["detect", "--tokenizer", "MODEL", "--null-report", "marked.jsonl", "--qq", "qq.png"],
    ),
    "detect --payload-bits": ("reedsolo", ["detect", "--tokenizer", "MODEL", "--text", "x", "--payload-bits", "8"]),
    "generate --payload": (
        "reedsolo",
        ["generate", "--model", "MODEL", "--prompt", "x", "--payload", "3", "--payload-bits", "8", "-o", "out.jsonl"],
    ),
    "generate, a .gguf file": ("accelerate", ["generate", "--model", "late.gguf", "--prompt", "x", "-o", "out.jsonl"]),
    "serve": ("fastapi", ["serve", "--model", "MODEL"]),
    "label": (
        "openai",
        ["label", "--data-dir", ".", "--labeler", "openai", "--model", "m", "-o", "new.jsonl", "--yes"],
    ),
}  # fmt: skip


def write_configs(folder: Path, model: str) -> None:
    base: dict[str, Any] = {
        "output": "run", "keys": 1, "generation": {"max_new_tokens": 4},
        "models": {"tiny": {"source": model, "dtype": "float32"}},
        "tasks": {"mine": {"kind": "jsonl", "path": "q.jsonl", "grade": "contains"}},
        "watermarks": {"kgw": {"kind": "kgw"}}, "policies": {"hard": {"kind": "fixed"}},
    }  # fmt: skip
    configs = {
        "run": base,
        "gguf": {**base, "models": {**base["models"], "late": {"source": "late.gguf"}}},
        "hub": {**base, "tasks": {**base["tasks"], "gsm8k": {"count": 2}}},
        "payload": {**base, "watermarks": {"kgw": {"kind": "kgw", "payload": 3, "payload_bits": 8}}},
    }
    for name, config in configs.items():
        (folder / f"{name}.yaml").write_text(json.dumps(config))


@pytest.fixture
def folder(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the commands above name, and no way to a model's weights."""
    write_configs(tmp_path, model)
    (tmp_path / "q.jsonl").write_text('{"prompt": "the sky", "answer": "a"}\n')
    (tmp_path / "marked.jsonl").write_text('{"text": "the sky is blue", "tokens": [1, 2], "key_id": "x"}\n')
    (tmp_path / "labels.jsonl").write_text("")
    (tmp_path / "keys.yaml").write_text("watermarks: [{watermark: kgw, key: 1}]\n")
    (tmp_path / "late.gguf").write_bytes(b"GGUF")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text((tmp_path / "run.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    def refuse(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", refuse)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", CASES)
def test_said_before_anything_is_done(case: str, folder: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, arguments = CASES[case]
    before = contents(folder)
    monkeypatch.setitem(sys.modules, PACKAGES[package][0], None)
    result = run(*(model if argument == "MODEL" else argument for argument in arguments))
    assert_refused(result, f"caw: {package} is required for ")
    assert f"pip install 'caw-watermark[{PACKAGES[package][1]}]'" in result.stderr
    assert contents(folder) == before


def test_a_namesake_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another project publishes a distribution "caw"; installed beside this one, its files replace ours."""
    assert not namesake() and run("keys", "--help").stderr == ""
    (tmp_path / "caw-0.8.0.dist-info").mkdir()
    (tmp_path / "caw-0.8.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: caw\nVersion: 0.8.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "pip uninstall caw" in namesake() and namesake() in run("keys", "--help").stderr
