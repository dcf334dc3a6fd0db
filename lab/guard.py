"""How often a guard finds and keeps, and what it costs, on GSM8K: `python lab/guard.py --help`.

For each batch of questions: the unmarked texts without drafts, the guarded ones, and with --alone those of
`detectable_at` without a guard, all from prompts that were read before. Costs are CPU seconds on one thread, over those
of the unmarked texts. Results are appended batch by batch, so a run can be stopped and continued; they hold no text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from pathlib import Path
from statistics import NormalDist, mean, median
from typing import Any

import torch

import caw
from caw.detection import Detector
from caw.evaluation.tasks.gsm8k import GSM8K

LONG = 90  # tokens
KEEPS = caw.keeps.results()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSONL of results, continued if it exists")
    parser.add_argument("--model", help="of Qwen2.5-Coder-0.5B; None = only report")
    parser.add_argument("--evaluator", default="qwen2.5-coder-0.5b")
    parser.add_argument("--weights", default="qwen2.5-coder-0.5b-cot")
    parser.add_argument("--quantization", default="file-fast")
    parser.add_argument("--data", help="folder with gsm8k/SPLIT.jsonl")
    parser.add_argument("--split", default="train")
    parser.add_argument("--first", type=int, default=6000)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--level", type=float, default=0.01)
    parser.add_argument("--edits", type=float, default=0.0)
    parser.add_argument("--key", type=int, default=0, help="number of the key")
    parser.add_argument("--guard", default="{}", help="further arguments of caw.Guard, as JSON")
    parser.add_argument("--batch", type=int, default=1, help="texts at once")
    parser.add_argument("--alone", action="store_true", help="also detectable_at without a guard")
    asked = parser.parse_args()
    if asked.model:
        run(asked)
    report(asked.out)


def run(asked: Any) -> None:
    torch.set_num_threads(1)
    model, tokenizer = caw.load_model(asked.model, device="cpu", quantization=asked.quantization)
    task = GSM8K("gsm8k", data=asked.data, split=asked.split, first=asked.first, count=asked.count, shots=asked.shots)
    number = int.from_bytes(hashlib.sha256(f"caw/lab/guard/{asked.key}".encode()).digest()[:8], "big")
    mark = caw.KGW(key=number, gamma=0.25, delta=8.0)
    policy = caw.CapacityPolicy(asked.evaluator, theta=0.9, beta=1.0)
    detector = Detector(tokenizer, mark, asked.level, weights=asked.weights)
    tested: dict[str, Any] = {
        "watermark": mark, "policy": policy, "detector": detector, "detectable_at": asked.level, "edits": asked.edits,
    }  # fmt: skip
    guard = caw.Guard(keeps="results", **json.loads(asked.guard))
    done = {json.loads(line)["id"] for line in asked.out.read_text().splitlines()} if asked.out.exists() else set()
    left = [question for question in task.questions() if question.id not in done]
    for start in range(0, len(left), asked.batch):
        group, cache = left[start : start + asked.batch], caw.PromptCache()
        prompts = [question.prompt for question in group]

        def timed(cache: Any = cache, prompts: Any = prompts, **options: Any) -> tuple[Any, float]:
            given = {
                "max_new_tokens": 200, "stop": "Question:", "progress": False, "prompt_cache": cache,
                "batch_size": asked.batch, **options,
            }  # fmt: skip
            start = time.process_time()
            made = caw.generate(model, tokenizer, prompts, **given)
            return made, (time.process_time() - start) / len(prompts)

        timed(max_new_tokens=1)
        plain, seconds = timed(speculate=None)
        rows: list[dict[str, Any]] = [
            {"id": question.id, "tokens": len(tokens), "seconds": seconds, "batch": asked.batch,
             "right": task.grade(text, question.gold).correct}
            for question, tokens, text in zip(group, plain.sequences, plain.texts, strict=True)
        ]  # fmt: skip
        for name, options in (("guard", {"guard": guard}), ("alone", {"best_of": 2})):
            if name == "alone" and not asked.alone:
                continue
            made, seconds = timed(**tested, **options)
            for number, (row, question, receipt) in enumerate(zip(rows, group, made.receipts, strict=True)):
                row[name] = {
                    "seconds": seconds, "found": receipt.detected, "p": receipt.p_value,
                    "kept": KEEPS(plain.texts[number], made.texts[number]), "tokens": len(made.sequences[number]),
                    "changes": receipt.changes, "rollouts": receipt.rollouts, "strength": receipt.strength_factor,
                    "right": task.grade(made.texts[number], question.gold).correct,
                }  # fmt: skip
        with asked.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        report(asked.out)


def interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's interval of a share, at 95 %."""
    z = NormalDist().inv_cdf(0.975)
    share, shrink = hits / count, 1 + z * z / count
    middle = (share + z * z / (2 * count)) / shrink
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / shrink
    return middle - half, middle + half


def report(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for name in ("guard", "alone"):
        for what, some in (("all", rows), (f"{LONG} tokens and more", [r for r in rows if r["tokens"] >= LONG])):
            some = [row for row in some if name in row]
            if not some:
                continue
            found = [row[name]["found"] for row in some]
            both = [row[name]["found"] and row[name]["kept"] for row in some]
            cost = [row[name]["seconds"] / row["seconds"] for row in some]  # of a batch, the mean of its texts
            low, high = interval(sum(both), len(both))
            whole = sum(row[name]["seconds"] for row in some) / sum(row["seconds"] for row in some)
            print(
                f"{name}, {what}: {len(some)} texts, found {mean(found):.3f}, found and kept {mean(both):.3f} "
                f"({low:.3f} to {high:.3f}), right {mean(row[name]['right'] for row in some):.3f} (unmarked "
                f"{mean(row['right'] for row in some):.3f}), unmarked decodes: in all {whole:.2f}, median "
                f"{median(cost):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
