"""The program itself: what starting it imports (seconds depend on the machine), help, version, a reader that leaves."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.running import KEY, run, write_prompts
from tiny import save_tiny

import caw
from caw.cli import program
from caw.cli.program import COMMANDS, GROUPS
from caw.registry.master_key import new_master_key

pytestmark = [pytest.mark.usefixtures("environment"), pytest.mark.every_case]
HEAVY = {
    "torch", "transformers", "numpy", "scipy", "sklearn", "matplotlib", "triton", "pandas", "tokenizers", "safetensors",
    "openai", "ray", "datasets", "huggingface_hub", "yaml", "sqlalchemy", "cryptography",
}  # fmt: skip
NAMES = [*COMMANDS, *(f"{name} {command}" for name, group in GROUPS.items() for command in group.commands)]
PROGRAM = """
import json, sys
from caw.cli import main
sys.argv = ["caw", *{arguments}]
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def modules_of(script: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def modules_after(*arguments: str) -> set[str]:
    return modules_of(PROGRAM.format(arguments=list(arguments)))


def modules_of_import(name: str) -> set[str]:
    return modules_of(f"import {name}, json, sys; print(json.dumps(sorted(sys.modules)), file=sys.stderr)")


def test_the_library_alone_imports_nothing() -> None:
    bare = modules_of("import json, sys; print(json.dumps(sorted(sys.modules)), file=sys.stderr)")
    added = modules_of_import("caw") - bare
    assert added <= {"caw", "caw.lazy", "__future__"}, added


def test_version() -> None:
    loaded = modules_after("--version")
    assert loaded & {*HEAVY, "rich"} == set()
    assert {m for m in loaded if m.startswith("caw")} == {
        "caw", "caw.lazy", "caw.cli", "caw.cli.program", "caw.cli.interrupts",
        "caw.requirements", "caw_lab", "caw_lab.cli",
    }  # fmt: skip


def test_help_imports_no_command() -> None:
    loaded = modules_after("--help")
    assert loaded & HEAVY == set()
    assert not {m for m in loaded if m.endswith("_command")}


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command(name: str) -> None:
    loaded = modules_after(*name.split(), "--help")
    assert loaded & HEAVY == set()
    # its own module, and one whose helpers it shares
    assert len({m for m in loaded if m.endswith("_command")}) <= 2


def test_a_detector_imports_neither_torch_nor_transformers() -> None:
    loaded = modules_of_import("caw.detection")
    assert "scipy.special" in loaded
    assert loaded & (HEAVY | {"rich", "typer"}) <= {"numpy", "scipy", "safetensors"}
    assert not loaded & {"scipy.stats", "scipy.optimize", "scipy.integrate", "caw.models", "caw.decoding"}


def test_detection_of_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_KEY", "1")
    model = str(save_tiny(tmp_path / "model"))
    loaded = modules_after("detect", "--tokenizer", model, "--text", "the sky is blue because the air scatters light")
    assert loaded & HEAVY == {"numpy", "scipy", "safetensors", "tokenizers"}
    assert not {
        m for m in loaded if m.startswith(("scipy.stats", "scipy.optimize", "scipy.integrate", "torch._dynamo"))
    }
    assert not {m for m in loaded if m.startswith(("caw.decoding", "caw_lab.evaluation", "caw.entrance"))}


@pytest.mark.skipif(bool(caw.ops.missing_extension()), reason="requires the compiled extension:")
def test_a_second_start_imports_no_modelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_KEY", "1")
    model = str(save_tiny(tmp_path / "model"))
    asked = ("generate", "--model", model, "--prompt", "a small", "--max-new-tokens", "2", "--dtype", "float32")
    first, second = (modules_after(*asked, "--device", "cpu") for _ in range(2))
    heavy = {"transformers.modeling_utils", "torch._dynamo", "torch.distributed.tensor", "scipy.optimize", "sympy"}
    assert "transformers.modeling_utils" in first
    assert "caw.decoding.step" in second and not second & heavy


def test_a_new_key_imports_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_REGISTRY", f"sqlite:///{tmp_path / 'keys.db'}")
    monkeypatch.setenv("CAW_MASTER_KEY", new_master_key())
    for command in ("create", "rotate"):
        loaded = modules_after("keys", command, "acme")
        assert "sqlalchemy" in loaded and not loaded & {"torch", "transformers", "scipy", "caw.decoding"}


def test_suggestions_and_unknown_commands() -> None:
    result = run("genrate")
    assert result.exit_code == 2 and "generate" in result.stderr
    result = run("evaluate", "rum")
    assert result.exit_code == 2 and "run" in result.stderr


def test_commands_of_a_package_that_fails_to_load_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = importlib.metadata.EntryPoint("lab", "no_such_package:GROUPS", program.ENTRY_POINTS)
    monkeypatch.setattr(program, "entry_points", lambda group: [broken])
    assert program.installed_groups() == {}
    assert "the commands of no_such_package:GROUPS cannot be loaded (No module named" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", *NAMES])
def test_help_has_examples_and_no_key(command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout and f"caw {command}".strip() in result.stdout
    assert KEY not in result.output


@pytest.mark.slow
def test_the_program_ends_quietly_when_nobody_reads(model: str, tmp_path: Path) -> None:
    source = write_prompts(tmp_path / "prompts.jsonl", 30)
    command = f"{sys.executable} -m caw.cli generate --model {model} --input {source} --max-new-tokens 8 --threads 1"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -n 1"],
        capture_output=True,
        text=True,
        env={**os.environ, "CAW_KEY": KEY},
        check=False,
    )
    assert len(done.stdout.splitlines()) == 1 and "Traceback" not in done.stderr
