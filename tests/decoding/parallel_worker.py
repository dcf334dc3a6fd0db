"""One process of a tensor-parallel model: decodes, and writes what came out next to the model it was given."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from decoding.architectures import prompt, spread_evaluator, tokenizer
from torch import distributed
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

import caw
from caw.decoding import memory, plan
from caw.decoding.row_settings import RowLimits
from caw.models.facts import ModelFacts
from caw.policies import Policy
from caw.settings import Settings

PROMPTS = [prompt(5, 1), prompt(3, 2), prompt(9, 3), prompt(4, 4)]


def texts(model: Any, capacity: Policy) -> list[list[list[int]]]:
    """Tokens of the prompts without a watermark, with fixed strength, and with one from an evaluator."""
    jobs: list[tuple[Any, Any]] = [
        (None, None), (caw.KGW(key=1, delta=3.0), caw.FixedStrength(1.0)), (caw.KGW(key=1, delta=8.0), capacity),
        (caw.EXP(key=3), capacity),
    ]  # fmt: skip
    return [
        caw.generate(model, tokenizer(), PROMPTS, watermark=watermark, policy=policy, max_new_tokens=10).sequences
        for watermark, policy in jobs
    ]


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    distributed.init_process_group("gloo")
    cut = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto", dtype=torch.float32).eval()
    fits = memory.fitting_batch
    memory.fitting_batch = lambda batch, *rest: min(fits(batch, *rest), 3 - rank)  # type: ignore[assignment]
    capacity = caw.CapacityPolicy(spread_evaluator(whole), theta=0.8, beta=1.5)
    planned = plan.make_plan(ModelFacts.of(cut), None, caw.FixedStrength(1.0), Settings(), RowLimits(length=40), 4)
    found = {
        "cut": sum(isinstance(p, DTensor) for p in cut.parameters()),
        "batch": planned.batch,
        "whole": texts(whole, capacity), "parts": texts(cut, capacity),
    }  # fmt: skip
    (folder / f"found_{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
