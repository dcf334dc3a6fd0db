"""Everything that only a GPU can tell, in one command of less than ten minutes.

    python benchmarks/gpu_check.py [--list second] [--out FOLDER] [--only PART ...] [--prebuilt] [--rehearsal]

Needs torch with CUDA, nvcc and what this library depends on (transformers, Triton, NumPy, SciPy, safetensors, rich,
typer); no network, no model file; nothing is installed: parts find the library in FOLDER/installed. Parts that need a
package which is not there (those, or pytest and hypothesis) say so and are left out.

Each part is a process of its own, so that the crash of one leaves the others a sound device, in order of worth. A list
is for a card: the first for one that has run nothing yet, the second for what the first H100 left open (tiles that
repeat no work, weights of 4 and 8 bits beside torch's own, counters, Llama-3-8B, drafts). The tuner comes before what
runs by its tiles (`CAW_CACHE` is FOLDER/cache). A part gets 1.3 times what it should take, or what those before it left
over, and is then interrupted with all that it started; the last ones have only what is left over. Benchmarks write
their figures after every round, case or product, so that those until then are kept. FOLDER gets parts.log, summary.json
(states, and what nvidia-smi said before each part), a .json of each benchmark, and after every part gathered.json with
all of those in one; the summary (at most 160 lines) comes last. The exit code is 0 if every part ran to its end without
fault.

--prebuilt: take the compiled extensions that lie in caw/ (a checkout carried here), if torch loads them; else build.
--rehearsal: the same parts on a machine without a GPU, kernels interpreted (rehearsal.py), small, no times, minutes.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
SUMMARY_LINES, LINE_LENGTH = 160, 200
TOTAL = {"first": 525, "second": 560}  # seconds for all parts of a list, whatever their own limits
MORE = 1.3  # times what a part should take, before it is stopped
SPARE = 35
GRACE = 5  # seconds between asking a part to stop and killing it
ASIDES = ("not counted", "brackets:", "caw: wrote")  # what a benchmark says below its figures
NO_TIME = "left out, no time"
LIBRARY = ("torch", "triton", "transformers", "numpy", "scipy", "safetensors")  # what the library imports
COMMAND_LINE = (*LIBRARY, "rich", "typer")
GREEDY = "plain,kgw+caw,exp+caw"  # modes of steps
COUNTERS = ("SpeedOfLight", "Occupancy", "WarpStateStats")  # sections of ncu's report
CLOCKS = "name,clocks.sm,clocks.mem,power.draw,temperature.gpu"
DRAWN = "plain,plain/drawn,kgw/drawn,kgw+caw/drawn,exp/drawn,synthid/drawn"
QUIET = {"COLUMNS": "150", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Part:
    """name; seconds it should take; command; how many of its last lines belong into the summary; packages it needs.

    spare: it runs only where SPARE seconds are left over, and is not missed.
    """

    name: str
    seconds: int
    command: list[str]
    lines: int
    environment: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    spare: bool = False


@dataclass(frozen=True)
class Place:
    """Where the parts run. out: folder of their results. arch: the GPU's; None = none, everything is rehearsed.

    prebuilt: whether extensions that lie in the checkout will do.
    """

    out: Path
    arch: str | None
    prebuilt: bool = False

    def python(self, *arguments: str) -> list[str]:
        """The call of a script or, after "-m", of a module."""
        script = [str(ROOT / "benchmarks" / arguments[0])] if arguments[0] != "-m" else ["-m"]
        rehearsed = [] if self.arch else [str(ROOT / "benchmarks" / "rehearsal.py")]
        return [PYTHON, *rehearsed, *script, *arguments[1:]]

    def choose(self, *on_gpu: str, rehearsed: tuple[str, ...]) -> list[str]:
        """Options on a GPU, or in a rehearsal."""
        return list(on_gpu if self.arch else rehearsed)


def parts(place: Place, which: str = "first") -> list[Part]:
    """What is checked, in this order. which: the list, of TOTAL."""
    if which == "second":
        return second(place)
    first, *timed, drawn = kernels(place)
    return [
        build(place), Part("small_calls", 26, smoke(place), 1, needs=LIBRARY), generate(place, "1", 1024, 50),
        steps(place, "b1", "1", "1024,128,4096,16384", 36), first, timed[0], tune(place), *timed[1:],
        steps(place, "tuned", "1,8,32", "1024", 32), generate(place, "8", 1024, 34), generate(place, "32", 512, 34),
        generate(place, "1", 1024, 39, "transformers", "others"), tests(place), *sanitizers(place),
        *[replace(part, seconds=0, spare=True) for part in [
            steps(place, "drawn", "1,8,16", "1024", 36, modes=DRAWN), drawn,
            *[steps(place, form, "1", "1024", 35, form) for form in ("fp8", "int4")],
            *[steps(place, shapes[6:], "1,8", "1024", 35, shapes=shapes) for shapes in ("llama-3-8b", "llama-2-13b")],
            generate(place, "8", 1024, 39, "transformers", "others"),
        ]],
        replace(generate(place, "1", 1024, 0, "transformers-static", "static"), spare=True),
    ]  # fmt: skip


def second(place: Place) -> list[Part]:
    """What the first H100 left open: the most telling first."""
    topk, _, attention, drawn = kernels(place)
    every = "1,8"
    return [
        build(place), ceiling(place), Part("small_calls", 26, smoke(place), 1, needs=LIBRARY),
        *[tune(place, weights, 24) for weights in ("", "int4", "fp8")],
        steps(place, "tuned", "1,8,32", "1024", 40), *[steps(place, w, every, "1024", 23, w) for w in ("int4", "fp8")],
        steps(place, "3-8b", every, "1024", 32, shapes="llama-3-8b", dtype="bfloat16"),
        steps(place, "3-8b_drawn", "1", "1024", 26, shapes="llama-3-8b", modes="plain,plain/drawn,exp/drawn",
              dtype="bfloat16"),
        steps(place, "texts", "8,16,32,42", "1024", 32, modes="plain,exp+caw"), real_texts(place),
        *[counters(place, *one) for one in (("layer", "exp+caw", "product|attention|norm", "", 9),
                                            ("tail", "exp/drawn", "part|merge|divide|border|cut|winner", "", 8))],
        replace(attention, seconds=24), drawn,
        generate(place, "1", 1024, 30, "plain,plain/drafts,kgw+caw,kgw+caw/drafts", "drafts"), tests(place),
        *[replace(part, seconds=0, spare=True) for part in [
            sanitizers(place)[0], counters(place, "int4", "plain", "product", "int4", 4), topk,
            generate(place, "8", 1024, 27), generate(place, "32", 512, 25), sanitizers(place)[1],
            generate(place, "1", 1024, 39, "transformers", "others"), steps(place, "int8", every, "1024", 35, "int8"),
        ]],
    ]  # fmt: skip


def build(place: Place) -> Part:
    """The library as it is installed, kernels inside. If the GPU's part fails, the CPU's stays."""
    command = [PYTHON, "setup.py", "-q", "build", "--build-base", str(place.out / "build")]
    if place.prebuilt and (carried := carried_extensions()):
        copied = f"from shutil import copy; [copy(path, {str(place.out / 'installed/caw')!r}) for path in {carried}]"
        pure = [*command[:3], "build_py", "--build-lib", str(place.out / "installed")]
        return Part("build", 5, ["sh", "-c", f"{shlex.join(pure)} && {shlex.join([PYTHON, '-c', copied])}"], 1)
    environment = {"CAW_EXT": "require", "CAW_BUILD_CUDA": "1" if place.arch else "0", "MAX_JOBS": "16"}
    environment |= {"CAW_CUDA_ARCHITECTURES": place.arch} if place.arch else {}
    return Part("build", 75, [*command, "--build-lib", str(place.out / "installed")], 1, environment)


def carried_extensions() -> list[str]:
    """Those that lie in the checkout; none if torch does not load every one of them."""
    found = sorted(map(str, (ROOT / "caw").glob("_*.so")))
    load = "import sys, torch; [torch.ops.load_library(path) for path in sys.argv[1:]]"
    done = subprocess.run([PYTHON, "-c", load, *found], capture_output=True)
    return found if done.returncode == 0 else []


def ceiling(place: Place) -> Part:
    """What a kernel reads and what a copy moves in a second: what every share is of."""
    size = place.choose(rehearsed=("--smoke", "--device", "cpu"))
    command = place.python("bench_kernels.py", *size, "--ceiling", "--out", str(place.out / "ceiling.json"))
    return Part("ceiling", 10, command, 3, needs=LIBRARY)


def counters(place: Place, name: str, mode: str, kernels: str, weights: str, count: int) -> Part:
    """What bounds the first `count` kernels of these names in a step of 64 rows, by the processor's own counters."""
    sections = [word for section in COUNTERS for word in ("--section", section)]
    log = str(place.out / f"counters_{name}.csv")
    watch = [find_tool("ncu"), "--clock-control", "none", *sections, "--kernel-name", f"regex:({kernels}).*_kernel",
             "--launch-count", str(count), "--csv", "--log-file", log]  # fmt: skip
    timed = steps(place, f"counted_{name}", "8", "2048", 18, weights or None, modes=mode)
    command = [*place.choose(*watch, rehearsed=()), *timed.command]
    return replace(timed, name=f"counters_{name}", command=command, lines=1)


