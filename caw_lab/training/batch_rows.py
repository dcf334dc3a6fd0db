"""How many candidates real texts have, and so how many rows a step of a batch needs: everyday texts under EXP and CAW.

python -m caw_lab.training.batch_rows benchmarks/results/rows.json
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

import caw
from caw.benchmark.modes import ModeInputs, parts_of
from caw.benchmark.subjects import load_subject
from caw.decoding.capture.fused_step import pack, row_budget
from caw.defaults import THETA
from caw.io.files import write_text
from caw.models import DEMO_MODEL
from caw_lab.training.everyday import EVERYDAY

MODE, TEXTS, TOKENS, WIDTH = "exp+caw", 42, 64, 8


def count() -> dict[str, Any]:
    """counts: of each text its candidates, token by token; choices: which was taken; a digit each. rows: by batch."""
    subject = load_subject(DEMO_MODEL, None, "float32", "cpu", None)
    lines = EVERYDAY.read_text(encoding="utf-8").splitlines()[:TEXTS]
    prompts = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines]
    watermark, policy, _ = parts_of(MODE, ModeInputs(subject, [], THETA, None))
    options: dict[str, Any] = {"batch_size": TEXTS, "max_new_tokens": TOKENS, "chat": True, "return_trace": True}
    out = caw.generate(subject.model, subject.tokenizer, prompts, watermark=watermark, policy=policy, **options)
    counts = ["".join(str(len(one)) for one in text.candidates).ljust(TOKENS, "1") for text in out.trace or ()]
    choices = ["".join(map(str, text.choice)).ljust(TOKENS, "0") for text in out.trace or ()]
    rows = [of_batch(batch, counts, choices) for batch in (4, 8, 16, 32, 42)]
    return {"model": DEMO_MODEL, "mode": MODE, "counts": counts, "choices": choices, "rows": rows}


def of_batch(batch: int, counts: list[str], choices: list[str]) -> dict[str, Any]:
    """Of whole batches in order: rows that a step needs and has, and the share of tokens that wait for one."""
    budget, needed, waits = row_budget(batch, WIDTH) or WIDTH * batch, [], []
    for start in range(0, len(counts) - batch + 1, batch):
        of_texts = (zip(*digits[start : start + batch], strict=True) for digits in (counts, choices))
        for now, taken in zip(*of_texts, strict=True):
            wanted = torch.tensor(list(map(int, now)))
            carried = pack(torch.zeros(batch, WIDTH, dtype=torch.int64), wanted, budget).carried.tolist()
            needed.append(int(wanted.sum()))
            waits += [int(one) >= most for one, most in zip(taken, carried, strict=True)]
    found = {"batch": batch, "rows": budget, "mean": round(sum(needed) / len(needed), 1), "most": max(needed)}
    return {**found, "waiting": round(sum(waits) / len(waits), 5)}


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), json.dumps(count()) + "\n")
