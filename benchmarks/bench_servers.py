"""OpenAI-compatible servers side by side: tokens a second and first token of 1, 4 and 8 streams at once.

    python benchmarks/bench_servers.py NAME=COMMAND [NAME=COMMAND ...] [--slots 1 4 8] [--rounds 3] [--out FILE]

COMMAND starts a server on 127.0.0.1:{port} that holds {slots} texts, on one thread; `env` before it sets variables:
    caw="caw serve --model M.gguf --quantization file --threads 1 --port {port} --batch-size {slots} --name model"
    llama.cpp="L/bin/python benchmarks/wheel_servers.py llama.cpp M.gguf {port} {slots} 1"
All stand beside each other; one is asked, the others idle. Each must first stream greedy text of the asked length from
every slot. In a round each takes its turn with as many streams as slots, on unseen prompts of about 130 tokens. Counted
are new tokens over wall time and over the processor time of the server's processes, which a busy machine disturbs less,
and the median time to the first text: median, least and greatest of the rounds, and ratios to the first server, round
by round, above 1 where faster.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from caw.benchmark.machine import about

WORDS = (Path(__file__).resolve().parents[1] / "docs/how-it-works.md").read_text(encoding="utf-8").split()


class Server:
    def __init__(self, name: str, command: str, slots: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        words = shlex.split(command.format(port=port, slots=slots))
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)

    def wait(self, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=10):
                return
            time.sleep(0.5)
        raise SystemExit(f"{self.name} does not answer /health: run its command alone")

    def processor_seconds(self) -> float:
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                ticks += (int(fields[11]) + int(fields[12])) * (int(fields[2]) == self.process.pid)
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self.process.pid, number)
                self.process.wait(20)

    def stream(self, prompt: str, tokens: int) -> tuple[float, int]:
        """Return the seconds to the first piece of text, and the number of new tokens."""
        body = {"model": "model", "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens,
                "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
        url, kind = f"{self.url}/v1/chat/completions", {"content-type": "application/json"}
        begin, first, count = time.perf_counter(), 0.0, 0
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), kind), timeout=900) as lines:
            for line in lines:
                chunk = json.loads(line[6:]) if line.startswith(b"data: {") else {"choices": []}
                count = (chunk.get("usage") or {}).get("completion_tokens", count)
                if not first and any(each["delta"].get("content") for each in chunk["choices"]):
                    first = time.perf_counter() - begin
        return first, count

    def take_turn(self, prompts: list[str], tokens: int) -> dict[str, float]:
        processor, begin = self.processor_seconds(), time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as pool:
            streams = list(pool.map(lambda prompt: self.stream(prompt, tokens), prompts))
        wall, used = time.perf_counter() - begin, max(self.processor_seconds() - processor, 0.01)  # a tick
        firsts, counts = zip(*streams, strict=True)
        if min(firsts) == 0 or sum(counts) < 0.8 * tokens * len(prompts):  # some texts end early
            raise SystemExit(f"{self.name} streamed {counts} tokens, expected {tokens} with text: ask it by hand")
        return {"rate": sum(counts) / wall, "own": sum(counts) / used, "first": median(firsts)}


def prompts(slots: int, turn: int) -> list[str]:
    numbers = range(turn * slots, (turn + 1) * slots)
    return [f"{n}. Write a long essay on this: {' '.join((WORDS * 2)[61 * n % len(WORDS) :][:55])}" for n in numbers]


def measure(asked: argparse.Namespace, slots: int) -> list[dict[str, Any]]:
    servers: list[Server] = []
    with contextlib.ExitStack() as stack:
        for side in asked.servers:
            name, command = side.split("=", 1)
            servers.append(Server(name, command, slots))
            stack.callback(servers[-1].stop)
            servers[-1].wait()  # before the next starts: vLLM looks at the memory that is free
        turns = []
        for turn in range(asked.rounds + 1):
            turns.append([server.take_turn(prompts(slots, turn), asked.tokens) for server in servers])
    rows = []
    for number, server in enumerate(servers):
        row: dict[str, Any] = {"slots": slots, "server": server.name}
        for key, power in (("rate", 1), ("own", 1), ("first", -1)):
            ratios = [(turn[number][key] / turn[0][key]) ** power for turn in turns[1:]]  # the first was the check
            for column, values in ((key, [turn[number][key] for turn in turns[1:]]), (f"{key}_ratio", ratios)):
                row[column] = [float(f"{statistic(values):.4g}") for statistic in (median, min, max)]
        print(*row.values(), sep=" | ", flush=True)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", metavar="NAME=COMMAND")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked, load = parser.parse_args(), os.getloadavg()[0]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and the servers with it
    print("slots | server | tokens/s | ratio | per processor second | ratio | first token, s | ratio")
    rows = [row for slots in asked.slots for row in measure(asked, slots)]
    if asked.out:
        found = {"arguments": vars(asked), **about(), "load": load, "rows": rows}
        asked.out.write_text(json.dumps(found, default=str) + "\n")


if __name__ == "__main__":
    main()
