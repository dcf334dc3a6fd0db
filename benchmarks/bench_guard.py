"""How often a guard with keeps="content" finds and keeps, and what it costs: GSM8K, everyday texts; by the key alone.

    python benchmarks/bench_guard.py gsm8k runs/guard-1e2.jsonl --model MODEL.gguf --data DATA --split test --alone
    python benchmarks/bench_guard.py gsm8k runs/guard-key.jsonl --model MODEL.gguf --data DATA --batch 1
    python benchmarks/bench_guard.py everyday runs/guard-everyday.jsonl --model smollm2-135m --judge MODEL.gguf
    python benchmarks/bench_guard.py gather runs/guard-*.jsonl --output benchmarks/results/guard.json.xz

For each batch of prompts: the unmarked texts without drafts, the guarded ones, and with --alone those of
`detectable_at` without a guard, all from prompts that were read before. Costs are CPU seconds on one thread, over those
of the unmarked texts; a batch of one leaves the number of rollouts at once to the library. Everyday texts are read by
another model. "same" is what evaluation reads, not the guard: whether the graded answers are equal. Results are
appended batch by batch, so a run can be stopped and continued; gathered, they hold no text. Runs that differ in their
keys alone are gathered as one; --add leaves the runs in OUTPUT whose settings no given file has. Gathered runs keep,
beside the means of all texts, what unmarked and guarded texts show under other keys (`other_keys`).
"""

import argparse
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
import transformers

import caw
from caw.benchmark.machine import about
from caw.detection import Detector
from caw_lab.evaluation.metrics.accuracy import interval, resampled, wilson
from caw_lab.evaluation.metrics.style import style_of
from caw_lab.evaluation.packed_files import compress, opened
from caw_lab.evaluation.tasks.grading import ANY_NUMBER, answer_of, same_number
from caw_lab.evaluation.tasks.gsm8k import GSM8K
from caw_lab.training.everyday import EVERYDAY

LONG = 90  # tokens
OTHER_KEYS = 20
# what is asked of every way: whether its texts keep this
KEEPS = caw.keeps.content()
WAYS = ("unmarked", "guard", "alone")
NULL_LEVELS = (0.01, 0.1, 0.5)
# those of a run
SETTINGS = ("what", "model", "evaluator", "weights", "subkeys", "context_width", "quantization", "split", "tokens",
            "level", "edits", "guard", "batch", "note")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("gsm8k", "everyday"):
        own = commands.add_parser(name)
        own.add_argument("out", type=Path, help="JSONL of results, continued if it exists")
        own.add_argument("--model", required=True)
        own.add_argument("--evaluator", help="of CAW; without one the strength is fixed")
        own.add_argument("--subkeys", type=int, default=256)
        own.add_argument("--context-width", type=int, default=4)
        own.add_argument("--quantization")
        own.add_argument("--first", type=int, default=0)
        own.add_argument("--count", type=int, default=100)
        own.add_argument("--level", type=float)
        own.add_argument("--edits", type=float, default=0.0)
        own.add_argument("--key", type=int, default=0, help="number of the key")
        own.add_argument("--guard", default="{}", help="further arguments of caw.Guard, as JSON")
        own.add_argument("--batch", type=int, default=8, help="texts at once")
        own.add_argument("--note", help="what sets a run apart from one of the same settings")
        own.add_argument("--alone", action="store_true", help="also detectable_at without a guard")
        own.add_argument(
            "--plain", action="store_true", help="the prompt as it is, for a model without a chat template"
        )
        if name == "gsm8k":
            own.add_argument("--data", help="folder with gsm8k/SPLIT.jsonl")
            own.add_argument("--weights", help="of the detector; without them it has the key alone")
            own.add_argument("--split", default="train")
            own.add_argument("--shots", type=int, default=5)
        else:
            own.add_argument("--tokens", type=int, default=200)
            own.add_argument("--judge", help="another model, which reads everyday texts")
    own = commands.add_parser("gather")
    own.add_argument("files", nargs="+", type=Path)
    own.add_argument("--output", type=Path)
    own.add_argument("--add", action="store_true", help="keep the runs in OUTPUT whose settings no file has")
    asked = parser.parse_args()
    if asked.what == "gather":
        gather(asked.files, asked.output, add=asked.add)
    else:
        run(asked)


