"""Time and memory of loading a model, from `load_model` until the first token of `generate`.

    python benchmarks/bench_loading.py [--models smollm2-135m gemma3-270m.Q4_K_M.gguf] [--weights file] [--dtype auto]
        [--rounds 5] [--threads 1] [--out r.json]

Each measurement is a process of its own. It imports this library, PyTorch and transformers' class of the model first,
which takes longer than the rest and is shown apart, and reads the weights once, so that the system holds them. A .gguf
file's kept settings are there; "first start" is a process with an empty cache folder, until its first token. Memory is
what is the process's own (anonymous pages) after the first token less what it was before loading, and the greatest
resident size less the resident size before, which counts pages of the files while they are read; both over the size of
the files. A folder's are its .safetensors files; nothing of it is kept, so that its first start is like any other.
The run joins those in the file given by `--out`, in place of an earlier one of the same command.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from caw.benchmark.machine import about
from caw.models import DEMO_MODEL

CHILD = """
import json, os, sys, time
clocks = lambda: (time.perf_counter(), time.process_time())
start = clocks()
import caw, torch
from transformers import AutoTokenizer, Gemma3ForCausalLM, LlamaForCausalLM, Qwen2ForCausalLM
from caw.models.sources import file_or_folder
import caw.entrance, caw.models.load
imported = clocks()
name, weights, dtype, threads = json.loads(sys.argv[1])
torch.set_num_threads(threads)
path = file_or_folder(name)
files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
for each in files:
    with open(each, "rb") as file:
        while file.read(1 << 24):
            pass
def memory():
    with open("/proc/self/smaps_rollup") as lines:
        found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB\\n")}
    with open("/proc/self/status") as lines:
        peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return found["Anonymous"], found["Rss"], peak
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the greatest size counts from here
before, began = memory(), clocks()
model, tokenizer = caw.load_model(name, device="cpu", dtype=dtype, quantization=weights)
loaded = clocks()
caw.generate(model, tokenizer, "The capital of France is", max_new_tokens=1, progress=False)
first, after = clocks(), memory()
since = lambda a, b: [y - x for x, y in zip(a, b)]
print(json.dumps({
    "bytes": sum(os.path.getsize(each) for each in files), "imports": since(start, imported),
    "load": since(began, loaded), "first_token": since(began, first),
    "own": after[0] - before[0], "peak": after[2] - before[1],
}))
"""


def measure(name: str, arguments: argparse.Namespace, cache: str | None = None) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads), **({"CAW_CACHE": cache} if cache else {})}
    given = json.dumps([name, arguments.weights, arguments.dtype, arguments.threads])
    done = subprocess.run([sys.executable, "-c", CHILD, given], env=environment, stdout=subprocess.PIPE, check=True)
    return {key: rounded(value) for key, value in json.loads(done.stdout.decode().splitlines()[-1]).items()}


def rounded(value: Any) -> Any:
    """Bytes as they are; seconds, wall and processor's, to the millisecond."""
    return [round(seconds, 3) for seconds in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["smollm2-135m"])
    parser.add_argument("--weights")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    report = []
    print("| model | MB | imports s | first start s (CPU s) | load s | to first token s (CPU s) | own memory | peak |")
    print("| --- | ---: | ---: | --- | ---: | --- | ---: | ---: |")
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as cache:
            fresh = measure(name, arguments, cache) if name.endswith(".gguf") or name == DEMO_MODEL else None
            rounds = [measure(name, arguments, cache) for _ in range(arguments.rounds)]

        def middle(key: str, clock: int = 0, rounds: list[dict[str, Any]] = rounds) -> float:
            return statistics.median(found[key][clock] for found in rounds)

        size = rounds[0]["bytes"]
        own, peak = (statistics.median(found[key] for found in rounds) / size for key in ("own", "peak"))
        first = "{:.1f} ({:.1f})".format(*fresh["first_token"]) if fresh else ""
        print(
            f"| {name} | {size / 1e6:.0f} | {middle('imports'):.2f} | {first} | "
            f"{middle('load'):.2f} | {middle('first_token'):.2f} ({middle('first_token', 1):.2f}) | "
            f"{own:.2f} | {peak:.2f} |"
        )
        report.append({"model": os.path.basename(name), "first_start": fresh, "rounds": rounds})
    if arguments.out:
        write(arguments, report)


def write(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Put the run among those of the file, with its machine: others may have been measured elsewhere."""
    given = {key: value for key, value in vars(arguments).items() if key not in ("models", "out")}
    here = about()
    here["machine"]["threads"] = arguments.threads  # of the processes that were measured
    own = {**here, "command": command_of(arguments), "arguments": given, "rows": rows}
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    kept = [run for run in found.get("runs", ()) if run["command"] != own["command"]]
    arguments.out.write_text(json.dumps({**found, "runs": [*kept, own]}, separators=(",", ":")) + "\n")


def command_of(arguments: argparse.Namespace) -> str:
    models = " ".join(os.path.basename(name) for name in arguments.models)
    weights = f" --weights {arguments.weights}" if arguments.weights else ""
    dtype = "" if arguments.dtype == "auto" else f" --dtype {arguments.dtype}"
    threads = "" if arguments.threads == 1 else f" --threads {arguments.threads}"
    options = f"{weights}{dtype}{threads} --rounds {arguments.rounds}"
    return f"python benchmarks/bench_loading.py{options} --models {models} --out FILE"


if __name__ == "__main__":
    main()
