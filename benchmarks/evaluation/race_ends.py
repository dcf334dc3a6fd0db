"""Whether a race ends texts as often as the model would: each end against its probability, along the sampled texts.

    python race_ends.py runs/qwen05race rows.jsonl --model MODEL.gguf --cells '*.race-[13].*' \\
        --output ../results/race_ends.json

Along each text of the run, at temperature 0.7: the sum over positions of the probability of an end token, and of
p (1 - p), which is the variance of "ended minus that sum" if each place is drawn from its distribution; and the nats
of the tokens, and their expectation. So a mark that ends texts later, or prefers some tokens, shows, and what the texts
say does not matter. The JSONL file holds no text and is continued.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import caw
from caw.benchmark.machine import about
from caw.models.teacher import teacher_forced
from caw_lab.evaluation.config_file import read_config

TEMPERATURE, TOGETHER, ROWS = 0.7, 100, 16


def read(run: Path, out: Path, model_file: Path, cells: str) -> None:
    torch.set_num_threads(1)
    known = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["cell"], row["id"]) for row in known}
    config = read_config(run / "config.yaml")
    prompts = {question.id: question.prompt for task in config.tasks.values() for question in task.questions(None)}
    model, tokenizer = caw.load_model(model_file, quantization="file-fast")
    ends = list(model.generation_config.eos_token_id)
    for folder in sorted((run / "cells").glob(cells)):
        lines = [line for path in folder.glob("generations.*.jsonl") for line in path.read_text().splitlines()]
        rows = [row for row in map(json.loads, lines) if (folder.name, row["id"]) not in done]
        for start in range(0, len(rows), TOGETHER):
            part = rows[start : start + TOGETHER]
            asked = [list(tokenizer(prompts[row["id"]])["input_ids"]) for row in part]
            texts = [([*ids, *row["tokens"]], len(ids)) for ids, row in zip(asked, part, strict=True)]
            for i, logits in teacher_forced(model, texts, share=True):
                tokens = part[i]["tokens"]
                found = {"id": part[i]["id"], "cell": folder.name, "n": len(tokens), "ended": tokens[-1] in ends}
                with out.open("a") as file:
                    file.write(json.dumps(found | along(logits, torch.tensor(tokens), ends)) + "\n")


def along(logits: torch.Tensor, tokens: torch.Tensor, ends: list[int]) -> dict[str, float]:
    """Sums over the places of a text; logits [n + 1, V], tokens [n]."""
    sums = dict.fromkeys(("eos", "var", "nats", "entropy"), 0.0)
    for at in range(0, len(tokens), ROWS):
        own = tokens[at : at + ROWS]
        logs = (logits[at : at + len(own)].float() / TEMPERATURE).log_softmax(1)
        chances = logs.exp()
        end = chances[:, ends].sum(1)
        sums["eos"] += float(end.sum())
        sums["var"] += float((end * (1 - end)).sum())
        sums["nats"] -= float(logs.gather(1, own[:, None]).sum())
        sums["entropy"] -= float((chances * logs).sum())
    return sums


def summaries(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """For each cell, and for all marked ones together: ends and nats beyond what is expected, with 95 % intervals."""
    marked = [row for row in rows if not row["cell"].endswith(".none")]
    for name in [*sorted({row["cell"] for row in rows}), "marked"]:
        some = marked if name == "marked" else [row for row in rows if row["cell"] == name]
        if not some:
            continue
        gain = statistics.mean(row["ended"] - row["eos"] for row in some)
        error = 1.96 * math.sqrt(sum(row["var"] for row in some)) / len(some)
        excess = [(row["nats"] - row["entropy"]) / row["n"] for row in some]
        nats, spread = statistics.mean(excess), 1.96 * statistics.stdev(excess) / math.sqrt(len(excess))
        yield {
            "cell": name, "texts": len(some), "ended": statistics.mean(row["ended"] for row in some),
            "ends beyond": [round(each, 5) for each in (gain, gain - error, gain + error)],
            "nats beyond": [round(each, 5) for each in (nats, nats - spread, nats + spread)],
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--model", type=Path, help="without it, only the summary is made")
    parser.add_argument("--cells", default="*")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    if asked.model is not None:
        read(asked.run, asked.rows, asked.model, asked.cells)
    found = list(summaries([json.loads(line) for line in asked.rows.read_text().splitlines()]))
    for row in found:
        print(row)
    if asked.output is not None:
        asked.output.write_text(json.dumps({**about(), "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