class Setting:
    """What the runs of a call share: model, mark, detectors, prompts and the arguments of each way to mark."""

    def __init__(self, asked: Any) -> None:
        torch.set_num_threads(1)
        options = {"quantization": asked.quantization} if asked.quantization else {}
        self.model, self.tokenizer = caw.load_model(asked.model, device="cpu", **options)
        self.what = asked.what
        everyday, weighted = self.what == "everyday", getattr(asked, "weights", None)
        asked.level = asked.level or (0.001 if everyday else 0.01)
        key = int.from_bytes(hashlib.sha256(f"caw/guard/{asked.key}".encode()).digest()[:8], "big")
        mark = caw.KGW(
            key=key,
            gamma=0.25,
            delta=4.0 if everyday else 8.0,
            subkeys=asked.subkeys,
            context_width=asked.context_width,
        )
        policy = caw.CapacityPolicy(asked.evaluator, theta=0.9, beta=1.0) if asked.evaluator else caw.FixedStrength()
        self.detector = Detector(self.tokenizer, mark, asked.level, weights=weighted)
        self.others = [
            Detector(self.tokenizer, mark.with_key(number), asked.level, weights=weighted)
            for number in range(OTHER_KEYS)
        ]
        tested: dict[str, Any] = {
            "watermark": mark, "policy": policy, "detector": self.detector, "detectable_at": asked.level,
            "edits": asked.edits,
        }  # fmt: skip
        self.guard = caw.Guard(**{"keeps": KEEPS, **json.loads(asked.guard)})
        self.ways: dict[str, dict[str, Any]] = {"guard": {**tested, "guard": self.guard}}
        if asked.alone:
            self.ways["alone"] = {**tested, "best_of": 2 if self.what == "gsm8k" else 1}
        limits = {"max_new_tokens": 200, "stop": "Question:"} if self.what == "gsm8k" else None
        self.chat = limits is None and not asked.plain
        self.limits = limits or {"max_new_tokens": asked.tokens, "chat": self.chat}
        self.task, self.prompts = _questions(asked, self.what)
        judge = getattr(asked, "judge", None)
        self.judge = caw.load_model(judge, device="cpu") if judge else None


def run(asked: Any) -> None:
    its = Setting(asked)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = {line["id"] for line in lines[1:]}
    if not lines:
        asked.out.write_text(json.dumps({**vars(asked), "out": asked.out.name, "data": None}, default=str) + "\n")
    left = [each for each in its.prompts if each[0] not in done]
    for start in range(0, len(left), asked.batch):
        group, cache = left[start : start + asked.batch], caw.PromptCache()
        said = [prompt for _, prompt, _ in group]

        def timed(cache: Any = cache, said: Any = said, **more: Any) -> tuple[Any, float]:
            given = {"progress": False, "prompt_cache": cache, **its.limits, **more}
            if asked.batch > 1 or "guard" not in more:
                given["batch_size"] = asked.batch
            start = time.process_time()
            made = caw.generate(its.model, its.tokenizer, said, **given)
            return made, (time.process_time() - start) / len(said)

        timed(max_new_tokens=1)
        plain, seconds = timed(speculate=None)
        drafted = timed()[1] if asked.batch == 1 else None
        rows: list[dict[str, Any]] = []
        for number, (name, prompt, gold) in enumerate(group):
            row = {"id": name, "tokens": len(plain.sequences[number]), "seconds": seconds, "batch": len(group)}
            row["text"] = plain.texts[number]
            if drafted is not None:
                row["drafted"] = drafted
            rows.append(row | _said(its, prompt, plain, number, gold))
        for way, more in its.ways.items():
            made, seconds = timed(**more)
            for number, (row, (_, prompt, gold)) in enumerate(zip(rows, group, strict=True)):
                text, ids = made.texts[number], made.sequences[number]
                own: dict[str, Any] = {"text": text, "seconds": seconds, "tokens": len(ids)}
                own |= _said(its, prompt, made, number, gold)
                if made.receipts is None:
                    result: Any = its.detector(text)
                    own |= {"found": result.is_watermarked, "p": result.p_value}
                else:
                    receipt = made.receipts[number]
                    own |= {"found": receipt.detected, "p": receipt.p_value, "changes": receipt.changes}
                    own |= {"rollouts": receipt.rollouts, "attempts": receipt.attempts}
                own["kept"] = KEEPS(plain.texts[number], text)
                if its.task is not None:
                    one, other = (its.task.grade(each, gold).answer for each in (plain.texts[number], text))
                    own["same"] = one == other
                row[way] = own
        with asked.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        report([json.loads(line) for line in asked.out.read_text().splitlines()][1:])


