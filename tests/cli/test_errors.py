"""Bad usage is one line on stderr and exit code 2; a bug of ours keeps its traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cli.running import assert_refused, generate, run
from tiny import save_tiny

pytestmark = pytest.mark.usefixtures("environment")

BAD_GENERATE = {
    "no prompt": ([], "one of --prompt and --input"),
    "two sources": (["--prompt", "x", "--input", "y"], "got both"),
    "no such file": (["--input", "none.jsonl"], "none.jsonl"),
    "resume nothing": (["--prompt", "x", "--resume"], "--output"),
    "no folder": (["--prompt", "x", "--output", "none/out.jsonl"], "folder"),
    "watermark": (["--prompt", "x", "--watermark", "red"], "kgw, unigram, exp, synthid, none"),
    "policy": (["--prompt", "x", "--policy", "luck"], "fixed, entropy"),
    "gamma": (["--prompt", "x", "--gamma", "1.5"], "gamma must be"),
    "unknown evaluator": (["--prompt", "x", "--policy", "capacity", "--evaluator", "none"], "evaluator must be"),
    "no number": (["--prompt", "x", "--policy", "entropy"], "--nats"),
    "a stranger's option": (["--prompt", "x", "--watermark", "exp", "--delta", "2"], "kgw and unigram"),
    "a stranger's policy option": (["--prompt", "x", "--policy", "fixed", "--theta", "0.5"], "policy capacity"),
    "no watermark, but delta": (["--prompt", "x", "--watermark", "none", "--delta", "2"], "--delta"),
    "no watermark, but a policy": (["--prompt", "x", "--watermark", "none", "--policy", "fixed"], "--policy is only"),
    "no watermark, but a target": (["--prompt", "x", "--watermark", "none", "--target", "0.1"], "--target is only"),
    "another watermark's option without its name": (
        ["--prompt", "x", "--strength-exp", "scale"],
        "leave it out, or give --watermark exp",
    ),
    "greedy, but a temperature": (["--prompt", "x", "--temperature", "0.7"], "add --sample"),
    "greedy, but top_k": (["--prompt", "x", "--greedy", "--top-k", "7"], "--top-k is only"),
    "dtype": (["--prompt", "x", "--dtype", "float8"], "dtype must be"),
    "device": (["--prompt", "x", "--device", "abacus"], "device must be"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_GENERATE)
def test_bad_generate(case: str, model: str, evaluator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, expected = BAD_GENERATE[case]
    assert_refused(generate(model, *(a.replace("EVALUATOR", evaluator) for a in arguments)), expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("no-such-model", "does not exist"), ("./none", "does not exist"), ("EMPTY", "config.json"), ("x.gguf", "no")],
)
def test_bad_models(name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = name.replace("EMPTY", str(tmp_path))
    assert_refused(generate(name, "--prompt", "x"), expected)
    assert_refused(run("detect", "--text", "x", "--tokenizer", name), expected)


def test_no_chat_template(tmp_path: Path) -> None:
    assert_refused(generate(str(save_tiny(tmp_path, chat=False)), "--prompt", "x", "--chat"), "chat template")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA")
def test_no_gpu(model: str) -> None:
    assert_refused(generate(model, "--prompt", "x", "--device", "cuda"), "CUDA")


def test_unknown_options_are_usage_errors(model: str) -> None:
    for arguments in (["--colour", "red"], ["--theta", "much"], ["--batch-size", "0"]):
        result = generate(model, "--prompt", "x", *arguments)
        assert result.exit_code == 2 and "Traceback" not in result.output and result.stdout == ""
    assert run("paint").exit_code == 2


def test_a_bug_of_ours_is_not_dressed_up(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from caw.cli import generate_command

    def broken(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(generate_command, "load_model", broken)
    assert isinstance(generate(model, "--prompt", "x").exception, AssertionError)


def test_traceback_on_request(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_TRACEBACK", "1")
    assert isinstance(generate(model, "--prompt", "").exception, ValueError)
