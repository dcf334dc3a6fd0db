"""What drafts save: plain and watermarked decoding with and without them, and transformers with its own look-up.

    python benchmarks/bench_drafts.py --model smollm2-135m --gsm8k FOLDER --raw FILE --json FILE

Four kinds of prompts: chat, GSM8K with worked examples (files of the data set, `train.jsonl` and `test.jsonl`, which
this repository does not hold), rewriting a text and editing code. All variants take turns at each prompt, so that each
ratio is of neighbours in time. Times are of the processor, of one thread, whatever else the machine does. Texts with
and without drafts are compared token by token. What was measured lies in --raw, and a second call goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

import caw
from caw.cost.machine import about
from caw.decoding.drafts.ngrams import NgramDrafter

CHAT = [
    "Why is the sky blue?",
    "Write a short story about a dog that learns to sail.",
    "What should I cook for six guests who eat no meat?",
    "Explain to a child how a bicycle stays upright.",
    "Give me three reasons to learn a second language.",
    "How do I keep tomato plants healthy in a dry summer?",
    "Describe a market square early in the morning.",
    "What is the difference between weather and climate?",
]
TEXTS = [
    "The library was built in nineteen hundred and four. It burned down once and was built again from the same plans. "
    "Today it holds forty thousand books, two reading rooms and a small cafe, and it is open every day but Monday.",
    "Bees find flowers by their colour and their smell. When a bee has found a good place, she flies home and dances. "
    "The dance tells the others how far away the flowers are, and in which direction from the sun they have to fly.",
    "My grandfather repaired clocks. He said that a clock is never broken, it has only stopped for a while. On his "
    "desk lay hundreds of small wheels, and he knew where each of them came from and where it belonged.",
    "Salt was once worth its weight in silver. Roads were built to carry it, and towns grew where the roads crossed. "
    "Soldiers were paid in it for a time. Today it stands on every table and nobody thinks of it twice.",
    "The lake freezes late in the year. First the small bays close, then the long arm in the north, and last of all "
    "the deep water in the middle. When the ice is thick enough, people drive across it to save an hour.",
    "A bicycle stays upright because it steers into a fall. When it leans to the left, the front wheel turns to the "
    "left, and the wheels come back under the rider. A rider learns to help it along without knowing how.",
    "The old bridge has seven arches. The third one fell in a flood and was built again in brick, as stone was dear "
    "that year. Boats pass under the middle arch alone, because the water beside it is shallow and full of sand.",
    "My aunt keeps a shop for buttons. Each kind has a drawer of its own, and on each drawer one button is sewn as a "
    "label. She finds any of four thousand kinds in a minute, and she has never written a list of them.",
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
    """def read_table(path, separator):
    rows = []
    with open(path) as lines:
        for line in lines:
            cells = line.strip().split(separator)
            rows.append(cells)
    return rows
""",
    """def is_prime(number):
    if number < 2:
        return False
    for divisor in range(2, number):
        if number % divisor == 0:
            return False
    return True


def primes_below(limit):
    return [number for number in range(limit) if is_prime(number)]
""",
    """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        return self.balance
""",
    """def word_counts(text):
    counts = {}
    for word in text.lower().split():
        word = word.strip(".,;:!?")
        if word in counts:
            counts[word] += 1
        else:
            counts[word] = 1
    return counts
""",
    """def moving_average(values, width):
    averages = []
    for start in range(len(values) - width + 1):
        window = values[start:start + width]
        averages.append(sum(window) / width)
    return averages
""",
    """class Timer:
    def __init__(self, clock):
        self.clock = clock
        self.started = None

    def start(self):
        self.started = self.clock()

    def stop(self):
        elapsed = self.clock() - self.started
        self.started = None
        return elapsed
