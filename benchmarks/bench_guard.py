"""How often a guard finds and keeps, and what it costs: GSM8K with keeps="results", everyday texts with "healed".

    python benchmarks/bench_guard.py gsm8k runs/guard-1e2.jsonl --model MODEL.gguf --data DATA --split test --alone
    python benchmarks/bench_guard.py everyday runs/guard-everyday.jsonl --model smollm2-135m
    python benchmarks/bench_guard.py gather runs/guard-*.jsonl --output benchmarks/results/guard.json

For each batch of prompts: the unmarked texts without drafts, the guarded ones, and with --alone those of
`detectable_at` without a guard, all from prompts that were read before. Costs are CPU seconds on one thread, over those
of the unmarked texts. Everyday texts are also marked at a fixed strength, and the model's own nats a token are read.
Results are appended batch by batch, so a run can be stopped and continued; they hold no text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

import caw
from caw.benchmark.machine import about
from caw.detection import Detector
from caw.evaluation.metrics.accuracy import wilson
from caw.evaluation.metrics.style import style_of
from caw.evaluation.tasks.gsm8k import GSM8K

LONG = 90  # tokens
OTHER_KEYS = 20
EVERYDAY = Path(__file__).parent / "evaluation" / "everyday.jsonl"
KEEPS = caw.keeps.results()
SETTINGS = ("what", "model", "quantization", "split", "level", "edits", "key", "guard", "batch")  # those of a run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("gsm8k", "everyday"):
        own = commands.add_parser(name)
        own.add_argument("out", type=Path, help="JSONL of results, continued if it exists")
        own.add_argument("--model", required=True)
        own.add_argument("--evaluator", help="None = the model's own")
        own.add_argument("--quantization")
        own.add_argument("--first", type=int, default=0)
        own.add_argument("--count", type=int, default=100)
        own.add_argument("--level", type=float)
        own.add_argument("--edits", type=float, default=0.0)
        own.add_argument("--key", type=int, default=0, help="number of the key")
        own.add_argument("--guard", default="{}", help="further arguments of caw.Guard, as JSON")
        own.add_argument("--batch", type=int, default=8, help="texts at once")
        own.add_argument("--alone", action="store_true", help="also detectable_at without a guard")
        if name == "gsm8k":
            own.add_argument("--data", help="folder with gsm8k/SPLIT.jsonl")
            own.add_argument("--weights", default="qwen2.5-coder-0.5b-cot")
            own.add_argument("--split", default="train")
            own.add_argument("--shots", type=int, default=5)
        else:
            own.add_argument("--tokens", type=int, default=200)
    own = commands.add_parser("gather")
    own.add_argument("files", nargs="+", type=Path)
    own.add_argument("--output", type=Path)
    asked = parser.parse_args()
    if asked.what == "gather":
        gather(asked.files, asked.output)
    else:
        run(asked)


def run(asked: Any) -> None:
    torch.set_num_threads(1)
    options = {"quantization": asked.quantization} if asked.quantization else {}
    model, tokenizer = caw.load_model(asked.model, device="cpu", **options)
    maths = asked.what == "gsm8k"
    asked.level = asked.level or (0.01 if maths else 0.001)
    key = int.from_bytes(hashlib.sha256(f"caw/guard/{asked.key}".encode()).digest()[:8], "big")
    mark = caw.KGW(key=key, gamma=0.25, delta=8.0 if maths else 4.0)
    policy = caw.CapacityPolicy(asked.evaluator or "universal", theta=0.9, beta=1.0)
    weights = asked.weights if maths else None
    detector = Detector(tokenizer, mark, asked.level, weights=weights)
    others = [Detector(tokenizer, mark.with_key(number), asked.level, weights=weights) for number in range(OTHER_KEYS)]
    tested: dict[str, Any] = {
        "watermark": mark, "policy": policy, "detector": detector, "detectable_at": asked.level, "edits": asked.edits,
    }  # fmt: skip
    guard = caw.Guard(keeps="results" if maths else "healed", **json.loads(asked.guard))
    ways: dict[str, dict[str, Any]] = {"guard": {**tested, "guard": guard}}
    if asked.alone:
        ways["alone"] = {**tested, "best_of": 2 if maths else 1}
    if not maths:
        ways["fixed"] = {"watermark": mark}
    limits = {"max_new_tokens": 200, "stop": "Question:"} if maths else {"max_new_tokens": asked.tokens, "chat": True}
    task, prompts = _questions(asked)
    lines = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = {line["id"] for line in lines[1:]}
    if not lines:
        asked.out.write_text(json.dumps({**vars(asked), "out": asked.out.name, "data": None}, default=str) + "\n")
    left = [each for each in prompts if each[0] not in done]
    for start in range(0, len(left), asked.batch):
        group, cache = left[start : start + asked.batch], caw.PromptCache()
        said = [prompt for _, prompt, _ in group]

        def timed(cache: Any = cache, said: Any = said, **more: Any) -> tuple[Any, float]:
            given = {"progress": False, "prompt_cache": cache, "batch_size": asked.batch, **limits, **more}
            start = time.process_time()
            made = caw.generate(model, tokenizer, said, **given)
            return made, (time.process_time() - start) / len(said)

        timed(max_new_tokens=1)
        plain, seconds = timed(speculate=None)
        rows: list[dict[str, Any]] = []
        for number, (name, _, gold) in enumerate(group):
            text = plain.texts[number]
            row = {"id": name, "tokens": len(plain.sequences[number]), "seconds": seconds, "batch": len(group)}
            row |= _said(text, task, gold, others)
            if not maths:
                row["nats"] = nats(model, tokenizer, said[number], plain.sequences[number])
            rows.append(row)
        for way, more in ways.items():
            made, seconds = timed(**more)
            for number, (row, (_, _, gold)) in enumerate(zip(rows, group, strict=True)):
                text, ids = made.texts[number], made.sequences[number]
                own: dict[str, Any] = {"seconds": seconds, "tokens": len(ids)} | _said(text, task, gold, others)
                if way == "fixed":
                    result: Any = detector(text)
                    own |= {"found": result.is_watermarked, "p": result.p_value}
                else:
                    receipt = made.receipts[number]
                    own |= {"found": receipt.detected, "p": receipt.p_value, "changes": receipt.changes}
                    own |= {"rollouts": receipt.rollouts, "attempts": receipt.attempts}
                if maths:
                    own["kept"] = KEEPS(plain.texts[number], text)
                else:
                    own["nats"] = nats(model, tokenizer, said[number], ids)
                row[way] = own
        with asked.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        report([json.loads(line) for line in asked.out.read_text().splitlines()][1:])


def _questions(asked: Any) -> tuple[Any, list[tuple[str, str, Any]]]:
    """The task, None for everyday texts, and (name, prompt, right answer) of each question."""
    if asked.what == "gsm8k":
        task = GSM8K(
            "gsm8k", data=asked.data, split=asked.split, first=asked.first, count=asked.count, shots=asked.shots
        )
        return task, [(question.id, question.prompt, question.gold) for question in task.questions()]
    lines = [json.loads(line) for line in EVERYDAY.read_text().splitlines()]
    some = lines[asked.first : asked.first + asked.count]
    return None, [(str(asked.first + number), line["prompt"], None) for number, line in enumerate(some)]


def _said(text: str, task: Any, gold: Any, others: Sequence[Detector]) -> dict[str, Any]:
    """Whether its answer is right, or its distinct n-grams; and its p-values under other keys."""
    null = [float(f"{detector(text).p_value:.3g}") for detector in others]  # type: ignore[union-attr]
    if task is None:
        return {"distinct": style_of(text).distinct, "null": null}
    return {"right": task.grade(text, gold).correct, "null": null}


def nats(model: Any, tokenizer: Any, prompt: str, ids: Sequence[int]) -> float:
    """The model's own cost of a text, nats per token."""
    before = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
    before = list(before["input_ids"] if not isinstance(before, list) else before)
    with torch.inference_mode():
        logits = model(torch.tensor([[*before, *ids]])).logits[0, len(before) - 1 : -1].float()
    said = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(list(ids))[:, None])
    return float(f"{-said.mean():.4g}")


