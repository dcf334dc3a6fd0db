"""The benchmarks still run: seconds each, numbers that mean nothing."""

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SMOKE = {
    "bench_kernels": ["--device", "cpu", "--smoke", "--rounds", "1"],
    "bench_floor": ["--tokens", "4", "--rounds", "1", "--threads", "1", "--batches", "1", "--dtypes", "float32"],
    "bench_quantization": ["--tokens", "4", "--rounds", "1", "--threads", "1", "--batches", "1", "2", "--prefix", "9",
                        "--without-llama"],
    "bench_drawn": ["--shapes", "tiny", "--batches", "2", "--tokens", "3", "--rounds", "1", "--prompt", "9"],
    "bench_parts": ["--shapes", "tiny", "--batches", "2", "--tokens", "3", "--rounds", "1", "--prompt", "9",
                    "--threads", "1", "2", "--dtypes", "float32", "bfloat16"],
}  # fmt: skip


LONG = {"bench_floor", "bench_quantization"}  # of the demo model, of its blocks


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.gate("rehearsal") if name in LONG else ()) for name in SMOKE]
)
def test_runs(name: str, tmp_path: Path, demo_tokenizer: object) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(FOLDER / f"{name}.py"), *SMOKE[name], "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert found["rows"] and found["arguments"] and found["versions"]["torch"]
    assert done.stdout.count("|") > 10