def _questions(asked: Any, what: str) -> tuple[Any, list[tuple[str, str, Any]]]:
    """The task, None for all but GSM8K, and (name, prompt, right answer) of each question."""
    until = asked.first + asked.count
    if what == "gsm8k":
        task = GSM8K(
            "gsm8k", data=asked.data, split=asked.split, first=asked.first, count=asked.count, shots=asked.shots
        )
        return task, [(question.id, question.prompt, question.gold) for question in task.questions()]
    prompts = [json.loads(line)["prompt"] for line in EVERYDAY.read_text().splitlines()]
    return None, [(str(number), prompts[number], None) for number in range(asked.first, min(until, len(prompts)))]


def _said(its: Setting, prompt: str, made: Any, number: int, gold: Any) -> dict[str, Any]:
    """What a text is like: right, what it costs the model and the judge, n-grams, p-values under other keys."""
    text, ids = made.texts[number], made.sequences[number]
    null = [float(f"{detector(text).p_value:.3g}") for detector in its.others]  # type: ignore[union-attr]
    found: dict[str, Any] = {"null": null, "nats": nats(its.model, its.tokenizer, prompt, ids, chat=its.chat)}
    if its.task is not None:
        answer = answer_of(text)
        before = text[: text.lower().rfind("answer is")] if "answer is" in text.lower() else ""
        stands = answer is not None and any(same_number(each, answer) for each in ANY_NUMBER.findall(before))
        return {**found, "right": its.task.grade(text, gold).correct, "stands": stands}
    style = style_of(text)
    found |= {"distinct": style.distinct, "repeated": style.repeated}
    if its.judge is not None:
        model, tokenizer = its.judge
        theirs = tokenizer(text, add_special_tokens=False)["input_ids"]
        found["judged"] = nats(model, tokenizer, prompt, theirs, chat=its.chat) if theirs else 0.0
    return found


_READ: dict[int, tuple[list[int], Any]] = {}  # ids that a model has read, with its cache


def nats(model: Any, tokenizer: Any, prompt: str, ids: Sequence[int], *, chat: bool) -> float:
    """A model's cost of a text, nats per token."""
    if not ids:
        return 0.0
    if chat:
        given = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
        before = list(given["input_ids"] if not isinstance(given, list) else given)
    else:
        before = list(tokenizer(prompt)["input_ids"])
    known, cache = _READ.get(id(model), ([], None))
    same = next(
        (n for n, (a, b) in enumerate(zip(known, before, strict=False)) if a != b), min(len(known), len(before))
    )
    same = min(same, len(before) - 1)
    with torch.inference_mode():
        if cache is None or same < 16:
            cache, same = transformers.DynamicCache(), 0
        _shorten(cache, same)
        logits = model(torch.tensor([[*before[same:], *ids]]), past_key_values=cache, use_cache=True).logits
        logits = logits[0, len(before) - same - 1 : -1].float()
    _shorten(cache, len(before))
    _READ[id(model)] = before, cache
    said = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(list(ids))[:, None])
    return float(f"{-said.mean():.4g}")


def _shorten(cache: Any, tokens: int) -> None:
    """Leave the first tokens of a cache."""
    if (more := cache.get_seq_length() - tokens) > 0:
        cache.crop(-more)


def report(rows: Sequence[dict[str, Any]]) -> None:
    for line in summaries(rows):
        print(json.dumps(line), flush=True)