def report(rows: Sequence[dict[str, Any]]) -> None:
    for line in summaries(rows):
        print(json.dumps(line), flush=True)


def summaries(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shares and costs of each way to mark, of all texts and of long ones.

    found, kept: shares, kept of those that are found; both: found and kept, with Wilson's interval. cost: CPU seconds
    over those of the unmarked texts, in all. null: shares of p-values under other keys that are at most .01, .1, .5.
    """
    made = []
    for way in ("unmarked", "guard", "alone", "fixed"):
        for name, least in (("all", 0), ("long", LONG), ("short", -LONG)):
            some = [row for row in rows if (row["tokens"] >= least if least >= 0 else row["tokens"] < -least)]
            own = [row if way == "unmarked" else row[way] for row in some if way == "unmarked" or way in row]
            if not own:
                continue
            null = [p for each in own for p in each["null"]]
            line: dict[str, Any] = {"way": way, "texts": name, "count": len(own)}
            line["null"] = [round(fmean(p <= level for p in null), 4) for level in (0.01, 0.1, 0.5)]
            if "right" in own[0]:
                line["right"] = round(fmean(each["right"] for each in own), 4)
            if "nats" in own[0]:
                line["nats"] = round(fmean(each["nats"] for each in own), 4)
                line["distinct"] = [round(fmean(each["distinct"][n] for each in own), 4) for n in range(3)]
            if way != "unmarked":
                found = [each["found"] for each in own]
                line["found"] = round(fmean(found), 4)
                line["found_ci"] = [round(end, 4) for end in wilson(sum(found), len(found))]
                line["cost"] = round(sum(e["seconds"] for e in own) / sum(row["seconds"] for row in some), 3)
                if "rollouts" in own[0] and own[0]["rollouts"] is not None:
                    line["rollouts"] = [round(fmean(e["rollouts"] for e in own), 2), median(e["rollouts"] for e in own)]
                if "kept" in own[0]:
                    both = [each["found"] and each["kept"] for each in own]
                    line["both"], line["both_ci"] = (
                        round(fmean(both), 4),
                        [round(e, 4) for e in wilson(sum(both), len(both))],
                    )
                    line["kept"] = round(fmean(each["kept"] for each in own), 4)
            made.append(line)
    return made


def gather(files: Sequence[Path], output: Path | None) -> None:
    """Write what the pages show: of each setting the summary, and of each text its length, rollouts and success."""
    read: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {}
    for path in files:
        settings, *rows = [json.loads(line) for line in path.read_text().splitlines()]
        settings = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
        settings["model"] = Path(settings["model"]).name
        _, known = read.setdefault(json.dumps(settings), (settings, {}))
        known |= {row["id"]: row for row in rows}  # a question that two files have counts once
    runs = []
    for settings, known in read.values():
        rows = list(known.values())
        texts = [[row["tokens"], row["guard"]["rollouts"], int(_success(row["guard"]))] for row in rows]
        runs.append({**settings, "rows": summaries(rows), "texts": texts})
        report(rows)
    if output is not None:
        torch.set_num_threads(1)  # as in the runs
        output.write_text(json.dumps({**about(), "runs": runs}, separators=(",", ":")) + "\n")


def _success(marked: dict[str, Any]) -> bool:
    return bool(marked["found"] and marked.get("kept", True))


if __name__ == "__main__":
    main()
