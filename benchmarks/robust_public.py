"""Tests of robustness that others wrote: their texts, prompts, edits and scores.

    python benchmarks/robust_public.py natzir markmywords waterbench --public PUBLIC --folder FOLDER --models MODELS

PUBLIC holds checkouts of natzir/synthid-text-watermark-attacks, wagner-group/MarkMyWords and THU-KEG/WaterBench, each
in a folder of its owner's name. Nothing of them is kept here.

    natzir       SynthID texts of a 7B and what an 8B made of them: its own column (z >= 2.326) beside both our readings
    markmywords  its prompts and perturbations; share found at p <= .02, and its "size": tokens from which on p stays
                 there, the median, null if more than half of the texts never do. Its third axis, a model's rating of
                 quality, and the attacks that need a model are left out, and so is the area that they enter
    waterbench   the four tasks of short prompts, drawn at a temperature of .7, with its scores
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from bench_cost import Loaded, coded
from bench_robust import LEVELS, UNMARKED, mark_of

import caw
from caw.benchmark.machine import about
from caw.io.files import write_text

KEY = "tests of others"
MARKS = (UNMARKED, "recommended", "SynthID", "KGW 2 nats")
SETS, UNDER = ("en", "es", "long", "low"), {"paraphrase", "rt_es", "rt_en", "rt_zh", "sira", "paraphrase_ch", "sira_ch"}
TEXTS, ASKED, TOKENS, TARGET = 32, 16, 300, 0.02
TASKS = {
    "1-1_konwledge_memorization": 32, "1-2_konwledge_understanding": 16,
    "2-1_longform_qa": 300, "2-2_finance_qa": 300,
}  # fmt: skip


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def natzir(public: Path, loaded: Loaded) -> Iterator[dict[str, Any]]:
    here = public / "natzir"
    keys = json.loads((here / "common.py").read_text().split("KEYS = ")[1].split("]")[0] + "]")
    items = json.loads((here / "results" / "results3.json").read_text())["items"]
    z = {(item["set"], item["variant"], item["idx"]): item["z"] for item in items}
    tokenizer = loaded("qwen05")[1]
    readers = {reading: caw.SynthID(key=keys, reading=reading) for reading in ("mean", "weighted")}
    cases: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for name in SETS:
        for row in lines(here / "data" / f"gen3_{name}.jsonl"):
            rng = random.Random(row["idx"])
            shorter = " ".join(word for word in row["wm"].split() if rng.random() > 0.3)
            for variant, text in (("nowm", row["nowm"]), ("wm", row["wm"]), ("wm_word_delete30", shorter)):
                cases.setdefault((name, variant), []).append((row["idx"], text))
        path = here / "data" / f"attacks3_{name}.jsonl"
        for row in lines(path) if path.exists() else []:
            for variant in UNDER & row.keys():
                text = row[variant].strip()
                for label in ("OUTPUT:", "Output:", "'OUTPUT':", "OUTPUT"):
                    text = text.removeprefix(label).strip()
                if text:
                    cases.setdefault((name, variant), []).append((row["idx"], text))
    for (name, variant), texts in cases.items():
        theirs = [z[name, variant, i] for i, _ in texts if (name, variant, i) in z]
        row: dict[str, Any] = {"set": name, "variant": variant, "n": len(texts), "their_n": len(theirs)}
        row["theirs"] = sum(value >= 2.326 for value in theirs)
        for reading, watermark in readers.items():
            began = time.process_time()
            p = [result.p_value for result in caw.detect([text for _, text in texts], tokenizer, watermark)]
            row[reading] = [sum(v <= level for v in p) for level in LEVELS]
            row[f"{reading}_seconds"] = round((time.process_time() - began) / len(texts), 4)
        yield row


def size(ids: list[int], watermark: Any) -> float:
    """MarkMyWords' efficiency: the last beginning that is not found, in steps of five tokens; inf: nor is the whole."""
    ends = [*range(5, len(ids), 5), len(ids)]
    results = caw.detect([ids[:n] for n in ends], None, watermark)
    missed = [n for n, result in zip(ends, results, strict=True) if not result.p_value <= TARGET]
    return float("inf") if missed and missed[-1] == len(ids) else float(missed[-1] if missed else 0)