""",
]
EDIT = "Add type hints to this Python code. Show the whole code again.\n\n```python\n{}```"
QUESTIONS, SHOTS, FIRST = 8, 4, 200  # of GSM8K's test questions, from this one on
TOKENS = {"GSM8K": 160, "rewriting": 100, "chat": 100, "code editing": 120}  # most of a text
KEY, WARM = 15_485_863, 2
IN_TURN = "GSM8K, one after the other"  # drafts also from the texts before; all else is as for each by itself


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


def variants(args: argparse.Namespace) -> dict[str, dict[str, Any] | None]:
    """Arguments of `caw.generate`; None = transformers."""
    policy = caw.CapacityPolicy(args.evaluator or args.model)
    marks: dict[str, dict[str, Any]] = {
        "plain": {},
        "KGW, CAW": {"watermark": caw.KGW(key=KEY, delta=args.delta), "policy": policy},
        "EXP, CAW": {"watermark": caw.EXP(key=KEY), "policy": policy},
    }
    drafting: Any = caw.load_model(args.drafter, dtype=args.dtype)[0] if args.drafter else "auto"
    found: dict[str, dict[str, Any] | None] = {
        f"{name}{said}": {**given, "speculate": how, "batch_size": args.batch}
        for name, given in marks.items() for said, how in (("", None), (" + drafts", drafting))
    }  # fmt: skip
    theirs = dict.fromkeys(("transformers", "transformers + look-up")) if args.batch == 1 and args.theirs else {}
    return {**found, **theirs}


def ours(model: Any, tokenizer: Any, given: dict[str, Any], ids: list[list[int]], tokens: int) -> Any:
    out = caw.generate(model, tokenizer, ids, max_new_tokens=tokens, progress=False, **given)
    return out.sequences, [trace.drafts for trace in out.trace or []]


def theirs(model: Any, tokenizer: Any, name: str, ids: list[list[int]], tokens: int) -> Any:
    more = {"prompt_lookup_num_tokens": 5} if "look-up" in name else {}
    out = model.generate(
        torch.tensor(ids), do_sample=False, max_new_tokens=tokens, pad_token_id=tokenizer.eos_token_id, **more
    )
    return [out[0, len(ids[0]) :].tolist()], []


def measure(call: Callable[[int], Any], most: int) -> dict[str, Any]:
    """Tokens of each text, what drafts did, and seconds a token without the prompts."""
    start = time.thread_time()
    call(WARM)
    prompt_time = time.thread_time() - start
    start = time.thread_time()
    texts, counts = call(most)
    seconds = time.thread_time() - start - prompt_time
    fewer = sum(max(len(text) - WARM, 0) for text in texts)
    return {"texts": texts, "seconds": seconds * sum(map(len, texts)) / max(fewer, 1),
            "counts": [asdict(count) for count in counts if count.passes]}  # fmt: skip


def samples(model: Any, tokenizer: Any, args: argparse.Namespace, kept: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(what was measured, figures) of all that is not in `kept`: of each kind the first texts, then the next ones."""
    chosen = variants(args)
    encoded = {kind: [encode(tokenizer, *one) for one in asked] for kind, asked in prompts(args.gsm8k).items()}
    shared = {name: NgramDrafter() for name in chosen if name.endswith("drafts")}
    for first in range(0, args.most - args.batch + 1, args.batch):
        for kind, every in encoded.items():
            ids, most = every[first : first + args.batch], min(args.tokens, TOKENS[kind])
            if len(ids) < args.batch:
                continue
            for name, given in chosen.items():
                if given is None and first < args.theirs:
                    yield from once(kept, kind, first, name, partial(theirs, model, tokenizer, name, ids), most)
                if given is not None:
                    yield from once(kept, kind, first, name, partial(ours, model, tokenizer, given, ids), most)
                if kind == "GSM8K" and name in shared and not args.drafter and args.batch == 1:
                    again = {**(given or {}), "speculate": shared[name]}
                    yield from once(kept, IN_TURN, first, name, partial(ours, model, tokenizer, again, ids), most)
                    shared[name].learn(kept[json.dumps([IN_TURN, first, name])]["texts"][0])


def once(
    kept: dict[str, Any], kind: str, first: int, name: str, call: Callable[[int], Any], most: int
) -> Iterator[tuple[str, Any]]:
    """A measurement, unless it is kept."""
    own = json.dumps([kind, first, name])
    if own not in kept:
        yield own, measure(call, most)