def real_texts(place: Place) -> Part:
    """Eight texts of the demo model beside a CPU's, where its weights lie or were carried to."""
    command = place.python("real_texts.py", *place.choose(rehearsed=("--shapes", "tiny")))
    return Part("real_texts", 38, [*command, "--json", str(place.out / "real_texts.json")], 5, QUIET, LIBRARY)


def smoke(place: Place) -> list[str]:
    """Every kernel on small shapes, against its reference."""
    device = "cuda" if place.arch else "cpu"
    return place.python("bench_kernels.py", "--smoke", "--device", device, "--rounds", "1")


def tests(place: Place) -> Part:
    """The tests that run kernels on a GPU; those of the step under fake tensors say the same without one."""
    found = [PYTHON, "-m", "pytest", "-q", "-rfE", "-m", "not slow", "-p", "no:cacheprovider", "--maxfail", "30"]
    workers = ["-n", "8"] if importlib.util.find_spec("xdist") else []
    found += place.choose("--all-cases", *workers, rehearsed=("--cases", "1"))
    found += ["--timeout", "100"] if importlib.util.find_spec("pytest_timeout") else []
    files = [
        "tests/triton_kernels", "--ignore=tests/triton_kernels/test_aot.py", "tests/csrc/test_cuda.py",
        "tests/decoding/capture/test_cuda_graph.py::test_captured_on_a_gpu",
        "tests/decoding/test_mixed_rows.py::test_mixed_rows_by_a_graph_on_a_gpu",
        "tests/watermarks/test_prf.py", "tests/watermarks/test_exp.py", "tests/watermarks/test_green_list.py",
    ]  # fmt: skip
    environment = {"CAW_REQUIRE_GPU": "1"} if place.arch else {"TRITON_INTERPRET": "1"}
    return Part("tests", 48, [*found, *files], 5, environment, needs=(*LIBRARY, "pytest", "hypothesis"))