@pytest.mark.slow
def test_all_under_pytest_benchmark(tmp_path: Path) -> None:
    """`make benchmark` in seconds: its JSON has every mode, and what the rounds took is what was measured."""
    if importlib.util.find_spec("pytest_benchmark") is None:
        pytest.skip("needs pytest-benchmark")
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "pytest", "-q", str(FOLDER), "--size", "smoke", f"--benchmark-json={out}"]
    # a run of its own: pytest-benchmark measures nothing where it believes itself a worker of pytest-xdist
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(
        [*command, "--results", str(tmp_path)],
        capture_output=True, text=True, timeout=500, cwd=FOLDER.parent, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    found = {b["name"]: b for b in json.loads(out.read_text())["benchmarks"]}
    rows = json.loads((tmp_path / "generate_smoke.json").read_text())["rows"]
    assert [row["mode"] for row in rows] == ["plain", "kgw+caw", "transformers"]
    for row in rows:
        replayed = found[f"test_generate[smoke-{row['mode']}-b1-p9]"]
        assert replayed["stats"]["median"] == pytest.approx(row["ms_per_token"]["median"] / 1e3, rel=1e-6)
        assert replayed["extra_info"]["ratio"] == row["ratio"] and replayed["stats"]["rounds"] == 2
    assert any(name.startswith("test_kernel[") for name in found)


@pytest.mark.slow
def test_every_script_runs_by_its_name(tmp_path: Path) -> None:
    """`python -m benchmarks` is the one way to run them: it lists each with a sentence, and runs one as its file."""
    command = [sys.executable, "-m", "benchmarks"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=FOLDER.parent, check=True).stdout
    names = {line.split()[0]: len(line.split()) for line in listed.splitlines()}
    files = {path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py")}
    assert files <= names.keys() and min(names.values()) > 4
    done = subprocess.run([*command, "step_model", "--help"], capture_output=True, text=True, cwd=FOLDER.parent)
    assert done.returncode == 0 and "--shapes" in done.stdout, done.stderr[-2000:]
    done = subprocess.run([*command, "nothing"], capture_output=True, text=True, timeout=60, cwd=FOLDER.parent)
    assert done.returncode == 1 and done.stderr.startswith("expected the name of a script, got 'nothing'")


@pytest.mark.gate("rehearsal")
def test_smoke_of_the_kernels_reaches_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compute-sanitizer is given, by the launchers: every kernel of the folder, each result right."""
    monkeypatch.syspath_prepend(str(FOLDER))
    smoke, bench = importlib.import_module("kernel_smoke"), importlib.import_module("bench_kernels")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = [path.stem for path in (FOLDER.parent / "triton_kernels").glob("*.py")]
    modules = [importlib.import_module(f"caw.triton_kernels.{name}") for name in names]
    modules = [module for module in modules if hasattr(module, "launch") and module.__name__[-9:] != "launching"]
    launched: set[tuple[str, str]] = set()
    ways: set[tuple[str, str, Any]] = set()  # kernel, what it is told, how
    told = ("FUSED", "HAS_ROWS", "SCALE", "GELU", "HAS_RESIDUAL", "HAS_NEXT", "HAS_NORM", "HAS_SOFTCAP", "offset")

    def noting(module: Any) -> Any:
        real = module.launch

        def launch(kernel: Any, grid: Any, arguments: Any, **options: Any) -> None:
            launched.add((module.__name__, kernel.fn.__name__))
            ways.update((kernel.fn.__name__, name, arguments[name]) for name in told if name in arguments)
            if "ROTATED" in arguments:
                ways.add((kernel.fn.__name__, "a part rotated", arguments["ROTATED"] < arguments["D"]))
            real(kernel, grid, arguments, **options)

        return launch

    for module in modules:
        monkeypatch.setattr(module, "launch", noting(module))
        for name, op in list(vars(bench.ops).items()):
            if isinstance(op, torch._ops.OpOverload) and hasattr(module, name):
                monkeypatch.setattr(bench.ops, name, getattr(module, name))
    for case in bench.cases(device, smoke=True):
        assert bench.checked(case)[1] == {}, case.name
    there = {(m.__name__, name) for m in modules for name in vars(m) if name.endswith("_kernel")}
    assert launched == there and len(there) > 10
    found = {(name, way) for _, name, way in ways}
    assert {("FUSED", True), ("FUSED", False), ("HAS_ROWS", True), ("SCALE", True), ("SCALE", False)} <= found
    for kernel, *names in (("_norm_kernel", "HAS_RESIDUAL", "HAS_NEXT"), ("_product_kernel", "GELU", "HAS_RESIDUAL"),
                           ("_layer_attention_kernel", "HAS_NORM", "HAS_SOFTCAP", "a part rotated")):  # fmt: skip
        assert {(kernel, name, way) for name in names for way in (True, False)} <= ways
    for kernel in ("_norm_kernel", "_layer_attention_kernel"):
        assert {(kernel, "offset", 0.0), (kernel, "offset", 1.0)} <= ways
    assert smoke.small_calls()[0][0] == "sibling_attention float16 T=60 "


def test_figures_of_results_are_drawn_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every committed SVG has a file it is drawn from, and every such file its SVG."""
    monkeypatch.syspath_prepend(str(FOLDER))
    figures = importlib.import_module("figures")
    results = FOLDER / "results"
    assert {*figures.FIGURES} == {path.stem for path in results.glob("*.svg")}
    for name in figures.FIGURES:
        shutil.copy(results / f"{name}.json", tmp_path)
    assert [path.stem for path in figures.draw(tmp_path)] == list(figures.FIGURES)


ENGINE = """
import time
from types import SimpleNamespace as Some
Which, ChatCompletionRequest = Some(GGUF=Some), Some
class Runner:
    def __init__(self, source, max_seqs):
        self.name = source.quantized_filename
    def send_chat_completion_request(self, asked):
        count = asked.max_tokens // (1 + (self.name == "short"))
        for number in range(count):
            time.sleep(0.1 * (self.name == "slow"))
            usage = Some(completion_tokens=count) if number == count - 1 else None
            yield Some(usage=usage, choices=[Some(delta=Some(content="a"))])
"""


@pytest.mark.slow
@pytest.mark.parametrize("other", ["slow", "short"])
def test_servers_side_by_side(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slower server's ratios are below 1; one that ends early is refused. The engine stands in for mistral.rs."""
    (tmp_path / "mistralrs.py").write_text(ENGINE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    wheel, out = f"{sys.executable} {FOLDER / 'wheel_servers.py'} mistral.rs", tmp_path / "out.json"
    sides = [f"{name}={wheel} {name} {{port}} {{slots}} 1" for name in ("quick", other)]
    command = [sys.executable, str(FOLDER / "bench_servers.py"), *sides, "--slots", "2", "--tokens", "8"]
    done = subprocess.run([*command, "--rounds", "1", "--out", str(out)], capture_output=True, text=True, timeout=200)
    if other == "short":
        assert done.returncode == 1 and "short streamed (4, 4) tokens, expected 8" in done.stderr
        return
    quick, slow = json.loads(out.read_text())["rows"]
    assert quick["slots"] == 2 and quick["first_ratio"] == [1, 1, 1], done.stderr[-2000:]
    assert max(slow["rate_ratio"] + slow["first_ratio"]) < 0.7
