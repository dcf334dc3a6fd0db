"""The contract of imports holds, and a wrong import in any room breaks it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.every_case

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("importlinter")
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture
def sources(built: Path, tmp_path: Path) -> Path:
    ignore = shutil.ignore_patterns("*.safetensors", "__pycache__")
    shutil.copytree(built, tmp_path, ignore=ignore, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([*command, "--no-cache"], cwd=folder, env=environment, capture_output=True, text=True)


def test_imports_point_one_way(sources: Path) -> None:
    found = check(sources)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract["name"])
def test_a_wrong_import_in_any_room_is_found(contract: dict[str, Any], sources: Path) -> None:
    """Inside a function's body, in a file of the room that is neither its first nor its __init__ where it has more."""
    container = "".join(f"{name}." for name in contract.get("containers", ()))
    [top, *_], *lower = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
    below = [name for rooms in lower for name in rooms]
    for name in below:
        file = sources.joinpath(*f"{container}{name}.py".split(".")[:-1]).with_suffix(".py")
        if not file.exists():
            file = sorted(f for f in file.with_suffix("").rglob("*.py") if f.name != "__init__.py")[-1]
        with file.open("a") as source:
            source.write(f"\n\ndef _planted() -> None:\n    import {container}{top}\n")
    found = check(sources)
    assert found.returncode == 1
    missed = [n for n in below if f"{container}{n} is not allowed to import {container}{top}" not in found.stdout]
    assert not missed, found.stdout


def test_rooms_on_one_line_do_not_know_each_other(sources: Path) -> None:
    package = sources / "caw"
    for name, other in (
        ("benchmark/sizes", "caw.demo.page"),
        ("lazy", "caw.checks"),
        ("decoding/prefill", "caw.decoding.step"),
    ):
        with (package / f"{name}.py").open("a") as source:
            source.write(f"\n\ndef _planted() -> None:\n    import {other}\n")
    found = check(package.parent)
    assert found.returncode == 1
    for pair in ("caw.benchmark {} caw.demo", "caw.lazy {} caw.checks", "caw.decoding.prefill {} caw.decoding.step"):
        assert pair.format("is not allowed to import") in found.stdout, found.stdout


def test_a_new_room_has_to_be_placed(sources: Path) -> None:
    package = sources / "caw"
    (package / "attic.py").write_text("import caw.cli\n")
    found = check(package.parent)
    assert found.returncode == 1 and "attic" in found.stdout
