"""A guard over streams beside one of whole texts: found, kept, the delay to the first words, and decodes.

    python benchmarks/bench_streams.py gsm8k runs/streams.jsonl --model MODEL.gguf --data DATA --count 8
    python benchmarks/bench_streams.py everyday runs/streams-everyday.jsonl --model MODEL.gguf --first 100 --count 8
    python benchmarks/bench_streams.py gather runs/streams*.jsonl --output benchmarks/results/guard_streams.json

Each prompt is read before. Costs and delays are CPU seconds on one thread over those of its unmarked text without
drafts; the delay ends with the first token that a streamer gets. Green lists of 4 tokens and 256 sub-keys, by the key
alone. Runs are continued text by text; gathered, they hold none.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

import caw
from caw.benchmark.machine import about
from caw_lab.evaluation.tasks.grading import answer_of
from caw_lab.evaluation.tasks.gsm8k import GSM8K
from caw_lab.training.everyday import EVERYDAY

KEY = int.from_bytes(hashlib.sha256(b"caw/guard/0").digest()[:8], "big")
SAID = ("p_value", "changes", "rollouts", "rolled", "windows", "subkey")


class Clock:
    """A streamer that notes when the first token came."""

    def __init__(self) -> None:
        self.begun, self.first = time.process_time(), None

    def put(self, tokens: torch.Tensor) -> None:
        if tokens.dim() == 1:  # the prompt has two
            self.first = self.first or time.process_time() - self.begun

    def end(self) -> None:
        return


def run(asked: Any) -> None:
    torch.set_num_threads(1)
    model, tokenizer = caw.load_model(asked.model, device="cpu")
    limits: dict[str, Any] = {"max_new_tokens": 200, "chat": True}
    if asked.what == "gsm8k":
        task = GSM8K("gsm8k", data=asked.data, split=asked.split, first=asked.first, count=asked.count, shots=5)
        prompts = [(each.id, each.prompt) for each in task.questions()]
        limits = {"max_new_tokens": 200, "stop": "Question:"}
    else:
        lines = EVERYDAY.read_text().splitlines()[asked.first : asked.first + asked.count]
        prompts = [(str(asked.first + number), json.loads(line)["prompt"]) for number, line in enumerate(lines)]
    mark = caw.KGW(KEY, context_width=4, subkeys=256)
    done = {json.loads(line)["id"] for line in asked.out.read_text().splitlines()} if asked.out.exists() else set()
    for name, prompt in prompts:
        if name in done:
            continue
        cache = caw.PromptCache()

        def timed(prompt: str = prompt, cache: Any = cache, **more: Any) -> tuple[Any, float]:
            begun = time.process_time()
            made = caw.generate(model, tokenizer, prompt, prompt_cache=cache, progress=False, **{**limits, **more})
            return made, time.process_time() - begun

        timed(max_new_tokens=1)
        plain, base = timed(speculate=None)
        row = {"id": name, "what": asked.what, "model": Path(asked.model).name, "tokens": len(plain.sequences[0])}
        row |= {"text": plain.texts[0], "ways": {}}
        for window in (0, *asked.windows):
            clock, guard = Clock(), caw.Guard(window=window or 64)
            shown = {"streamer": clock} if window else {}
            made, seconds = timed(watermark=mark, detectable_at=asked.level, guard=guard, **shown)
            [receipt] = made.receipts
            row["ways"][str(window)] = {
                "found": receipt.detected, "kept": receipt.kept, "cost": seconds / base, "text": made.texts[0],
                "first": (clock.first or seconds) / base, **{each: getattr(receipt, each) for each in SAID},
            }  # fmt: skip
        with asked.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


def gather(asked: Any) -> None:
    rows = [json.loads(line) for path in asked.files for line in path.read_text().splitlines()]
    lines = []
    for what, model in sorted({(row["what"], row["model"]) for row in rows}):
        some = [row for row in rows if (row["what"], row["model"]) == (what, model)]
        for window in some[0]["ways"]:
            own = [row["ways"][window] for row in some]
            same = [answer_of(row["text"]) == answer_of(each["text"]) for row, each in zip(some, own, strict=True)]
            lines.append({
                "what": what, "model": model, "window": int(window) or None, "texts": len(own),
                "tokens": round(fmean(row["tokens"] for row in some), 1), "ids": [row["id"] for row in some],
                "found": sum(each["found"] for each in own),
                "both": sum(each["found"] and each["kept"] for each in own),
                "cost": round(fmean(each["cost"] for each in own), 3),
                "first": round(median(each["first"] for each in own), 3),
                **({"same": sum(same)} if what == "gsm8k" else {}),
                **{each: round(fmean(one[each] or 0 for one in own), 2) for each in ("changes", "rollouts", "windows")},
                "p": [float(f"{each['p_value']:.3g}") for each in own],
            })  # fmt: skip
            print(json.dumps(lines[-1]))
    if asked.output:
        asked.output.write_text(json.dumps({**about(), "rows": lines}, separators=(",", ":")) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("gsm8k", "everyday"):
        own = commands.add_parser(name)
        own.add_argument("out", type=Path, help="JSONL of results, continued if it exists")
        own.add_argument("--model", required=True)
        own.add_argument("--first", type=int, default=0)
        own.add_argument("--count", type=int, default=8)
        own.add_argument("--level", type=float, default=0.01)
        own.add_argument("--windows", type=int, nargs="+", default=[64])
        own.add_argument("--split", default="train")
        own.add_argument("--data", help="folder with gsm8k/SPLIT.jsonl")
    own = commands.add_parser("gather")
    own.add_argument("files", nargs="+", type=Path)
    own.add_argument("--output", type=Path)
    asked = parser.parse_args()
    (gather if asked.what == "gather" else run)(asked)


if __name__ == "__main__":
    main()
