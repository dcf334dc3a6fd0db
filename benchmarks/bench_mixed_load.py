"""What a batch of both families of a `caw.Recommended` costs, beside batches of one and beside two queues.

    python benchmarks/bench_mixed_load.py [--rows 16] [--requests 32] [--tokens 64] [--rounds 3] [--out FILE]

Half of the requests is greedy (KGW under CAW with a target), half is drawn at T = 0.7. Counted is the time of the
processor from the first prefill to the last token, by decoders planned as `caw serve` plans its own, with its drafts:

    greedy, drawn   one family alone, all requests of it, a batch of so many rows, its own plan
    mixed           both families in one batch, which is what the server does
    two queues      the same requests in two batches of half as many rows, one family each

Ends are off, so that every text has the same length. The texts of mixed load have to be those of one family alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

from bench_serve import prompts_of

import caw
from caw.benchmark.machine import about
from caw.decoding.decoder import Decoder
from caw.decoding.plan import make_plan
from caw.decoding.prompts import tokens_of
from caw.decoding.request import Request, Workload, requests_for
from caw.decoding.row_settings import RowSettings
from caw.models import DEMO_MODEL
from caw.models.facts import ModelFacts
from caw.policies.recommended import policy_for
from caw.settings import Settings

MARK = caw.Recommended(42)


class Bench:
    def __init__(self, asked: argparse.Namespace) -> None:
        self.model, self.tokenizer = caw.load_model(DEMO_MODEL, dtype="float32")
        self.facts, self.asked = ModelFacts.of(self.model, self.tokenizer), asked
        prompts = [tokens_of(self.tokenizer, prompt, True) for prompt in prompts_of(asked.requests)]
        plain = RowSettings(max_new_tokens=asked.tokens, ends=())
        drawn = dataclasses.replace(plain, do_sample=True, temperature=0.7, seed=1)
        budgets = [asked.tokens] * asked.requests
        self.greedy, self.drawn = (requests_for(prompts, budgets, [row] * len(prompts)) for row in (plain, drawn))
        self.mixed = [pair[place % 2] for place, pair in enumerate(zip(self.greedy, self.drawn, strict=True))]

    def decoded(self, requests: list[Request], mark: Any, rows: int) -> tuple[float, dict[tuple[Any, ...], list[int]]]:
        """(processor seconds, tokens by prompt and family) of these requests."""
        policy = policy_for(MARK, self.facts.name, raced=mark == MARK.drawn)
        settings = Settings(max_new_tokens=self.asked.tokens, return_trace=False, speculate="own")
        plan = make_plan(self.facts, mark, policy, settings, Workload.of(requests, rows, ()))
        started = time.process_time()
        done = {sequence.index: sequence.tokens for sequence in Decoder(self.model, plan).run(requests)}
        used = time.process_time() - started
        return used, {(tuple(r.ids), r.row.do_sample): done[place] for place, r in enumerate(requests)}

    def round(self) -> dict[str, float]:
        """Processor seconds of each, in turns."""
        rows, half = self.asked.rows, self.asked.rows // 2
        seconds, texts = {}, {}
        for name, requests, mark in (("greedy", self.greedy, MARK.greedy), ("drawn", self.drawn, MARK.drawn)):
            seconds[name], made = self.decoded(requests, mark, rows)
            texts |= made
        seconds["mixed"], mixed = self.decoded(self.mixed, MARK, rows)
        if any(texts[name] != tokens for name, tokens in mixed.items()):
            raise SystemExit("the texts of mixed load are not those of one family alone")
        queues = [self.decoded(self.mixed[place::2], mark, half)[0] for place, mark in enumerate(MARK.parts[::-1])]
        seconds["two queues"] = sum(queues)
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("rows", 16), ("requests", 32), ("tokens", 64), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    bench = Bench(asked)
    bench.decoded(bench.mixed[: asked.rows], MARK, asked.rows)  # what the first call allocates
    rounds = []
    for _ in range(asked.rounds):
        rounds.append(bench.round())
        print({name: round(seconds, 2) for name, seconds in rounds[-1].items()}, flush=True)
    made, rows = asked.requests * asked.tokens, []
    for name in rounds[0]:
        ratios = [one[name] / ((one["greedy"] + one["drawn"]) / 2) for one in rounds]
        rows.append({
            "load": name, "tokens_per_second": made / statistics.median(one[name] for one in rounds),
            "ratio": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios),
        })  # fmt: skip
        print(rows[-1], flush=True)
    if asked.out is not None:
        said = {"arguments": {name: value for name, value in vars(asked).items() if name != "out"}, **about()}
        asked.out.write_text(json.dumps({**said, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
