"""What gets installed: the packages, the weights, the program, and imports that ask for nothing optional."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import caw

ROOT = Path(__file__).resolve().parents[1]
needs_checkout = pytest.mark.skipif(not (ROOT / "setup.py").is_file(), reason="needs a checkout")

# runs in a fresh interpreter: what was imported, and whether a network or an optional package was asked for
PROBE = """
import json, socket, sys
for name in {blocked!r}:
    sys.modules[name] = None  # importing it now raises ImportError
def refuse(*args, **kwargs):
    raise AssertionError("the network was used")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import caw, caw.cli, caw.demo.page, caw.triton_kernels
print(json.dumps({{"caw": caw.__file__, "kernels": caw.triton_kernels.__file__,
                   "model": "transformers.models.llama.modeling_llama" in sys.modules}}))
"""


def probe(*, blocked: list[str], cwd: Path, path: Path | None = None) -> dict[str, str]:
    code = PROBE.format(blocked=blocked)
    if path is not None:
        code = f"import sys; sys.path.insert(0, {str(path)!r})\n{code}"
    # -I: neither the current folder nor PYTHONPATH helps
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_imports_without_optional_packages_or_network(tmp_path: Path) -> None:
    found = probe(blocked=["triton", "gguf", "accelerate", "sklearn", "openai", "ray", "datasets"], cwd=tmp_path)
    assert found["model"] is False
    package = Path(found["caw"]).parent
    # in the checkout, where the package is installed from it, they have a room of their own
    assert Path(found["kernels"]).parent in (package / "triton_kernels", package.parent / "triton_kernels")


@needs_checkout
def test_the_root_hides_no_kernels_of_triton(tmp_path: Path) -> None:
    """Engines look for Triton's own `triton_kernels`: ours must not answer. Started in the checkout's root Python finds
    the folder, unless the current folder stays out of the path."""
    code = "import caw.triton_kernels, importlib.util; print(importlib.util.find_spec('triton_kernels'))"
    safe = {**os.environ, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else ["-I"]), "-c", code]

    def answer(folder: Path) -> str:
        return subprocess.run(command, cwd=folder, env=safe, capture_output=True, text=True).stdout

    assert answer(ROOT) == answer(tmp_path) != ""


@pytest.mark.slow(seconds=12)
@needs_checkout
def test_what_is_built_is_complete_without_the_checkout(tmp_path: Path) -> None:
    """The Python part of a wheel, imported from where it was built: kernels inside, weights, marker file."""
    built = tmp_path / "built"
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(built)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    have = {str(p.relative_to(built)) for p in built.rglob("*") if p.is_file()}
    folders = ["caw", "caw_lab", "triton_kernels"]
    tracked = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if not tracked:
        pytest.skip("needs git to know which files belong to the project")
    tracked = [f"caw/{name}" if name.startswith("triton_kernels/") else name for name in tracked]
    wanted = {name for name in tracked if name.endswith(".py")}
    data = (
        "caw/evaluator/weights/",
        "caw_lab/training/everyday_prompts.jsonl",
        "caw/registry/templates/",
        "caw/serve/templates/",
    )
    wanted |= {name for name in tracked if name.startswith(data)} | {"caw/py.typed"}
    assert wanted <= have, sorted(wanted - have)
    assert any(name.endswith(".safetensors") for name in have)
    found = probe(blocked=[], cwd=tmp_path, path=built)
    assert Path(found["caw"]).is_relative_to(built)
    assert Path(found["kernels"]).parent == built / "caw" / "triton_kernels"


def test_version_and_program() -> None:
    assert importlib.metadata.version("caw-watermark") == caw.__version__
    [script] = [s for s in importlib.metadata.entry_points(group="console_scripts") if s.name == "caw"]
    assert script.value == "caw.cli:main" and callable(script.load())


def pins() -> list[tuple[Requirement, str]]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return [(r, str(r.specifier).removeprefix("==")) for r in requirements]


@needs_checkout
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_constraints_pin_what_is_asked_for(python: str) -> None:
    """Every dependency of the program, demo, tests and pages has exactly one pin, inside its declared range."""
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    pinned: dict[str, str] = {}
    for requirement, version in pins():
        if requirement.marker is None or requirement.marker.evaluate(environment):
            assert requirement.name not in pinned
            pinned[requirement.name] = version
    for line in importlib.metadata.requires("caw-watermark") or []:
        wanted = Requirement(line)
        extras = ("", "generate", "demo", "test", "gpu", "serve")
        if any(wanted.marker is None or wanted.marker.evaluate({**environment, "extra": e}) for e in extras):
            assert wanted.name == "caw-watermark" or pinned[wanted.name] in SpecifierSet(str(wanted.specifier)), line
    assert pinned["torch"] == "2.13.0"


@needs_checkout
def test_an_environment_with_an_engine_keeps_its_versions(tmp_path: Path) -> None:
    """pip would install nothing but this library where torch and transformers are, and asks for neither by itself."""
    dry = ["-m", "pip", "install", "--dry-run", "--no-index", "--no-build-isolation", "--quiet", "--report"]
    subprocess.run([sys.executable, *dry, tmp_path / "report.json", ROOT], check=True, capture_output=True)
    [ours] = json.loads((tmp_path / "report.json").read_text())["install"]
    needed = {r.name for r in map(Requirement, ours["metadata"]["requires_dist"]) if r.marker is None}
    assert "numpy" in needed and not needed & {"torch", "transformers", "vllm", "sglang"}


def test_python_that_starts_beside_a_folder_of_this_name_finds_the_package(tmp_path: Path) -> None:
    """As above a checkout that is installed to be edited, whose finder `setup.py` puts before the folders."""
    finders = [module for name, module in sys.modules.items() if name.startswith("__editable___caw")]
    if finders and not hasattr(finders[0], "_BesideFolder"):
        pytest.skip("needs an environment that this setup.py made; run `make setup`")
    (tmp_path / "caw" / "docs").mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    asked = [sys.executable, "-c", "import caw, caw_lab; print(caw.KGW(1).key_id)"]
    done = subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == caw.KGW(1).key_id, done.stderr