def markmywords(public: Path, loaded: Loaded) -> Iterator[dict[str, Any]]:
    here = public / "wagner-group"
    sys.path.insert(0, str(here / "src" / "watermark_benchmark"))
    helm, swap = (importlib.import_module(f"attacks.{name}") for name in ("helm_attacks", "swap_attack"))
    helm.setup(SimpleNamespace(misspellings=here / "run" / "static_data" / "misspellings.json"))
    kinds = (
        helm.MisspellingAttack,
        helm.TypoAttack,
        helm.LowercaseAttack,
        helm.ContractionAttack,
        helm.ExpansionAttack,
    )
    attacks = [(name, kind, given) for kind in (*kinds, swap.SwapAttack) for name, given in kind.get_param_list()]
    source = (here / "src" / "watermark_benchmark" / "utils" / "generation_prompts.py").read_text()
    space: dict[str, Any] = {}
    exec(source[: source.index("### Low entropy")].replace("import importlib.resources as pkg_resources", ""), space)
    prompts = [prompt for prompt, _ in random.Random(0).sample(space["raw_prompts"], TEXTS)]
    model, tokenizer = loaded("demo")
    for mark in MARKS:
        watermark = None if mark == UNMARKED else mark_of(mark, KEY)
        out = caw.generate(
            model, tokenizer, coded("demo", tokenizer, prompts), do_sample=True, temperature=0.7, seed=1,
            batch_size=TEXTS, max_new_tokens=TOKENS, return_trace=False, progress=False, speculate=None,
            watermark=watermark,
        )  # fmt: skip
        for name, kind, given in [("as is", None, ()), *attacks]:
            random.seed(0)
            change = kind(*(given if isinstance(given, tuple) else (given,))).warp if kind else str
            ids = [tokenizer(change(text), add_special_tokens=False)["input_ids"] for text in out.texts]
            sizes = [size(text, watermark or mark_of("recommended", KEY)) for text in ids]
            middle = statistics.median(sizes)
            found = sum(value < float("inf") for value in sizes)
            yield {"mark": mark, "attack": name, "n": len(sizes), "found": found,
                   "size": middle if middle < float("inf") else None}  # fmt: skip


def waterbench(public: Path, loaded: Loaded) -> Iterator[dict[str, Any]]:
    here = public / "THU-KEG"
    sys.path.insert(0, str(here))
    metrics = importlib.import_module("metrics")
    forms = json.loads((here / "config" / "dataset2prompt.json").read_text())
    model, tokenizer = loaded("qwen05")
    for task, limit in TASKS.items():
        rows = random.Random(0).sample(lines(here / "data" / "WaterBench" / f"{task}.jsonl"), ASKED)
        score = metrics.qa_f1_score if task.startswith("1") else metrics.rouge_score
        ids = coded("qwen05", tokenizer, [forms[task[4:]].format(**row) for row in rows])
        for mark in MARKS[:2]:
            watermark = None if mark == UNMARKED else mark_of(mark, KEY)
            out = caw.generate(
                model, tokenizer, ids, do_sample=True, temperature=0.7, seed=2, batch_size=ASKED, max_new_tokens=limit,
                return_trace=False, progress=False, speculate=None, watermark=watermark,
            )  # fmt: skip
            best = [max(score(t, gold) for gold in row["outputs"]) for t, row in zip(out.texts, rows, strict=True)]
            p = [r.p_value for r in caw.detect(out.texts, tokenizer, watermark or mark_of("recommended", KEY))]
            yield {
                "task": task[:3], "mark": mark, "n": len(p), "score": round(100 * statistics.mean(best), 2),
                "error": round(100 * statistics.stdev(best) / len(best) ** 0.5, 2),
                "tokens": round(statistics.mean(map(len, out.sequences)), 1),
                "found": [sum(v <= level for v in p) for level in LEVELS],
            }  # fmt: skip


PARTS = {"natzir": natzir, "markmywords": markmywords, "waterbench": waterbench}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--public", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path())
    asked = parser.parse_args()
    torch.set_num_threads(1)
    loaded = Loaded(asked.models)
    asked.folder.mkdir(parents=True, exist_ok=True)
    for part in asked.parts:
        rows = []
        for row in PARTS[part](asked.public, loaded):
            rows.append(row)
            print(part, row, flush=True)
            write_text(asked.folder / f"{part}.json", json.dumps({**about(), "part": part, "rows": rows}))


if __name__ == "__main__":
    main()
