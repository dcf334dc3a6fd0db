"""Where the time of a step goes on a CPU, by stage, plain and marked.

    python benchmarks/bench_stages.py [--model smollm2-135m] [--batches 1 8] [--tokens 48] [--rounds 5] [--out r.json]

Milliseconds a step, medians of the rounds; the modes take turns. "forward" is the model, "record" the top-100 of each
row, "evaluate + select" one operator, "host loop" everything outside the steps but setup and prefill. The
stages of a row add up to its step (medians nearly so). Processor time with one thread, else wall time: run it on an
idle machine.
"""

import warnings
from typing import Any

import torch
from stages import STAGES, breakdown, options, save

from caw.benchmark.modes import ModeInputs, call_of
from caw.benchmark.subjects import load_subject, make_prompts
from caw.benchmark.timing import clock_for

MODES = ("plain", "kgw", "kgw+caw", "exp+caw")


def main() -> None:
    parser = options(__doc__, batches=[1, 8], prompt=128, tokens=48, rounds=5)
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for dtype in arguments.dtypes:
        subject = load_subject(arguments.model, arguments.shapes, dtype, "cpu", None)
        _, clock = clock_for(subject.model.device, arguments.threads)
        for batch in arguments.batches:
            inputs = ModeInputs(subject, make_prompts(subject, batch, arguments.prompt), theta=0.8, beta=1.0)
            calls = {mode: call_of(mode, inputs) for mode in arguments.modes}
            found = breakdown(calls, arguments.tokens, arguments.rounds, clock)
            rows += [{"dtype": dtype, "batch": batch, "mode": mode, **row} for mode, row in found.items()]
            print(f"\n{dtype}, batch {batch}: ms a step\n{table(found)}", flush=True)
    save(arguments, rows)


def table(found: dict[str, dict[str, Any]]) -> str:
    """Stages down, modes across."""
    lines = [f"| stage | {' | '.join(found)} |", "| --- |" + " ---: |" * len(found)]
    for stage in STAGES:
        cells = [row["stages"].get(stage) for row in found.values()]
        if any(cells):
            figures = [f"{cell['median']:.3f}" if cell else "" for cell in cells]
            lines.append(f"| {stage} | {' | '.join(figures)} |")
    whole = [f"{row['step_ms']['median']:.3f}" for row in found.values()]
    return "\n".join([*lines, f"| **step** | {' | '.join(whole)} |"])


if __name__ == "__main__":
    main()
