"""What serving costs: tokens for each second of processor time, of `caw serve` and of `caw.iter_generate`.

    python benchmarks/bench_serve.py [--model smollm2-135m] [--clients 1 8 32] [--tokens 64] [--rounds 3] [--stream]

As many clients as the batch has rows ask one text after the other, two each. Both run in processes of their own with
the same prompts, key, policy, batch and threads, and take turns. Counted is the time of the processor (user and
system, all threads) from the first request to the last answer, of the server's process without its clients, and of
the library's. Loading and a warm-up come before. The texts of both have to be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KEY, EACH = "42", 2
LIBRARY = """
import json, os, sys, time
import caw
model, tokenizer = caw.load_model({model!r}, dtype="float32")
prompts = json.loads({prompts!r})
def make(some):
    found = [None] * len(some)
    for r in caw.iter_generate(model, tokenizer, some, watermark=caw.KGW(key=42), max_new_tokens={tokens},
                               batch_size={batch}, return_trace=False):
        found[r.index] = (r.text, len(r.tokens))
    return found
make(prompts[:{batch}])
for line in sys.stdin:
    before = time.process_time()
    found = make(prompts)
    print(json.dumps([time.process_time() - before, found]), flush=True)
"""


def prompts_of(count: int) -> list[str]:
    """Prompts that begin differently, so that nothing of them is read once for all."""
    topics = ("tea", "bridges", "rivers", "chess", "glass", "bees", "tides", "maps")
    return [f"{i}. Tell me about {topics[i % len(topics)]} in {1 + i // len(topics)} sentences." for i in range(count)]


async def ask_all(url: str, prompts: list[str], clients: int, tokens: int, stream: bool) -> list[tuple[str, int]]:
    """Every prompt, so many clients at once."""
    import openai

    free = asyncio.Semaphore(clients)

    async def one(prompt: str) -> tuple[str, int]:
        async with free:
            return await ask(prompt)

    async def ask(prompt: str) -> tuple[str, int]:
        options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
        answer: Any = await client.completions.create(
            model="model", prompt=prompt, max_tokens=tokens, temperature=0, stream=stream, **options
        )
        if not stream:
            return answer.choices[0].text, answer.usage.completion_tokens
        text, made = "", 0
        async for chunk in answer:
            text += "".join(choice.text for choice in chunk.choices)
            made = chunk.usage.completion_tokens if chunk.usage else made
        return text, made

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=3600) as client:
        return await asyncio.gather(*map(one, prompts))


def processor_seconds(pid: int) -> float:
    """User and system time of a process, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_server(arguments: argparse.Namespace, clients: int) -> tuple[subprocess.Popen[str], str]:
    """A server's process and its URL."""
    command = [
        sys.executable, "-m", "caw.cli", "serve", "--model", arguments.model, "--port", "0", "--dtype", "float32",
        "--policy", "fixed", "--batch-size", str(clients), "--max-waiting", "10000", "--name", "model",
        "--max-length", "512",
    ]  # fmt: skip
    process = subprocess.Popen(command, env={**os.environ, "CAW_KEY": KEY}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "listening at " in line:
            return process, line.split("listening at ")[1].strip()
    raise SystemExit("the server did not start")


def measure(arguments: argparse.Namespace, clients: int) -> dict[str, Any]:
    """Tokens for each second of processor time, of both in turns."""
    prompts = prompts_of(EACH * clients)
    script = LIBRARY.format(
        model=arguments.model, prompts=json.dumps(prompts), tokens=arguments.tokens, batch=clients
    )  # fmt: skip
    library = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    server, url = start_server(arguments, clients)
    assert library.stdin is not None and library.stdout is not None
    rates: dict[str, list[float]] = {"library": [], "server": []}
    try:
        asyncio.run(ask_all(url, prompts[:clients], clients, arguments.tokens, arguments.stream))
        for _ in range(arguments.rounds):
            print("go", file=library.stdin, flush=True)
            seconds, texts = json.loads(library.stdout.readline())
            rates["library"].append(sum(made for _, made in texts) / seconds)
            before, started = processor_seconds(server.pid), time.perf_counter()
            answers = asyncio.run(ask_all(url, prompts, clients, arguments.tokens, arguments.stream))
            wall, used = time.perf_counter() - started, processor_seconds(server.pid) - before
            if [list(pair) for pair in answers] != [list(pair) for pair in texts]:
                raise SystemExit("the server's texts are not the library's")
            rates["server"].append(sum(made for _, made in answers) / used)
            print(f"library {rates['library'][-1]:.2f}, server {rates['server'][-1]:.2f} tokens per CPU-second "
                  f"({wall:.1f} s)", flush=True)  # fmt: skip
    finally:
        library.stdin.close()
        server.terminate()
        library.wait(60)
        server.wait(60)
    ratios = [ours / theirs for ours, theirs in zip(rates["server"], rates["library"], strict=True)]
    return {"rates": rates, "ratio": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios),
            "clients": clients}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stream", action="store_true", help="every text as a stream")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    arguments = parser.parse_args()
    rows = []
    for clients in arguments.clients:
        rows.append(found := measure(arguments, clients))
        print(f"{clients} clients, server / library: {found['ratio']:.3f} ({found['least']:.3f} to "
              f"{found['greatest']:.3f})", flush=True)  # fmt: skip
    if arguments.json:
        said = {"command": " ".join(["python", "benchmarks/bench_serve.py", *sys.argv[1:]]), "model": arguments.model,
                "threads": os.environ.get("OMP_NUM_THREADS", "all"),
                "stream": arguments.stream, "tokens": arguments.tokens, "rows": rows}  # fmt: skip
        arguments.json.write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