def sanitizers(place: Place) -> list[Part]:
    """The same calls watched. Memory comes straight from the driver: a cache would hide what is out of bounds."""
    found = []
    for name in ("memcheck", "racecheck"):
        watch = [find_tool("compute-sanitizer"), "--tool", name, "--error-exitcode", "9", "--print-limit", "5"]
        command = [*place.choose(*watch, rehearsed=()), *smoke(place)]
        found.append(Part(name, 25, command, 1, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, LIBRARY))
    return found


def kernels(place: Place) -> list[Part]:
    """A part for each kind, so that a kernel that brings the device down takes no other kind along."""
    found = []
    for name, only, seconds, lines in (("topk", "top-100", 12, 4), ("tail", "evaluate", 12, 5),
                                       ("attention", "attention b", 32, 7), ("drawn", "drawn: ", 20, 2)):  # fmt: skip
        size = place.choose("--rounds", "10", rehearsed=("--smoke", "--device", "cpu", "--rounds", "2"))
        out = ["--out", str(place.out / f"kernels_{name}.json")]
        command = place.python("bench_kernels.py", *size, "--only", only, *out)
        found.append(Part(f"kernels_{name}", seconds, command, lines, needs=LIBRARY))
    return found


def steps(
    place: Place, name: str, batches: str, prefixes: str, seconds: int, weights: str | None = None,
    shapes: str = "llama-2-7b", modes: str = GREEDY, dtype: str = "float16",
) -> Part:  # fmt: skip
    """Captured steps alone, by events, most important cases first. weights: of 4 or 8 bits."""
    command = place.python("bench_steps.py", *(["--quantization", weights] if weights else []))
    # compiled torch is compiled anew for each length, some ten seconds, so it stands beside one only
    command += ["--modes", *modes.split(","), *{"tuned": ["compiled-torch"], "texts": ["--texts"]}.get(name, [])]
    command += place.choose(
        "--shapes", shapes, "--dtype", dtype, "--batch", *batches.split(","), "--prompt", *prefixes.split(","),
        "--rounds", "16" if name == "b1" else "24", "--max-seconds", str(seconds - 10),
        rehearsed=("--shapes", "tiny", "--dtype", "float32", "--batch", {"b1": "1", "texts": "3"}.get(name, "2"),
                   "--prompt", "9", "--rounds", "1", "--device", "cpu"),
    )  # fmt: skip
    command += ["--json", str(place.out / f"steps_{name}.json")]
    lines = min(6, len(batches.split(",")) * len(modes.split(",")))
    return Part(f"steps_{name}", seconds, command, lines, QUIET, LIBRARY)


