"""The CUDA sources compile for every architecture of the wheel; the fuzzer runs; failures leave their reason."""

import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from caw import _ext

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.gate("cuda")
def test_cuda_sources_compile() -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    script = ROOT / "csrc" / "compile_cuda.py"
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
    lines = found.stdout.splitlines()
    assert [line.split(":")[0].split()[-1] for line in lines] == ["sm_80", "sm_90", "sm_100"] * (len(lines) // 3)
    assert lines and all(line.endswith(" 0 with spills") for line in lines)


def test_a_short_run_of_the_fuzzer() -> None:
    script = Path(__file__).with_name("fuzz.py")
    found = subprocess.run([sys.executable, str(script), "1"], capture_output=True, text=True, cwd=script.parent)
    assert found.returncode == 0, found.stdout + found.stderr[-2000:]


def test_a_missing_extension_says_why_and_what_to_do() -> None:
    reason = _ext._load("_no_such_extension")
    assert "_no_such_extension is not installed; build it with `pip install" in reason


def imported(folder: Path, modules: str = "caw.ops", **environment: str) -> subprocess.CompletedProcess[str]:
    package = folder / "caw"
    package.mkdir(exist_ok=True)
    for entry in (*(ROOT / "caw").iterdir(), ROOT / "triton_kernels"):
        if not entry.name.startswith("_C") and not (package / entry.name).exists():
            (package / entry.name).symlink_to(entry)
    # -S: an editable install would find the library of the checkout
    code = (
        f"import sys; sys.path[:] = {[str(folder), *(path for path in sys.path if path)]!r}\n"
        f"import {modules}, torch\n"
        "print(caw.ops.topk_softmax(torch.arange(5.0)[None], 2)[1].tolist())"
    )
    environ = {**os.environ, "CAW_EXT": "", **environment}
    return subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=environ, cwd=folder)


def test_an_extension_of_other_schemas_is_not_loaded(tmp_path: Path) -> None:
    """Its kernels would read an integer as a tensor and give wrong numbers."""
    built = importlib.util.find_spec("caw._C")
    if built is None or built.origin is None:
        pytest.skip("needs the compiled extension")
    (tmp_path / "caw").mkdir()
    own = f"caw operator schemas {_ext.SCHEMAS};".encode()
    content = Path(built.origin).read_bytes()
    assert content.count(own) == 1
    (tmp_path / "caw" / Path(built.origin).name).write_bytes(content.replace(own, own.replace(b"schemas", b"SCHEMAS")))
    found = imported(tmp_path)
    assert found.returncode == 0 and found.stdout == "[[4, 3]]\n", found.stderr
    assert "_C was built for operator schemas of another version; build it with" in found.stderr
    required = imported(tmp_path, CAW_EXT="require")
    assert required.returncode == 1 and "was built for operator schemas" in required.stderr


@pytest.mark.slow(seconds=10)
def test_the_import_says_once_why_the_extension_is_missing_and_works_without(tmp_path: Path) -> None:
    found = imported(tmp_path, modules="caw.ops, caw.entrance")
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "[[4, 3]]"
    assert found.stderr.count("extension _C is not installed; build it with `pip install") == 1
    (tmp_path / "caw" / "_C.failed.txt").write_text("no compiler\n")
    assert imported(tmp_path).stderr.count("extension _C was not built: no compiler; build it with") == 1
    required = imported(tmp_path, CAW_EXT="require")
    assert required.returncode == 1
    assert required.stderr.splitlines()[-1].startswith("ImportError: caw's compiled extension _C was not built")


def test_the_toolkit_is_the_first_with_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch took /usr/local for an nvcc that was a script in /usr/local/bin, and the link ended without -lcudart."""
    find = runpy.run_path(str(ROOT / "csrc" / "cuda_home.py"))["cuda_home"]
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))

    def found(*toolkits: str) -> str | None:
        for name in toolkits:
            (tmp_path / name / "lib64").mkdir(parents=True)
            (tmp_path / name / "lib64" / "libcudart.so").touch()
        home = find(tmp_path, ["UNSET", "TOLD"])
        return None if home is None else Path(home).name

    (tmp_path / "cuda" / "bin").mkdir(parents=True)
    assert found() is None, "a folder without the library is none"
    names = [found("cuda-9.2"), found("cuda-13.0"), found("cuda"), found("told")]
    assert names == ["cuda-9.2", "cuda-13.0", "cuda", "told"]


@pytest.mark.parametrize("required", [True, False])
def test_what_can_be_built_stays_where_another_part_fails(tmp_path: Path, required: bool) -> None:
    """A link without CUDA's library took the finished CPU extension along."""
    for name in ("good", "bad"):
        (tmp_path / f"{name}.cpp").write_text("int x;" if name == "good" else "no C++")
    script = f"""
import runpy, sys
sys.argv = ["setup.py", "-q", "build_ext", "--build-lib", {str(tmp_path)!r}, "--build-temp", {str(tmp_path / "t")!r}]
import setuptools
real = setuptools.setup
def setup(**given):
    given["ext_modules"] = [setuptools.Extension(f"caw._{{n}}", [f"{tmp_path}/{{n}}.cpp"]) for n in ("good", "bad")]
    real(**given)
setuptools.setup = setup
runpy.run_path("setup.py", run_name="__main__")
"""
    old = tmp_path / "caw" / "_bad.so"  # of an earlier build
    old.parent.mkdir()
    old.write_text("")
    environ = {**os.environ, "CAW_BUILD_CUDA": "0", "CAW_EXT": "require" if required else ""}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert (tmp_path / "caw" / "_good.so").is_file() and not old.exists(), done.stderr
    assert (tmp_path / "caw" / "_bad.failed.txt").read_text().strip()
    assert (done.returncode != 0) == required, done.stderr
    assert ("CAW_EXT=require, and caw._bad was not built" in done.stderr) == required