def rows_of(kept: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each kind of prompts and variant, of texts that all variants have had; speeds are of the same texts."""
    found: dict[tuple[str, str], dict[int, Any]] = {}
    for own, figures in kept.items():
        kind, first, name = json.loads(own)
        found.setdefault((kind, name), {})[first] = figures
    whole = {
        kind: set.intersection(
            *(set(made) for (of, name), made in found.items() if of == kind and "transf" not in name)
        )
        for kind, _ in found
    }
    for (kind, name), every in found.items():
        made = {first: figures for first, figures in every.items() if first in whole[kind] & whole[kind.split(",")[0]]}
        plain, before = (
            found[kind.split(",")[0], other]
            for other in ("plain", name.removesuffix(" + drafts").removesuffix(" + look-up"))
        )
        counts = [count for figures in made.values() for count in figures["counts"]]
        passes, drafted = (sum(count[what] for count in counts) for what in ("passes", "drafted"))
        tokens = sum(len(text) for figures in made.values() for text in figures["texts"])
        cost = cost_of(made, made)
        yield {
            "prompts": kind,
            "texts": sum(len(figures["texts"]) for figures in made.values()),
            "variant": name,
            "tokens": tokens,
            "ms_per_token": round(1e3 * cost, 3),
            "speed_over_plain": round(cost_of(plain, made) / cost, 3),
            "speed_over_without": round(cost_of(before, made) / cost, 3),
            "same_tokens": all(figures["texts"] == before[first]["texts"] for first, figures in made.items()),
            "tokens_per_pass": round(tokens / passes, 3) if passes else None,
            "rows_per_pass": round(sum(count["rows"] for count in counts) / passes, 3) if passes else None,
            "acceptance": round(sum(c["accepted"] for c in counts) / max(drafted, 1), 3) if passes else None,
        }


def cost_of(made: dict[int, Any], those: Sequence[int] | dict[int, Any]) -> float:
    """Seconds a token over those texts."""
    chosen = [made[first] for first in those]
    return sum(one["seconds"] for one in chosen) / sum(len(text) for one in chosen for text in one["texts"])


def encode(tokenizer: Any, text: str, chat: bool) -> list[int]:
    if not chat:
        return list(tokenizer(text)["input_ids"])
    message = [{"role": "user", "content": text}]
    return list(tokenizer(tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False),
                          add_special_tokens=False)["input_ids"])  # fmt: skip


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", help="as in caw.load_model")
    parser.add_argument("--drafter", help="a smaller model that guesses, in place of look-up")
    parser.add_argument("--evaluator", help="its name or file; without it, the model's name")
    parser.add_argument("--delta", type=float, default=2.5, help="of KGW")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch", type=int, default=1, help="texts at once")
    parser.add_argument("--tokens", type=int, default=200, help="most of a text; each kind has a limit of its own")
    parser.add_argument("--gsm8k", type=Path, help="folder with train.jsonl and test.jsonl; without it, no maths")
    parser.add_argument("--most", type=int, default=100, help="prompts of each kind")
    parser.add_argument("--theirs", type=int, default=2, help="of them, those that transformers is given too")
    parser.add_argument("--raw", type=Path, required=True, help="file of what was measured, gone on with")
    parser.add_argument("--json", type=Path, help="file for the results; rows of other runs stay")
    return parser.parse_args()


def main() -> None:
    args = options()
    torch.set_num_threads(1)
    model, tokenizer = caw.load_model(args.model, dtype=args.dtype, weights=args.weights)
    kept: dict[str, Any] = {}
    if args.raw.exists():
        kept = {line["what"]: line["figures"] for line in map(json.loads, args.raw.open())}
    with args.raw.open("a") as raw:
        for own, figures in samples(model, tokenizer, args, kept):
            kept[own] = figures
            raw.write(json.dumps({"what": own, "figures": figures}) + "\n")
            raw.flush()
            print(own, round(figures["seconds"], 2), flush=True)
    names = {"model": Path(args.model).name, "drafter": Path(args.drafter).name if args.drafter else None}
    own_row = {**names, "dtype": str(model.dtype).removeprefix("torch."), "weights": args.weights, "batch": args.batch}
    rows = [{**own_row, **row} for row in rows_of(kept)]
    for row in rows:
        print(*(f"{key}={value}" for key, value in row.items()))
    if args.json is not None:
        write(args, own_row, rows)


def write(args: argparse.Namespace, own: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    said = [f"--{name} {value}" for name, value in vars(args).items() if value and name not in ("gsm8k", "raw", "json")]
    said = [word.replace(str(Path(word.split()[-1]).parent) + "/", "") for word in said]
    found = json.loads(args.json.read_text()) if args.json.exists() else {"rows": [], "commands": {}}
    others = [row for row in found["rows"] if any(row.get(name) != value for name, value in own.items())]
    said += ["--gsm8k FOLDER"] if args.gsm8k else []
    command = f"python benchmarks/bench_drafts.py {' '.join(said)} --raw FILE --json FILE"
    found["commands"][" ".join(str(value) for value in own.values() if value)] = command
    found |= {"rows": others + rows, "threads": 1, "clock": "thread_time", "machine": about()}
    args.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
