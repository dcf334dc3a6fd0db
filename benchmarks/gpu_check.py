"""Everything that only a GPU can tell, in one command of less than nine minutes.

    python benchmarks/gpu_check.py [--out FOLDER] [--arch 90] [--scale 1.0] [--only PART ...]

Needs torch with CUDA, nvcc and what this library depends on (transformers, Triton, NumPy, SciPy, safetensors, rich,
typer); no network, no model file. Parts that need a package which is not there (those, or pytest and hypothesis) say so
and are left out. Parts run one after another, each within its own time and what those before it left over, so that a
slow one cannot eat the rest: build, one small call of every kernel against its reference (which asks for no pytest),
tests of the kernels and of the captured step compiled on the GPU, compute-sanitizer on every kernel, kernels against
bandwidth and torch, generation against this library's unwatermarked decode and transformers. A part out of time is
interrupted with all that it started; what benchmarks had measured until then is kept. FOLDER gets parts.log,
summary.json and a .json of each benchmark; the summary (at most 100 lines) comes last. The exit code is 0 if every part
ran to its end without fault, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
SUMMARY_LINES, LINE_LENGTH = 100, 200
TOTAL = 525  # seconds for all parts, whatever their own limits
GRACE = 5  # seconds between asking a part to stop and killing it
LIBRARY = ("torch", "triton", "transformers", "numpy", "scipy", "safetensors")  # what the library imports


@dataclass(frozen=True)
class Part:
    """name; seconds it may take; command; how many of its last lines belong into the summary; packages it needs; a part
    that runs only if another failed."""

    name: str
    seconds: int
    command: list[str]
    lines: int
    environment: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    if_failed: str = ""


def parts(out: Path, arch: str) -> list[Part]:
    """What is checked, in this order."""
    return [*build_parts(arch), Part("small_calls", 26, smoke(), 2, needs=LIBRARY), test_part(), *sanitizer_parts(),
            *benchmark_parts(out)]  # fmt: skip


def smoke() -> list[str]:
    """Every kernel on small shapes, against its reference."""
    return [PYTHON, str(ROOT / "benchmarks/bench_kernels.py"), "--smoke", "--device", "cuda", "--rounds", "1"]


def build_parts(arch: str) -> list[Part]:
    install = [PYTHON, "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", "-e", str(ROOT),
               "--no-build-isolation", "--no-deps"]  # fmt: skip
    cuda = {"CAW_EXT": "require", "CAW_BUILD_CUDA": "1", "CAW_CUDA_ARCHITECTURES": arch, "MAX_JOBS": "16"}
    # Triton's kernels, which are most of what is measured, need only the package to be found
    without = {"CAW_BUILD_CUDA": "0", "MAX_JOBS": "16"}
    return [
        Part("build", 100, install, 2, cuda),
        Part("build_without_cuda", 60, install, 2, without, if_failed="build"),
    ]


def test_part() -> Part:
    """The tests that run kernels on a GPU; those of the step under fake tensors say the same without one."""
    found = [PYTHON, "-m", "pytest", "-q", "-rfE", "-m", "not slow", "-p", "no:cacheprovider", "--maxfail", "30"]
    found += ["-n", "8"] if importlib.util.find_spec("xdist") else []
    found += ["--timeout", "100"] if importlib.util.find_spec("pytest_timeout") else []
    files = [
        "tests/triton_kernels", "--ignore=tests/triton_kernels/test_aot.py", "tests/csrc/test_cuda.py",
        "tests/decoding/capture/test_cuda_graph.py::test_captured_on_a_gpu",
        "tests/watermarks/test_prf.py", "tests/watermarks/test_exp.py", "tests/watermarks/test_green_list.py",
    ]  # fmt: skip
    return Part("tests", 90, [*found, *files], 10, {"CAW_REQUIRE_GPU": "1"}, needs=(*LIBRARY, "pytest", "hypothesis"))


def sanitizer_parts() -> list[Part]:
    """The same calls watched. Memory comes straight from the driver: a cache would hide what is out of bounds."""
    tool = find_tool("compute-sanitizer")
    options = ["--error-exitcode", "9", "--print-limit", "5"]
    memory = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    watched = {name: [tool, "--tool", name, *options, *smoke()] for name in ("memcheck", "racecheck")}
    return [Part(name, 40, command, 2, memory, LIBRARY) for name, command in watched.items()]


def benchmark_parts(out: Path) -> list[Part]:
    kernels = [PYTHON, str(ROOT / "benchmarks/bench_kernels.py"), "--rounds", "10", "--out", str(out / "kernels.json")]
    found = [Part("kernels", 74, kernels, 34, needs=LIBRARY)]
    shapes = [PYTHON, "-m", "caw.cli", "benchmark", "--shapes", "llama-2-7b", "--dtype", "float16", "--tokens", "96"]
    for batch, prompt, rounds, others in ((1, 1024, 5, ",transformers"), (8, 1024, 5, ""), (32, 512, 3, "")):
        name = f"generate_b{batch}"
        options = ["--modes", f"kgw+caw,exp+caw{others}", "--batch", str(batch), "--prompt", str(prompt)]
        options += ["--rounds", str(rounds), "--max-seconds", "22", "--json", str(out / f"{name}.json")]
        environment = {"COLUMNS": "150", "HF_HUB_OFFLINE": "1"}
        found.append(Part(name, 50, [*shapes, *options], 8, environment, (*LIBRARY, "rich", "typer")))
    return found


def find_tool(name: str) -> str:
    """A tool of the CUDA toolkit, which may not be on the path; its bare name if it is nowhere."""
    homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", "/opt/nvidia/compute-sanitizer"]
    nvcc = shutil.which("nvcc")
    homes += [str(Path(nvcc).resolve().parents[1])] if nvcc else []
    places = [shutil.which(name), *(f"{home}/{sub}{name}" for home in homes if home for sub in ("bin/", ""))]
    return next((place for place in places if place and os.access(place, os.X_OK)), name)


def capability() -> str:
    """Compute capability of the first GPU without the dot; 90 where none answers."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
        return found[0].replace(".", "") if found else "90"
    except (OSError, subprocess.SubprocessError):
        return "90"


