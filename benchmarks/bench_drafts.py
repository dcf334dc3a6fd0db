"""What drafts save: plain and watermarked decoding with and without them, and transformers with its own look-up.

    python benchmarks/bench_drafts.py --model smollm2-135m --gsm8k FOLDER --json benchmarks/results/drafts.json

Four kinds of prompts: chat, GSM8K with worked examples (files of the data set, `train.jsonl` and `test.jsonl`, which
this repository does not hold), rewriting a text and editing code. All variants take turns at each prompt, so that each
ratio is of neighbours in time. Times are of the processor, of one thread, whatever else the machine does. Texts with
and without drafts are compared token by token.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import caw
from caw.cost.machine import about

CHAT = [
    "Why is the sky blue?",
    "Write a short story about a dog that learns to sail.",
    "What should I cook for six guests who eat no meat?",
    "Explain to a child how a bicycle stays upright.",
    "Give me three reasons to learn a second language.",
    "How do I keep tomato plants healthy in a dry summer?",
]
TEXTS = [
    "The library was built in nineteen hundred and four. It burned down once and was built again from the same plans. "
    "Today it holds forty thousand books, two reading rooms and a small cafe, and it is open every day but Monday.",
    "Bees find flowers by their colour and their smell. When a bee has found a good place, she flies home and dances. "
    "The dance tells the others how far away the flowers are, and in which direction from the sun they have to fly.",
    "My grandfather repaired clocks. He said that a clock is never broken, it has only stopped for a while. On his "
    "desk lay hundreds of small wheels, and he knew where each of them came from and where it belonged.",
]
REWRITE = "Repeat the following text word for word, but replace every full stop by an exclamation mark.\n\n{}"
CODES = [
    """def mean(values):
    total = 0
    for value in values:
        total = total + value
    return total / len(values)


def variance(values):
    center = mean(values)
    total = 0
    for value in values:
        total = total + (value - center) ** 2
    return total / len(values)
""",
    """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()

    def is_empty(self):
        return len(self.items) == 0
