"""The race at full strength: whether it draws from the model's own distribution, and what its step costs.

    python benchmarks/bench_full_race.py [--draws 200000] [--batches 1,8,16] [--out benchmarks/results/full_race.json]

nats: expected surprise of the winner under the model's plain distribution, at the last 32 positions of a fixed text of
the demo model, over `--draws` keys and positions, beside the model's own (exact) and what a race over the record of 100
gives. step: a decoding step of the demo model, greedy and unmarked, drawn and unmarked, drawn and raced, taking turns;
processor time of the process, relative to the greedy step, median of the rounds with their least and greatest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import caw
from caw import ops
from caw.benchmark.machine import about
from caw.models import DEMO_MODEL
from caw.record import RECORD_SIZE, Record
from caw.watermarks import Position
from caw.watermarks.keys import signed

TEXT = ("The old harbour was quiet when the first boats came back, and nobody on the pier could say why they had "
        "turned round so early in the season, long before the weather broke.")  # fmt: skip
SETTINGS = ((0.7, 1.0), (1.0, 1.0), (1.3, 1.0), (1.0, 0.95))  # temperature, top_p
POSITIONS, TOKENS, ROUNDS = 32, 32, 3


def warped_by(plain: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    warped = plain / temperature
    if top_p == 1:
        return warped
    order = warped.sort(descending=False)
    out = order.values.softmax(1).cumsum(1) <= 1 - top_p
    return warped.masked_fill(out.scatter(1, order.indices, out), -torch.inf)


def nats(model: Any, tokenizer: Any, draws: int) -> list[dict[str, float]]:
    with torch.inference_mode():
        plain = model(torch.tensor([tokenizer(TEXT).input_ids])).logits[0].float()[-POSITIONS:]
    context = torch.arange(POSITIONS)[:, None].expand(-1, 4).contiguous()
    rows = []
    for temperature, top_p in SETTINGS:
        warped = warped_by(plain, temperature, top_p)
        surprise, probs = -plain.double().log_softmax(1), warped.double().softmax(1)
        mean = (probs * surprise).sum(1)
        spread = ((probs * surprise.square()).sum(1) - mean.square()).mean().sqrt()
        kept = torch.full_like(warped, -torch.inf).scatter(1, (best := warped.topk(RECORD_SIZE)).indices, best.values)
        total, keys = 0.0, draws // POSITIONS
        for key in range(keys):
            winner = ops.race_winner(warped, context, torch.full((POSITIONS,), signed(key)))
            total += float(surprise.gather(1, winner[:, None]).sum())
        rows.append({
            "temperature": temperature, "top_p": top_p, "model": float(mean.mean()),
            "race": total / (keys * POSITIONS), "standard_error": float(spread) / (keys * POSITIONS) ** 0.5,
            "record_of_100": float((kept.double().softmax(1) * surprise).sum(1).mean()),
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def step_times(model: Any, tokenizer: Any, batch: int) -> list[dict[str, Any]]:
    """Milliseconds a step of each way, in turns; prompts are read outside what is timed."""
    prompt, drawn = tokenizer(TEXT).input_ids, {"do_sample": True, "temperature": 0.7}
    race = caw.EXP(key=5, strength="scale")
    ways = {"greedy": {}, "drawn": drawn, "race": {**drawn, "watermark": race},
            "race, variants": {**drawn, "watermark": caw.EXP(key=5, strength="scale", variants=64)},
            "drawn, top-p": {**drawn, "top_p": 0.95}, "race, top-p": {**drawn, "top_p": 0.95, "watermark": race},
            }  # fmt: skip

    def seconds(tokens: int, **way: Any) -> float:
        start = time.process_time()
        caw.generate(
            model, tokenizer, [prompt] * batch, max_new_tokens=tokens, min_new_tokens=tokens, batch_size=batch,
            return_trace=False, progress=False, speculate=None, **way,
        )  # fmt: skip
        return time.process_time() - start

    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, way in ways.items():
            one = (seconds(TOKENS, **way) - seconds(1, **way)) / (TOKENS - 1)
            if number:  # the first round warms up
                times[name].append(1e3 * one)
    rows = []
    for name, own in times.items():
        ratios = [a / b for a, b in zip(own, times["greedy"], strict=True)]
        rows.append({"batch": batch, "way": name, "ms": statistics.median(own), "ratio": statistics.median(ratios),
                     "low": min(ratios), "high": max(ratios)})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def same_winner(model: Any, tokenizer: Any) -> None:
    """The operator and its reference agree on the text's own rows."""
    with torch.inference_mode():
        logits = model(torch.tensor([tokenizer(TEXT).input_ids])).logits[0].float()
    context = torch.arange(len(logits))[:, None].expand(-1, 4).contiguous()
    record = Record.empty(len(logits), logits.device)
    at = Position(record, record.values, logits, context, logits)
    race = caw.EXP(key=5, strength="scale")
    assert torch.equal(race.whole_winner(at, native=True), race.whole_winner(at, native=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200_000)
    parser.add_argument("--batches", default="1,8,16")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    model, tokenizer = caw.load_model(DEMO_MODEL, dtype="float32")
    same_winner(model, tokenizer)
    steps = [row for batch in asked.batches.split(",") for row in step_times(model, tokenizer, int(batch))]
    found = {"nats": nats(model, tokenizer, asked.draws), "step": steps}
    if asked.out is not None:
        asked.out.write_text(
            json.dumps({"arguments": {"draws": asked.draws, "batches": asked.batches}, **about(), **found}, indent=1)
            + "\n"
        )


if __name__ == "__main__":
    main()