def run(part: Part, log: Path, seconds: float) -> dict[str, Any]:
    """Run one part within its time; its output joins the log, its last lines the result."""
    if missing := [name for name in part.needs if importlib.util.find_spec(name) is None]:
        return {"part": part.name, "state": f"left out, needs {', '.join(missing)}", "seconds": 0.0, "tail": []}
    started = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", **part.environment}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            code = in_group(part.command, output, environment, seconds)
            state = f"out of time ({seconds:.0f} s)" if code is None else "ok" if code == 0 else f"failed ({code})"
        except OSError as error:
            state = f"failed ({error.strerror}: {error.filename})"
        output.seek(0)
        text = output.read()
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"==== {part.name}: {state}\n$ {' '.join(part.command)}\n{text}\n")
    tail = [line[:LINE_LENGTH] for line in text.splitlines() if line.strip()][-part.lines :]
    return {"part": part.name, "state": state, "seconds": round(time.monotonic() - started, 1), "tail": tail}


def in_group(command: list[str], output: Any, environment: dict[str, str], seconds: float) -> int | None:
    """Exit status, or None if the time was over: then the command and all that it started are stopped.

    First by an interrupt, at which pytest and the benchmarks still say what they have, then for good.
    """
    process = subprocess.Popen(
        command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT, env=environment,
        start_new_session=True,
        # a shell's background jobs ignore interrupts, and what they start inherits it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE)
        return None
    finally:  # also when this program itself is stopped
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_all(chosen: list[Part], out: Path, scale: float) -> list[dict[str, Any]]:
    """Every part in turn; summary.json is there from the first on."""
    results: list[dict[str, Any]] = []
    (out / "parts.log").write_text("")
    end = time.monotonic() + TOTAL * scale
    for number, part in enumerate(chosen):
        if part.if_failed and not any(r["part"] == part.if_failed and r["state"] != "ok" for r in results):
            continue
        left = end - time.monotonic() - GRACE
        if left < 1:
            results.append({"part": part.name, "state": "left out, no time", "seconds": 0.0, "tail": []})
            continue
        print(f"{part.name} ...", flush=True)
        kept = sum(later.seconds * scale for later in chosen[number + 1 :] if not later.if_failed)
        results.append(run(part, out / "parts.log", min(left, max(part.seconds * scale, left - kept))))
        (out / "summary.json").write_text(json.dumps(results, indent=1) + "\n")
    return results


def summary(results: list[dict[str, Any]]) -> list[str]:
    """At most SUMMARY_LINES lines: states first, then the end of each part's output."""
    lines = [f"{r['part']}: {r['state']}, {r['seconds']} s" for r in results]
    for result in results:
        if result["tail"]:
            lines += [f"---- {result['part']}", *result["tail"]]
    return lines[:SUMMARY_LINES]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "benchmarks/results/gpu")))
    parser.add_argument("--arch", help="compute capability to build for, without the dot [the first GPU's]")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on every part's time")
    parser.add_argument("--only", nargs="+", help="names of parts")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    chosen = parts(out, arguments.arch or capability())
    if unknown := set(arguments.only or []) - {part.name for part in chosen}:
        parser.error(f"expected parts among {', '.join(p.name for p in chosen)}, got {', '.join(sorted(unknown))}")
    out.mkdir(parents=True, exist_ok=True)
    # a plain end of this program must take its part along
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = run_all([p for p in chosen if arguments.only is None or p.name in arguments.only], out, arguments.scale)
    print("\n".join(summary(results)), flush=True)
    return 0 if all(r["state"] == "ok" for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
