"""Starting is instant: what may be imported, counted in modules, since seconds depend on the machine."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from cli.running import run
from tiny import save_tiny

from caw.cli.program import COMMANDS, GROUPS, LazyCommand

HEAVY = {
    "torch", "transformers", "numpy", "scipy", "sklearn", "matplotlib", "triton", "pandas", "tokenizers", "safetensors",
    "openai", "ray", "datasets", "huggingface_hub", "yaml", "sqlalchemy", "cryptography",
}  # fmt: skip
NAMES = [*COMMANDS, *(f"{group} {name}" for group, names in GROUPS.items() for name in names)]
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
    """What the program has imported when it ends."""
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


def test_a_detector_imports_no_transformers() -> None:
    loaded = modules_of_import("caw.detection")
    assert "torch" in loaded and "scipy.special" in loaded
    assert loaded & (HEAVY | {"rich", "typer"}) == {"torch", "numpy", "scipy", "safetensors"}
    assert not loaded & {"scipy.stats", "scipy.optimize", "scipy.integrate", "caw.models", "caw.decoding"}


def test_detection_of_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer is read without transformers, tails are computed without the slow parts of scipy."""
    monkeypatch.setenv("CAW_KEY", "1")
    model = str(save_tiny(tmp_path / "model"))
    loaded = modules_after("detect", "--tokenizer", model, "--text", "the sky is blue because the air scatters light")
    assert loaded & HEAVY == {"torch", "numpy", "scipy", "safetensors", "tokenizers"}
    assert not {
        m for m in loaded if m.startswith(("scipy.stats", "scipy.optimize", "scipy.integrate", "torch._dynamo"))
    }
    assert not {m for m in loaded if m.startswith(("caw.decoding", "caw_lab.evaluation", "caw.entrance"))}


@pytest.mark.parametrize("name", NAMES)
def test_the_list_says_what_the_command_says(name: str) -> None:
    words = name.split()
    group, command = (GROUPS[words[0]], words[1]) if " " in name else (COMMANDS, name)
    lazy: LazyCommand = group[command]
    function = getattr(importlib.import_module(lazy.module), lazy.function)
    first = (inspect.getdoc(function) or "").split("\n\n")[0]
    assert lazy.summary == " ".join(first.split())
    shown = run(*name.split()[:-1], "--help").stdout
    assert command in shown and lazy.summary.split()[0] in shown


def test_suggestions_and_unknown_commands() -> None:
    result = run("genrate")
    assert result.exit_code == 2 and "generate" in result.stderr
    result = run("evaluate", "rum")
    assert result.exit_code == 2 and "run" in result.stderr


def test_a_module_that_fails_to_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = LazyCommand("caw.cli.no_such_command", "nothing", "Fails.")
    with pytest.raises(ModuleNotFoundError, match="no_such_command"):
        broken.load("nothing")
    assert isinstance(COMMANDS["detect"].load("detect"), typer.core.TyperCommand)
