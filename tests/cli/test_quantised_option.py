"""`--quantised`: the same option everywhere, what it asks for reaches the loading, and refusals come before it."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from cli.running import assert_refused, run

import caw
from caw import ops
from caw.cli import evaluate_perplexity_command
from caw.evaluation import config

pytestmark = [
    pytest.mark.usefixtures("environment"),
    pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension"),
]
COMMANDS = {
    "caw.cli.generate_command": ["generate", "--prompt", "x"],
    "caw.cli.demo_command": ["demo", "--evaluator", "EVALUATOR"],
    "caw.cli.tune_command": ["tune", "--prompt", "x", "--evaluator", "EVALUATOR", "--protect", "0.5"],
    "caw.cli.serve_command": ["serve"],
    "caw.cli.evaluate_perplexity_command": ["evaluate", "perplexity", "."],
    "caw.cost.subjects": ["benchmark"],
}


@pytest.mark.parametrize("module", COMMANDS)
def test_it_reaches_the_loading(module: str, model: str, evaluator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_model(name: str, **given: Any) -> Any:
        raise ValueError(f"asked for {name} on {given['device']} with {given['weights']}")

    monkeypatch.setattr(importlib.import_module(module), "load_model", load_model)
    monkeypatch.setattr(evaluate_perplexity_command, "config_of_run", lambda run: SimpleNamespace(plan=list))
    monkeypatch.setattr(config, "choose_plans", lambda plans, only: [])
    flag = "--quantised/--weights" if module == "caw.cost.subjects" else "--quantised"
    command = [part.replace("EVALUATOR", evaluator) for part in COMMANDS[module]] + ["--model", model]
    for given, said in (
        (["file"], f"{flag}='file' is for a .gguf file, found another model; use 'int8' or 'int4'"),
        (["int8", "--device", "cpu"], f"asked for {model} on cpu with int8"),
    ):
        result = run(*command, "--quantised", *given)
        assert result.exit_code == 2 and result.stderr.splitlines()[-1] == f"caw: {said}"  # serve speaks before


def test_texts_are_those_of_the_library(model: str) -> None:
    texts = [
        run("generate", "--model", model, "--prompt", "the sky", "--watermark", "none", "--device", "cpu",
            "--max-new-tokens", "40", *more).stdout
        for more in (("--quantised", "int4"), ("--dtype", "float32"))
    ]  # fmt: skip
    loaded = caw.load_model(model, device="cpu", weights="int4")
    ours = caw.generate(*loaded, "the sky", max_new_tokens=40, progress=False).texts[0]
    assert texts[0].strip() == ours.strip() and texts[0] != texts[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--quantised", "int3"],
            "--quantised/--weights must be one of file, file-fast, fp8, int8, int4, got 'int3'; leave it",
        ),
        (["--quantised", "int8", "--dtype", "bfloat16"], "found bfloat16 on cpu; leave dtype out and load with"),
        (["--quantised", "fp8"], "--quantised/--weights='fp8' is for a GPU, found cpu"),
        (["--quantised", "int8", "--shapes", "tiny"], "--quantised/--weights with --shapes is for a GPU, found cpu"),
    ],
)
def test_what_does_not_go_together_is_refused(options: list[str], said: str, model: str) -> None:
    assert_refused(run("benchmark", "--model", model, "--device", "cpu", *options), said)


def test_blocks_of_a_file_are_read_on_a_cpu(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a GPU would be the usual place, nobody has to name the CPU."""
    from caw.cli import options, quantised_option

    monkeypatch.setattr(options, "resolve_device", lambda device: device or "cuda")
    place = quantised_option.prepare_place
    assert place("x.gguf", None, None, "auto", "file") == "cpu"
    assert place("x.gguf", None, None, "auto", None) == "cuda"
    with pytest.raises(ValueError, match="--quantised='file' computes in float32 on a CPU, found auto on cuda"):
        place("x.gguf", "cuda", None, "auto", "file")