""",
]
EDIT = "Add type hints to this Python code. Show the whole code again.\n\n```python\n{}```"
QUESTIONS, SHOTS, FIRST = 6, 4, 200  # of GSM8K's test questions, from this one on
KEY, WARM = 15_485_863, 2


def prompts(gsm8k: Path | None) -> dict[str, list[tuple[str, bool]]]:
    """(prompt, whether it is a chat) of each kind."""
    found: dict[str, list[tuple[str, bool]]] = {}
    if gsm8k is not None:
        train, test = ([json.loads(x) for x in (gsm8k / f"{name}.jsonl").open()] for name in ("train", "test"))
        shown = "".join(f"Question: {x['question']}\nAnswer: {x['answer']}\n\n" for x in train[:SHOTS])
        asked = test[FIRST : FIRST + QUESTIONS]
        found["GSM8K"] = [(f"{shown}Question: {x['question']}\nAnswer:", False) for x in asked]
    found["rewriting"] = [(REWRITE.format(text), True) for text in TEXTS]
    found["chat"] = [(text, True) for text in CHAT]
    found["code editing"] = [(EDIT.format(code), True) for code in CODES]
    return found


def variants(evaluator: str) -> dict[str, dict[str, Any] | None]:
    """Arguments of `caw.generate`; None = transformers."""
    policy = caw.CapacityPolicy(evaluator)
    marks = {
        "plain": {},
        "KGW, CAW": {"watermark": caw.KGW(key=KEY, delta=2.5), "policy": policy},
        "EXP, CAW": {"watermark": caw.EXP(key=KEY), "policy": policy},
    }
    own = {f"{name}{said}": {**given, "speculate": how} for name, given in marks.items()
           for said, how in (("", None), (" + drafts", "auto"))}  # fmt: skip
    return {**own, "transformers": None, "transformers + look-up": None}


def call(model: Any, tokenizer: Any, name: str, given: dict[str, Any] | None, tokens: int) -> Callable[..., Any]:
    """ids -> (tokens, what drafts did)."""
    if given is not None:

        def ours(ids: list[int], tokens: int = tokens) -> tuple[list[int], Any]:
            out = caw.generate(model, tokenizer, [ids], max_new_tokens=tokens, progress=False, **given)
            return out.sequences[0], out.trace[0].drafts if out.trace else None

        return ours
    more = {"prompt_lookup_num_tokens": 5} if "look-up" in name else {}

    def theirs(ids: list[int], tokens: int = tokens) -> tuple[list[int], Any]:
        out = model.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=tokens, pad_token_id=tokenizer.eos_token_id, **more
        )
        return out[0, len(ids) :].tolist(), None

    return theirs


def measure(
    model: Any, tokenizer: Any, asked: list[tuple[str, bool]], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each variant."""
    chosen = variants(args.evaluator or args.model)
    calls = {name: call(model, tokenizer, name, given, args.tokens) for name, given in chosen.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    made: dict[str, list[tuple[list[int], Any]]] = {name: [] for name in calls}
    for text, chat in asked:
        ids = encode(tokenizer, text, chat)
        for name, one in calls.items():
            start = time.thread_time()
            one(ids, WARM)
            prompt_time = time.thread_time() - start
            start = time.thread_time()
            result = one(ids)
            made[name].append(result)
            seconds[name].append((time.thread_time() - start - prompt_time) / max(len(result[0]) - WARM, 1))
    rows, cost = [], {name: weighted(seconds[name], made[name]) for name in calls}
    for name in calls:
        before = name.removesuffix(" + drafts").removesuffix(" + look-up")
        counts = [count for _, count in made[name] if count is not None and count.passes]
        tokens = sum(len(new) for new, count in made[name] if count is not None and count.passes)
        rows.append({
            "variant": name,
            "tokens": sum(len(new) for new, _ in made[name]),
            "ms_per_token": round(1e3 * cost[name], 3),
            "speed_over_plain": round(cost["plain"] / cost[name], 3),
            "speed_over_without": round(cost[before] / cost[name], 3),
            "same_tokens": [new for new, _ in made[name]] == [new for new, _ in made[before]],
            "tokens_per_pass": round(tokens / sum(c.passes for c in counts), 3) if counts else None,
            "rows_per_pass": round(sum(c.rows for c in counts) / sum(c.passes for c in counts), 3) if counts else None,
            "acceptance": round(sum(c.accepted for c in counts) / max(sum(c.drafted for c in counts), 1), 3)
            if counts else None,
        })  # fmt: skip
    return rows


def weighted(seconds: list[float], made: list[tuple[list[int], Any]]) -> float:
    """Seconds a token over all texts."""
    return sum(s * len(new) for s, (new, _) in zip(seconds, made, strict=True)) / sum(len(new) for new, _ in made)


def encode(tokenizer: Any, text: str, chat: bool) -> list[int]:
    if not chat:
        return list(tokenizer(text)["input_ids"])
    message = [{"role": "user", "content": text}]
    return list(tokenizer(tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False),
                          add_special_tokens=False)["input_ids"])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--evaluator", help="its name or file; without it, the model's name")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=80, help="most of a text")
    parser.add_argument("--gsm8k", type=Path, help="folder with train.jsonl and test.jsonl; without it, no maths")
    parser.add_argument("--most", type=int, default=100, help="prompts of each kind")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = caw.load_model(args.model, dtype=args.dtype)
    name = Path(args.model).name
    command = (
        f"python benchmarks/bench_drafts.py --model {name} --dtype {args.dtype} --gsm8k FOLDER --most {args.most} "
        f"--tokens {args.tokens} --json FILE"
    )
    found: dict[str, Any] = {"rows": []}
    if args.json is not None and args.json.exists():
        found = json.loads(args.json.read_text())
    found["rows"] = [row for row in found["rows"] if row["model"] != name]  # of other models they stay
    found |= {
        "command": command,
        "tokens": args.tokens,
        "batch": 1,
        "threads": 1,
        "clock": "thread_time",
        "machine": about(),
    }
    for kind, asked in prompts(args.gsm8k).items():
        print(kind)
        for row in measure(model, tokenizer, asked[: args.most], args):
            print("   ", *(f"{key}={value}" for key, value in row.items()), flush=True)
            dtype = str(model.dtype).removeprefix("torch.")
            found["rows"].append(
                {"model": name, "dtype": dtype, "prompts": kind, "texts": len(asked[: args.most]), **row}
            )
        if args.json is not None:
            args.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