def tune(place: Place, weights: str = "", seconds: int = 38) -> Part:
    """Products by several tiles and by torch, rows asked for their bits; what is chosen is what later parts run by."""
    command = place.python("tune_products.py", "--max-seconds", str(seconds - 8))
    command += ["--quantization", weights] if weights else []
    name = f"tune_{weights}" if weights else "tune"
    command += place.choose("--shapes", "llama-2-7b", "--dtype", "float16",
                            rehearsed=("--shapes", "tiny", "--dtype", "float32"))  # fmt: skip
    return Part(name, seconds, [*command, "--json", str(place.out / f"{name}.json")], 6, QUIET, LIBRARY)


def generate(
    place: Place, batch: str, prompt: int, seconds: int, mode: str = "kgw+caw,exp+caw", what: str = ""
) -> Part:
    """Plain decoding beside these modes; those of others in parts of their own, they take as long as all ours."""
    name = f"generate_b{batch}" + (f"_{what}" if what else "")
    # 32 of them are taken off again; batch 1 has the narrowest goal, 2 %, and 256 steps resolve a quarter of that
    tokens = "288" if batch == "1" and not what else "96"
    command = place.python("-m", "caw.cli", "benchmark", "--modes", mode)
    command += place.choose(
        "--shapes", "llama-2-7b", "--dtype", "float16", "--batch", batch, "--prompt", str(prompt), "--tokens", tokens,
        "--rounds", "5", "--max-seconds", "20" if batch == "1" else "14",
        rehearsed=("--shapes", "tiny", "--dtype", "float32", "--batch", str(min(int(batch), 3)), "--prompt", "9",
                   "--tokens", "3", "--rounds", "2", "--device", "cpu"),
    )  # fmt: skip
    command += ["--json", str(place.out / f"{name}.json")]
    return Part(name, seconds, command, 4, QUIET, COMMAND_LINE)


def find_tool(name: str) -> str:
    """A tool of the CUDA toolkit, which may not be on the path; its bare name if it is nowhere."""
    homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", "/opt/nvidia/compute-sanitizer"]
    nvcc = shutil.which("nvcc")
    homes += [str(Path(nvcc).resolve().parents[1])] if nvcc else []
    places = [shutil.which(name), *(f"{home}/{sub}{name}" for home in homes if home for sub in ("bin/", ""))]
    return next((place for place in places if place and os.access(place, os.X_OK)), name)


def asked(what: str) -> str:
    """What nvidia-smi says of the first GPU; empty where none answers."""
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
        return found[0].strip() if found else ""
    except (OSError, subprocess.SubprocessError):
        return ""


