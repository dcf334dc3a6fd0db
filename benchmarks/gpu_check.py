"""Everything that only a GPU can tell, in one command of less than nine minutes.

    python benchmarks/gpu_check.py [--out FOLDER] [--arch 90] [--scale 1.0]

Needs torch with CUDA, Triton, transformers, nvcc and pytest, no network. Parts run one after another, each within its
own time, so that a slow one cannot eat the rest: build, tests of the kernels and of the captured step compiled on the
GPU, compute-sanitizer on every kernel, kernels against bandwidth and torch, generation against this library's
unwatermarked decode and transformers. Each part writes FOLDER/<part>.log, benchmarks also FOLDER/<part>.json; the
summary (at most 100 lines) comes last. The exit code is 1 if a part failed or ran out of time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
SUMMARY_LINES = 100


@dataclass(frozen=True)
class Part:
    """name; seconds it may take; command; how many of its last lines belong into the summary."""

    name: str
    seconds: int
    command: list[str]
    lines: int
    environment: dict[str, str] | None = None


def parts(out: Path, arch: str) -> list[Part]:
    bench = [PYTHON, str(ROOT / "benchmarks")]
    install = [PYTHON, "-m", "pip", "install", "-q", "-e", str(ROOT), "--no-build-isolation", "--no-deps"]
    build = {"CAW_EXT": "require", "CAW_BUILD_CUDA": "1", "CAW_CUDA_ARCHITECTURES": arch, "MAX_JOBS": "16"}
    tests = [PYTHON, "-m", "pytest", "-q", "-m", "not slow", "--timeout", "120", "-p", "no:cacheprovider"]
    workers = ["-n", "6"] if importlib.util.find_spec("xdist") else []
    smoke = [f"{bench[1]}/bench_kernels.py", "--smoke", "--device", "cuda", "--rounds", "1"]
    sanitizer = shutil.which("compute-sanitizer") or "compute-sanitizer"
    found = [
        Part("build", 140, install, 3, build),
        Part(
            "tests", 120,
            [*tests, *workers, "tests/triton_kernels", "tests/csrc/test_cuda.py", "tests/decoding/test_capture.py",
             "tests/watermarks", "--deselect", "tests/triton_kernels/test_aot.py"],
            14, {"CAW_REQUIRE_GPU": "1"},
        ),
    ]  # fmt: skip
    for tool in ("memcheck", "racecheck"):
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9", PYTHON, *smoke]
        found.append(Part(tool, 40, command, 3))
    found.append(
        Part(
            "kernels",
            80,
            [PYTHON, f"{bench[1]}/bench_kernels.py", "--rounds", "10", "--out", str(out / "kernels.json")],
            36,
        )
    )
    shapes = [PYTHON, f"{bench[1]}/bench_generate.py", "--shapes", "llama-2-7b", "--dtype", "float16", "--tokens", "64"]
    for batch, prompt in ((1, 128), (8, 1024), (32, 1024)):
        name = f"generate_b{batch}"
        only = ["KGW + CAW", "EXP + CAW", *(["transformers.generate"] if batch == 1 else [])]
        found.append(
            Part(
                name, 40,
                [*shapes, "--rounds", "3", "--batch", str(batch), "--prompt", str(prompt), "--only", *only, "--out",
                 str(out / f"{name}.json")],
                8,
            )
        )  # fmt: skip
    return found


def run(part: Part, out: Path, scale: float) -> dict[str, object]:
    """Run one part within its time; its output goes to a file, its last lines into the result."""
    started, log = time.monotonic(), out / f"{part.name}.log"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(part.environment or {})}
    with open(log, "w", encoding="utf-8") as file:
        try:
            done = subprocess.run(
                part.command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environment,
                timeout=part.seconds * scale,
            )  # fmt: skip
            state = "ok" if done.returncode == 0 else f"failed ({done.returncode})"
        except subprocess.TimeoutExpired:
            state = f"out of time ({part.seconds * scale:.0f} s)"
        except OSError as error:
            state = f"failed ({error.strerror}: {error.filename})"
    tail = [line[:220] for line in log.read_text(errors="replace").splitlines() if line.strip()][-part.lines :]
    return {"part": part.name, "state": state, "seconds": round(time.monotonic() - started, 1), "tail": tail}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "benchmarks/results/gpu")))
    parser.add_argument("--arch", default="90", help="compute capability to build for, without the dot")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on every part's time")
    parser.add_argument("--only", nargs="+", help="names of parts")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    chosen = parts(arguments.out, arguments.arch)
    if unknown := set(arguments.only or []) - {part.name for part in chosen}:
        parser.error(f"expected parts among {', '.join(p.name for p in chosen)}, got {', '.join(sorted(unknown))}")
    results = []
    for part in chosen:
        if arguments.only is None or part.name in arguments.only:
            print(f"{part.name} ...", flush=True)
            results.append(run(part, arguments.out, arguments.scale))
    (arguments.out / "summary.json").write_text(json.dumps(results, indent=1) + "\n")
    lines = [f"{r['part']}: {r['state']}, {r['seconds']} s" for r in results]
    room = SUMMARY_LINES - len(lines)
    for result in results:
        tail = result["tail"]
        assert isinstance(tail, list)
        lines += [f"---- {result['part']}", *tail][: max(room, 0)]
        room -= len(tail) + 1
    print("\n".join(lines))
    return 0 if all(r["state"] == "ok" for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
