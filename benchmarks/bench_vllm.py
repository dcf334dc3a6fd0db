"""What marking costs inside vLLM: the share of a step that the processor takes, and whole runs marked over unmarked.

    python benchmarks/bench_vllm.py MODEL [--batches 1 16] [--rounds 9] [--out r.json]

Run it by an interpreter that has vLLM and this library (`tests/integrations/vllm_environment.py` makes such an
environment); MODEL is a folder. One engine makes all texts in one process with one thread; the ways take turns, a round
of each after the other. A share is the processor time of `update_state` and `apply` over that of the whole run, in the
same run, so that what else the machine does matters little. A ratio is a marked run's processor time over that of the
unmarked run with the same sampling and round. Each is the median of the rounds, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from functools import wraps
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

from caw.benchmark.machine import about
from caw.integrations.vllm import LogitsProcessor

PROFILES: dict[str, Any] = {
    "kgw": {"watermark": {"name": "kgw", "gamma": 0.25, "delta": 4.0}},
    "kgw with a target": {
        "watermark": {"name": "kgw", "gamma": 0.25, "delta": 4.0},
        "policy": {"name": "fixed", "target": 0.001},
    },
    "exp": {"watermark": {"name": "exp", "top_k": 10}},
    "recommended": {"watermark": {"name": "recommended"}},
}
UNMARKED = "off"
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "T .8": {"temperature": 0.8, "seed": 1},
    "T .8, top-p .95": {"temperature": 0.8, "top_p": 0.95, "seed": 1},
}
PROMPTS = [
    "Tell me about the history of tea.",
    "Why is the sky blue?",
    "How do I plan a garden?",
    "What is a good day?",
]


class Clock:
    """Seconds of this thread spent in the processor since `reset`."""

    def __init__(self) -> None:
        self.seconds, self.steps = 0.0, 0
        LogitsProcessor.update_state = self._timed(LogitsProcessor.update_state, 0)  # type: ignore[method-assign]
        LogitsProcessor.apply = self._timed(LogitsProcessor.apply, 1)  # type: ignore[method-assign]

    def reset(self) -> None:
        self.seconds, self.steps = 0.0, 0

    def _timed(self, method: Any, steps: int) -> Any:
        @wraps(method)
        def timed(*arguments: Any) -> Any:
            before = time.thread_time()
            try:
                return method(*arguments)
            finally:
                self.seconds, self.steps = self.seconds + time.thread_time() - before, self.steps + steps

        return timed


def engine_of(model: str, batch: int, profiles: dict[str, Any]) -> Any:
    from vllm import LLM

    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        said = {name: {"key": "house", **own} for name, own in profiles.items()}
        json.dump({"keys": {"house": "of a benchmark"}, "profiles": said, "default": UNMARKED, "opt_out": True}, file)
    os.environ["CAW_VLLM_CONFIG"] = file.name
    return LLM(
        model=model, dtype="float32", enforce_eager=True, max_model_len=1024, max_num_seqs=batch, seed=0,
        kv_cache_memory_bytes=1 << 30, enable_prefix_caching=False, generation_config="vllm",
        logits_processors=["caw.integrations.vllm:LogitsProcessor"],
    )  # fmt: skip


def run(engine: Any, clock: Clock, batch: int, tokens: int, profile: str, way: str) -> dict[str, float]:
    """Of `batch` texts of `tokens` tokens each."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, extra_args={"caw_profile": profile}, **WAYS[way])
    prompts = [f"{PROMPTS[number % len(PROMPTS)]} {number}" for number in range(batch)]
    clock.reset()
    wall, own = time.perf_counter(), time.process_time()
    answers = engine.generate(prompts, sampling, use_tqdm=False)
    own, wall = time.process_time() - own, time.perf_counter() - wall
    made = sum(len(answer.outputs[0].token_ids) for answer in answers)
    assert made == batch * tokens, f"{made} tokens"
    return {"cpu": own, "wall": wall, "share": clock.seconds / own, "apply_ms": 1e3 * clock.seconds / clock.steps,
            "step_ms": 1e3 * own / tokens}  # fmt: skip


def spread(values: list[float], digits: int) -> list[float]:
    return [round(f(values), digits) for f in (statistics.median, min, max)]


def rows_of(batch: int, rounds: list[dict[tuple[str, str], dict[str, float]]]) -> list[dict[str, Any]]:
    rows = []
    for profile, way in rounds[0]:
        mine = [found[profile, way] for found in rounds]
        base = [found[UNMARKED, way] for found in rounds]
        rows.append({
            "batch": batch, "mark": profile, "decoding": way,
            "step_ms": spread([own["step_ms"] for own in mine], 2),
            "processor_ms": spread([own["apply_ms"] for own in mine], 3),
            "share": spread([own["share"] for own in mine], 4),
            "ratio": spread([own["cpu"] / of["cpu"] for own, of in zip(mine, base, strict=True)], 4),
            "wall_ratio": spread([own["wall"] / of["wall"] for own, of in zip(mine, base, strict=True)], 4),
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=list(PROFILES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    clock, engine = Clock(), engine_of(arguments.model, max(arguments.batches), PROFILES)
    rows: list[dict[str, Any]] = []
    for batch in arguments.batches:
        cases = [(profile, way) for way in arguments.ways for profile in (UNMARKED, *arguments.profiles)]
        rounds = []
        for number in range(arguments.rounds + 1):
            found = {case: run(engine, clock, batch, arguments.tokens, *case) for case in cases}
            rounds += [found] * (number > 0)  # the first does not count
        rows += rows_of(batch, rounds)
        print(
            f"\nbatch {batch}\n| | step, ms | processor, ms | share of the step | over unmarked |\n| --- | --- | --- |"
        )
        for row in rows[-len(cases) :]:
            share, ratio = ("{:.4f} ({:.4f} to {:.4f})".format(*row[name]) for name in ("share", "ratio"))
            name = f"{row['mark']}, {row['decoding']}"
            print(f"| {name} | {row['step_ms'][0]} | {row['processor_ms'][0]} | {share} | {ratio} |", flush=True)
    if arguments.out:
        import vllm

        settings = {**vars(arguments), "model": Path(arguments.model).name, "out": None}
        said = {"arguments": settings, **about(), "vllm": vllm.__version__, "rows": rows}
        arguments.out.write_text(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