def run(part: Part, log: Path, seconds: float) -> dict[str, Any]:
    """Run one part within its time; its output joins the log, its last lines the result."""
    if missing := [name for name in part.needs if importlib.util.find_spec(name) is None]:
        return {"part": part.name, "state": f"left out, needs {', '.join(missing)}", "seconds": 0.0, "tail": []}
    card, started = asked(CLOCKS), time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", **part.environment}
    environment["CAW_CACHE"] = str(log.parent / "cache")  # neither what a user has tuned, nor a change of it
    places = [log.parent / "installed", ROOT / "benchmarks", ROOT]
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, places), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment["PYTHONSAFEPATH"] = "1"  # the library as built, not the checkout's folders
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            code = in_group(part.command, output, environment, seconds)
            state = f"out of time ({seconds:.0f} s)" if code is None else "ok" if code == 0 else f"failed ({code})"
        except OSError as error:
            state = f"failed ({error.strerror}: {error.filename})"
        output.seek(0)
        text = output.read()
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"==== {part.name}: {state}\n{card}\n$ {' '.join(part.command)}\n{text}\n")
    telling = [line for line in text.splitlines() if line.strip() and not line.startswith(ASIDES)]
    tail = [line[:LINE_LENGTH] for line in telling[-part.lines :]]
    took = round(time.monotonic() - started, 1)
    return {"part": part.name, "state": state, "seconds": took, "card": card, "tail": tail}


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


def gather(chosen: list[Part], out: Path) -> None:
    """Every benchmark's figures so far, each beside its command, in gathered.json: one file to bring home."""
    found = {}
    for part in chosen:
        for path in {Path(word) for word in part.command if word.endswith(".json")}:
            with contextlib.suppress(OSError, json.JSONDecodeError):  # not there yet, or cut off while it was written
                found[part.name] = {"command": " ".join(part.command), **json.loads(path.read_text(encoding="utf-8"))}
    (out / "gathered.json").write_text(json.dumps({"card": asked(CLOCKS), "parts": found}) + "\n", encoding="utf-8")


def run_all(chosen: list[Part], out: Path, scale: float, total: int = TOTAL["first"]) -> list[dict[str, Any]]:
    """Every part in turn; summary.json is there from the first on, and says which part runs."""
    results: list[dict[str, Any]] = []
    (out / "parts.log").write_text("")

    def save(now: list[dict[str, Any]]) -> None:
        (out / "summary.json").write_text(json.dumps([*results, *now], indent=1) + "\n")

    end = time.monotonic() + total * scale
    for number, part in enumerate(chosen):
        left = end - time.monotonic() - GRACE
        if left < (SPARE if part.spare else 1):
            results.append({"part": part.name, "state": NO_TIME, "seconds": 0.0, "tail": []})
            continue
        print(f"{part.name} ...", flush=True)
        save([{"part": part.name, "state": "running", "seconds": 0.0, "tail": []}])
        kept = sum(later.seconds * scale for later in chosen[number + 1 :])
        results.append(run(part, out / "parts.log", min(left, max(MORE * part.seconds * scale, left - kept))))
        save([])
        gather(chosen, out)
    save([])
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
    parser.add_argument("--list", choices=TOTAL, default="first", help="of parts")
    parser.add_argument("--prebuilt", action="store_true", help="take the extensions that lie in caw/, if they load")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "benchmarks/results/gpu")))
    parser.add_argument("--arch", help="compute capability to build for, without the dot [the first GPU's]")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on every part's time")
    parser.add_argument("--only", nargs="+", help="names of parts")
    parser.add_argument("--rehearsal", action="store_true", help="without a GPU: kernels interpreted, no times")
    arguments = parser.parse_args()
    arch = None if arguments.rehearsal else arguments.arch or asked("compute_cap").replace(".", "") or "90"
    place = Place(arguments.out.resolve(), arch, arguments.prebuilt)
    chosen = parts(place, arguments.list)
    if unknown := set(arguments.only or []) - {part.name for part in chosen}:
        parser.error(f"expected parts among {', '.join(p.name for p in chosen)}, got {', '.join(sorted(unknown))}")
    place.out.mkdir(parents=True, exist_ok=True)
    # a plain end of this program must take its part along
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wanted = [p for p in chosen if arguments.only is None or p.name in arguments.only]
    if arch is not None and not asked("name"):
        print("no GPU answers nvidia-smi: parts that need one will fail; use --rehearsal", file=sys.stderr)
    results = run_all(wanted, place.out, arguments.scale, TOTAL[arguments.list])
    print("\n".join(summary(results)), flush=True)
    spare = {part.name for part in wanted if part.spare}
    return 0 if all(r["state"] == "ok" or (r["part"] in spare and r["state"] == NO_TIME) for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
