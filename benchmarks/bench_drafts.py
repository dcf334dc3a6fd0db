"""What drafts save: plain and watermarked decoding with and without them, and transformers with its own look-up.

    python benchmarks/bench_drafts.py --model smollm2-135m --gsm8k FOLDER --raw FILE --json FILE

Four kinds of prompts: chat, GSM8K with worked examples (files of the data set, `train.jsonl` and `test.jsonl`, which
this repository does not hold), rewriting a text and editing code. All variants take turns at each prompt, so that each
ratio is of neighbours in time. Times are of the processor, of one thread, whatever else the machine does. Texts with
and without drafts are compared token by token. What was measured lies in --raw, and a second call goes on behind it:
--minutes 5 makes a part, and the same command again the next one. In --json a row takes the place of an older one of
the same case, unless that is of more texts.

Times are those of the texts without their prompts.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from draft_prompts import prompts

import caw
from caw.benchmark.machine import about, best_instructions, processor
from caw.decoding.drafts.ngrams import NgramDrafter

TOKENS = {"GSM8K": 160, "rewriting": 100, "chat": 100, "code editing": 120}  # most of a text
KEY, WARM = 15_485_863, 2
IN_TURN = "GSM8K, one after the other"  # drafts also from the texts before; all else is as for each by itself
DRAFTS = " + drafts"
CASE = ("model", "dtype", "weights", "batch", "prompts", "variant")
LASTING = ("model", "weights", "evaluator", "delta", "dtype", "batch", "tokens")  # the same in all parts
Measured = dict[str, Any]


def variants(args: argparse.Namespace) -> dict[str, dict[str, Any] | None]:
    """Arguments of `caw.generate`; None = transformers."""
    policy = caw.CapacityPolicy(args.evaluator or args.model)
    marks: dict[str, dict[str, Any]] = {
        "plain": {},
        "KGW, CAW": {"watermark": caw.KGW(key=KEY, delta=args.delta), "policy": policy},
        "EXP, CAW": {"watermark": caw.EXP(key=KEY), "policy": policy},
    }
    found: dict[str, dict[str, Any] | None] = {
        f"{name}{said}": {**given, "speculate": how, "batch_size": args.batch}
        for name, given in marks.items() for said, how in (("", None), (DRAFTS, "auto"))
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


def measure(call: Callable[[int], Any], most: int, read: Callable[[], Any] | None = None) -> Measured:
    """Tokens of each text, what drafts did, and seconds of the texts without the prompts.

    read: puts the prompts into a cache that the call has, so that only what a drafter reads of them counts.
    """
    warm, start = 0 if read else WARM, time.thread_time()
    if read is None:
        call(warm)
        prompt_time = time.thread_time() - start
    else:
        read()
        prompt_time = 0.0
    start = time.thread_time()
    texts, counts = call(most)
    seconds = time.thread_time() - start - prompt_time
    fewer = sum(max(len(text) - warm, 0) for text in texts)
    return {"texts": texts, "seconds": seconds * sum(map(len, texts)) / max(fewer, 1),
            "counts": [asdict(count) for count in counts if count.passes]}  # fmt: skip


def samples(model: Any, tokenizer: Any, args: argparse.Namespace, kept: Measured) -> Iterator[tuple[str, Any]]:
    """(what was measured, figures) of all that is not in `kept`: of each kind the first texts, then the next ones."""
    chosen = variants(args)
    encoded = {kind: [encode(tokenizer, *one) for one in asked] for kind, asked in prompts(args.gsm8k).items()
               if not args.kinds or kind in args.kinds}  # fmt: skip
    shared = {name: NgramDrafter() for name in chosen if name.endswith(DRAFTS)}
    for first in range(0, args.most - args.batch + 1, args.batch):
        for kind, every in encoded.items():
            ids, most = every[first : first + args.batch], min(args.tokens, TOKENS[kind])
            if len(ids) < args.batch:
                continue
            cache = {"prompt_cache": caw.PromptCache()}
            for name, given in chosen.items():
                if given is None and first < args.theirs:
                    yield from once(kept, kind, first, name, partial(theirs, model, tokenizer, name, ids), most)
                if given is not None:
                    asked = {**given, **cache}
                    read = partial(ours, model, tokenizer, {**asked, "speculate": None}, ids, 1)
                    yield from once(kept, kind, first, name, partial(ours, model, tokenizer, asked, ids), most, read)
                if kind == "GSM8K" and name in shared and args.batch == 1:
                    again = partial(ours, model, tokenizer, {**asked, "speculate": shared[name]}, ids)
                    yield from once(kept, IN_TURN, first, name, again, most, read)
                    shared[name].learn(kept[json.dumps([IN_TURN, first, name])]["texts"][0])


def once(
    kept: Measured, kind: str, first: int, name: str, call: Callable[[int], Any], most: int,
    read: Callable[[], Any] | None = None,
) -> Iterator[tuple[str, Any]]:  # fmt: skip
    """A measurement, unless it is kept."""
    own = json.dumps([kind, first, name])
    if own not in kept:
        yield own, measure(call, most, read)


def rows_of(kept: Measured) -> Iterator[dict[str, Any]]:
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
        if not made:
            continue
        plain, before = (found[kind.split(",")[0], other] for other in ("plain", name.split(" + ")[0]))
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
    parser.add_argument("--evaluator", help="its name or file; without it, the model's name")
    parser.add_argument("--delta", type=float, default=2.5, help="of KGW")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch", type=int, default=1, help="texts at once")
    parser.add_argument("--tokens", type=int, default=200, help="most of a text; each kind has a limit of its own")
    parser.add_argument("--gsm8k", type=Path, help="folder with train.jsonl and test.jsonl; without it, no maths")
    parser.add_argument("--kinds", nargs="+", choices=[*TOKENS], help="of prompts; all, if none is named")
    parser.add_argument("--most", type=int, default=100, help="prompts of each kind")
    parser.add_argument("--theirs", type=int, default=2, help="of them, those that transformers is given too")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after them nothing more is begun")
    parser.add_argument("--raw", type=Path, required=True, help="file of what was measured, gone on with")
    parser.add_argument("--json", type=Path, help="file for the results; rows of other runs stay")
    return parser.parse_args()


def main() -> None:
    args, start = options(), time.monotonic()
    torch.set_num_threads(1)
    kept = kept_in(args)
    model, tokenizer = caw.load_model(args.model, dtype=args.dtype, quantization=args.weights)
    with args.raw.open("a") as raw:
        for own, figures in samples(model, tokenizer, args, kept):
            kept[own] = figures
            raw.write(json.dumps({"what": own, "figures": figures}) + "\n")
            raw.flush()
            print(own, round(figures["seconds"], 2), flush=True)
            if time.monotonic() - start > 60 * args.minutes:
                print("time is up; the same command goes on behind it")
                break
    own_row = {
        "model": Path(args.model).name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights": args.weights,
        "batch": args.batch,
    }
    ran_on = {"instructions": best_instructions(processor())}
    rows = [{**own_row, **row, **ran_on} for row in rows_of(kept)]
    for row in rows:
        print(*(f"{key}={value}" for key, value in row.items()))
    if args.json is not None:
        write(args, own_row, rows)


def kept_in(args: argparse.Namespace) -> Measured:
    """What was measured before with the same arguments; begins the file where there is none."""
    asked = {**{name: str(getattr(args, name)) for name in LASTING}, "instructions": best_instructions(processor())}
    if not args.raw.exists():
        args.raw.write_text(json.dumps({"what": "arguments", "figures": asked}) + "\n")
    kept = {line["what"]: line["figures"] for line in map(json.loads, args.raw.open())}
    begun = kept.pop("arguments", asked)
    if begun != asked:
        raise SystemExit(
            f"expected the arguments that {args.raw} was begun with, {begun}, got {asked}; name another file"
        )
    return kept


def write(args: argparse.Namespace, own: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    left_out = ("gsm8k", "raw", "json", "minutes", "kinds")
    said = [f"--{name} {value}" for name, value in vars(args).items() if value and name not in left_out]
    said = [word.replace(str(Path(word.split()[-1]).parent) + "/", "") for word in said]
    kinds = args.kinds or []
    said += ["--gsm8k FOLDER"] if args.gsm8k else []
    said += ["--kinds", *map(shlex.quote, kinds)] if kinds else []
    found = json.loads(args.json.read_text()) if args.json.exists() else {"rows": [], "commands": {}}
    command = f"python benchmarks/bench_drafts.py {' '.join(said)} --raw FILE --json FILE"
    found["processors"] = {**found.get("processors", {}), best_instructions(processor()): processor()}
    found["commands"][" ".join(str(value) for value in (*own.values(), *kinds) if value)] = command
    found |= {"rows": merged(found["rows"], rows), "threads": 1, "clock": "thread_time", "machine": about()}
    args.json.write_text(json.dumps(found, separators=(",", ":")) + "\n")


def merged(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows, cases of one kind beside each other; a case has its later row, or the one of more texts."""
    found = {tuple(row[name] for name in CASE): row for row in before}
    for row in now:
        case = tuple(row[name] for name in CASE)
        if case not in found or found[case]["texts"] <= row["texts"]:
            found[case] = row
        else:
            print("the older row stays, as it is of more texts:", *case)
    places: dict[Any, int] = {}
    for case in found:
        places.setdefault(case[:4], len(places))
        places.setdefault(case[:5], len(places))
    return [found[case] for case in sorted(found, key=lambda case: (places[case[:4]], places[case[:5]]))]


if __name__ == "__main__":
    main()