def summaries(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shares and costs of each way to mark, of all texts and of long ones.

    found, kept: shares, kept of those that are found; both: found and kept, with Wilson's interval. cost: CPU seconds
    over those of the unmarked texts, in all. null: shares of p-values under other keys that are at most .01, .1, .5.
    """
    made = []
    for way in WAYS:
        for name, least in (("all", 0), ("long", LONG), ("short", -LONG)):
            some = [row for row in rows if (row["tokens"] >= least if least >= 0 else row["tokens"] < -least)]
            some = [row for row in some if way == "unmarked" or way in row]  # not all runs have every way
            own = [row if way == "unmarked" else row[way] for row in some]
            if not own:
                continue
            null = [p for each in own for p in each["null"]]
            line: dict[str, Any] = {"way": way, "texts": name, "count": len(own)}
            line["keys"] = len({row.get("key") for row in some})
            line["null"] = [round(fmean(p <= level for p in null), 4) for level in NULL_LEVELS]
            for what in ("right", "stands", "same", "nats", "judged", "repeated"):
                if what in own[0]:
                    line[what] = round(fmean(each[what] for each in own), 4)
            if "distinct" in own[0]:
                line["distinct"] = [round(fmean(each["distinct"][n] for each in own), 4) for n in range(3)]
            if way != "unmarked":
                found = [each["found"] for each in own]
                line["found"] = round(fmean(found), 4)
                line["found_ci"] = [round(end, 4) for end in wilson(sum(found), len(found))]
                line["cost"] = round(sum(e["seconds"] for e in own) / sum(row["seconds"] for row in some), 3)
                if "drafted" in some[0]:
                    line["of_drafted"] = round(sum(e["seconds"] for e in own) / sum(row["drafted"] for row in some), 3)
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


def other_keys(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares of p-values under other keys of at most .01, .1, .5, and their difference, with bootstrap intervals."""
    read = {way: np.array([(row if way == "unmarked" else row[way])["null"] for row in rows]) for way in WAYS[:2]}
    weights = resampled(read["guard"].shape[1])
    found: dict[str, Any] = {"keys": weights.shape[1], "texts": len(rows)}
    shares = {way: np.stack([(p <= level).mean(axis=0) for level in NULL_LEVELS]) for way, p in read.items()}
    shares["difference"] = shares["guard"] - shares["unmarked"]
    for way, by_key in shares.items():
        drawn = weights @ by_key.T / weights.shape[1]
        found[way] = [
            [round(float(each), 4) for each in (mean, *(interval(drawn[:, number]) or (mean, mean)))]
            for number, mean in enumerate(by_key.mean(axis=1))
        ]
    return found


def gather(files: Sequence[Path], output: Path | None, *, add: bool = False) -> None:
    """Write what the pages show: of each setting the summary, and of each text its length, rollouts and success.

    add: the runs in the output whose settings no file has stay, each with the commit and machine of its own; of the
    others, the rows of the ways to mark that no file has stay, with their commit.
    """
    read: dict[str, dict[tuple[int, str], dict[str, Any]]] = {}
    for path in files:
        settings, *rows = [json.loads(line) for line in path.read_text().splitlines()]
        if not rows:  # a run that has just begun
            continue
        key = settings["key"]
        settings = settings | {"model": Path(settings["model"]).name}
        known = read.setdefault(setting_of(settings), {})
        known |= {(key, row["id"]): {**row, "key": key} for row in rows}  # a question that two files have counts once
    runs: dict[str, dict[str, Any]] = {}
    torch.set_num_threads(1)  # as in the runs
    made_by = about()
    if add and output is not None and output.exists():
        with opened(output) as file:
            old = json.load(file)
        its = {name: old[name] for name in made_by if old.get(name, made_by[name]) != made_by[name]}
        runs = {setting_of(run): its | run for run in old["runs"]}
    for name, known in read.items():
        rows = list(known.values())
        texts = [[row["tokens"], row["guard"]["rollouts"], int(_success(row["guard"]))] for row in rows]
        fresh, before = summaries(rows), runs.get(name, {})
        ways, made = {row["way"] for row in fresh}, {"commit": before.get("commit", made_by["commit"])}
        fresh += [made | row for row in before.get("rows", ()) if row["way"] not in ways]
        runs[name] = {**json.loads(name), "rows": fresh, "texts": texts, "null": other_keys(rows)}
        report(rows)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        found = {**made_by, "runs": list(runs.values())}
        content = (json.dumps(found, separators=(",", ":")) + "\n").encode()
        output.write_bytes(compress(content) if output.suffix == ".xz" else content)


def setting_of(run: dict[str, Any]) -> str:
    """What tells a run from others, as JSON; spaces in what was given to the guard do not."""
    own = {name: run[name] for name in SETTINGS if run.get(name) is not None}
    return json.dumps(own | {"guard": json.dumps(json.loads(own["guard"]), separators=(",", ":"))})


def _success(marked: dict[str, Any]) -> bool:
    return bool(marked["found"] and marked.get("kept", True))


if __name__ == "__main__":
    main()
