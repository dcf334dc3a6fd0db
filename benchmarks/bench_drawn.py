"""What drawing tokens costs over taking the likeliest: a step's time, greedy and drawn, plain and marked.

    python benchmarks/bench_drawn.py [--batches 1 8 16] [--tokens 24] [--rounds 7] [--dtypes float32] [--out r.json]
    python benchmarks/bench_drawn.py --shapes tiny    # random weights
    python benchmarks/bench_drawn.py --marks plain exp synthid exp+caw synthid+caw --ways greedy "T .7, top-p .95"
    python benchmarks/bench_drawn.py --marks plain kgw+caw kgw+window00 exp+caw exp+window00 --ways greedy

Milliseconds of processor time that a token of every text takes, in steps without drafts, with one thread (wall time
with more); the ways take turns, a round of each after the other. "steps": how many each token took; more than one where
the chosen candidate had not been forwarded. A ratio is over plain greedy at the same batch: the median of the rounds'
own ratios, with the least and the greatest; "over_race" is the same of SynthID over the race (EXP by scale) under the
same policy and words. "stages" says where the time goes; drawing is the ladder's. MARK+caw: under the capacity policy,
looking ahead; MARK+window00: with the model's evaluator of the current position alone, which does not; MARK+default:
under `CapacityPolicy()`.
"""

import argparse
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from stages import METHODS, STAGES, StageClock, interleaved, options, save

import caw
from caw.benchmark.subjects import Subject, load_subject, make_prompts
from caw.benchmark.timing import clock_for
from caw.policies import CapacityPolicy, Policy
from caw.watermarks import Watermark

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "T .7": {"do_sample": True, "temperature": 0.7},
    "T .7, top-p .95": {"do_sample": True, "temperature": 0.7, "top_p": 0.95},
    "T 1": {"do_sample": True},
    "T .7, top-k 40": {"do_sample": True, "temperature": 0.7, "top_k": 40},
    "T 1, min-p .05": {"do_sample": True, "min_p": 0.05},
}
MARKS: dict[str, Callable[[], Watermark | None]] = {
    "plain": lambda: None,
    "kgw": lambda: caw.KGW(key="drawn"),
    "exp": lambda: caw.EXP(key="drawn", strength="scale"),
    "synthid": lambda: caw.SynthID(key="drawn"),
}
CAW, WINDOW, DEFAULT = "+caw", "+window00", "+default"
BASE = "plain, greedy"
RATIOS = ("ratio", "over_race")


def steps_of(subject: Subject, batch: int, prompt: int, wanted: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """A generation for each mark and way; a text that ends early ends the run: it would make steps of fewer rows."""
    prompts = make_prompts(subject, batch, prompt)
    fixed = {
        "batch_size": batch,
        "max_new_tokens": wanted.tokens,
        "progress": False,
        "return_trace": False,
        "speculate": None,
        "slots": wanted.slots,
    }

    def generate(mark: str, way: str) -> None:
        watermark, policy = marks[mark]
        settings = {**fixed, **WAYS[way], "watermark": watermark, "policy": policy}
        made = caw.generate(subject.model, subject.tokenizer, prompts, **settings).sequences
        if any(len(tokens) < wanted.tokens for tokens in made):
            raise SystemExit(f"expected texts of {wanted.tokens} tokens, one ended early ({mark}, {way}); use fewer")

    marks = {mark: marked(mark, subject) for mark in wanted.marks}
    return {f"{mark}, {way}": partial(generate, mark, way) for mark in wanted.marks for way in wanted.ways}


def marked(name: str, subject: Subject) -> tuple[Watermark | None, Policy | None]:
    """A watermark, and its policy; None: its full strength."""
    mark, plus, kind = name.partition("+")
    if not plus:
        return MARKS[mark](), None
    if plus + kind == CAW:
        return MARKS[mark](), CapacityPolicy(evaluator=subject.evaluator)
    if plus + kind == DEFAULT:
        return MARKS[mark](), CapacityPolicy()
    if not isinstance(subject.evaluator, str):
        raise SystemExit(f"{WINDOW} needs a model with shipped evaluators, found random weights; leave out --shapes")
    return MARKS[mark](), CapacityPolicy(evaluator=f"{subject.evaluator}-window00")


def measured(
    calls: dict[str, Callable[[], Any]], tokens: int, rounds: int, clock: Callable[[], float]
) -> dict[str, dict[str, Any]]:
    """Milliseconds a token by name, and over the base, after a round that does not count."""
    found = interleaved(calls, rounds, clock)
    times = {name: [own_steps(watch) / tokens for watch in watches] for name, watches in found.items()}
    rows = {name: row_of(found[name], times[name], times[BASE], tokens) for name in found}
    for name in found:
        race = times.get(name.replace("synthid", "exp")) if name.startswith("synthid") else None
        if race is not None:
            rows[name]["over_race"] = ratio_of(times[name], race)
    return rows


def own_steps(watch: StageClock) -> float:
    """Milliseconds of all steps, without what lies between them."""
    return 1e3 * sum(watch.seconds[name] for name in METHODS.values())


def row_of(watches: list[StageClock], times: list[float], base: list[float], tokens: int) -> dict[str, Any]:
    stages = {name: statistics.median(1e3 * w.seconds[name] / tokens for w in watches) for name in STAGES}
    return {
        "step_ms": [round(f(times), 3) for f in (statistics.median, min, max)],
        "steps": round(statistics.median(w.steps / tokens for w in watches), 3),
        "ratio": ratio_of(times, base),
        "stages": {name: round(value, 3) for name, value in stages.items() if value},
    }


def ratio_of(steps: list[float], base: list[float]) -> list[float]:
    """Median, least and greatest of the rounds' ratios."""
    ratios = [step / of for step, of in zip(steps, base, strict=True)]
    return [round(f(ratios), 3) for f in (statistics.median, min, max)]


def main() -> None:
    parser = options(__doc__, batches=[1, 8, 16], prompt=64, tokens=24, rounds=7)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS)[:4])
    parser.add_argument(
        "--marks",
        nargs="+",
        choices=[*MARKS, *(name + more for name in MARKS if name != "plain" for more in (CAW, WINDOW, DEFAULT))],
        default=["plain", "kgw", "exp"],
    )
    parser.add_argument("--slots", type=int, help="candidates of a forward; the default of each watermark without it")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for dtype in arguments.dtypes:
        subject = load_subject(arguments.model, arguments.shapes, dtype, "cpu", None)
        _, clock = clock_for(subject.model.device, arguments.threads)
        for batch in arguments.batches:
            calls = steps_of(subject, batch, arguments.prompt, arguments)
            found = measured(calls, arguments.tokens, arguments.rounds, clock)
            header = f"| | ms a token | steps | over {BASE} | over the race | ladder | record | forward |"
            print(f"\n{dtype}, batch {batch}\n{header}", flush=True)
            print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
            for name, row in found.items():
                rows.append({"dtype": dtype, "batch": batch, "case": name, **row})
                stages = " | ".join(f"{row['stages'].get(stage, 0):.2f}" for stage in ("ladder", "record", "forward"))
                ratio, race = ("{:.3f} ({:.3f} to {:.3f})".format(*row[k]) if k in row else "" for k in RATIOS)
                print(
                    f"| {name} | {row['step_ms'][0]:.2f} | {row['steps']:.2f} | {ratio} | {race} | {stages} |",
                    flush=True,
                )
    save(arguments, rows)


if __name__ == "__main__":
    main()
