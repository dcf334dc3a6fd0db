"""Which policy marks greedy texts best in whole texts, each with the target of `caw.Recommended`.

    python benchmarks/greedy_side.py texts runs/greedy.jsonl --data DATA --models FOLDER --model smollm2-135m \\
        --kind everyday --policies half=fixed:0.5 full=fixed:1 own=smollm2-135m:0.9:1
    python benchmarks/greedy_side.py gather runs/greedy.jsonl --output benchmarks/results/greedy_side.json

Models, prompts and --policies are those of `bench_universal.py`. `texts` can be stopped and continued.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_universal import SUBJECTS, Judge, asked_prompts, kept, key_of, policy_of

import caw
from caw.models.teacher import log_probs
from caw_lab.evaluation.tasks.grading import answer_of, grade_number

CASE = "model", "kind", "split"
BEGINNING = 40  # tokens
BINS = ((0, 20), (20, 40), (40, 80), (80, 160))
JUDGES = {"smollm2-135m": "qwen2.5-coder-0.5b"}  # of the others it is the demo model
TARGET = caw.Recommended(0).level_of_each(caw.Recommended(0).target)


def texts(asked: argparse.Namespace) -> None:
    """Write a text of each prompt under each policy, and note what became of it."""
    torch.set_num_threads(1)
    subject, [out] = SUBJECTS[asked.model], asked.files
    out.touch()
    done = {
        tuple(row[name] for name in (*CASE, "policy", "id")) for row in map(json.loads, out.read_text().splitlines())
    }
    model, tokenizer = subject.load(asked.models)
    judge = Judge(JUDGES.get(asked.model, "smollm2-135m"), asked.models) if asked.kind == "everyday" else None
    limits: dict[str, Any] = {"max_new_tokens": asked.tokens, "progress": False}
    limits |= {"chat": True} if asked.kind == "everyday" and subject.chat else {"stop": "Question:"}
    prompts = asked_prompts(asked, subject)
    for start in range(0, len(prompts), asked.batch):
        group, cache, key = prompts[start : start + asked.batch], caw.PromptCache(), key_of(start)
        for policy in ["none", *asked.policies]:
            about = {"model": asked.model, "kind": asked.kind, "split": asked.split, "policy": policy.partition("=")[0]}
            if not (some := [each for each in group if (*about.values(), each[0]) not in done]):
                continue
            mark = {} if policy == "none" else {"watermark": caw.KGW(key), "policy": policy_of(policy, TARGET)}
            asks = [prompt for _, prompt, _ in some]
            made = caw.generate(model, tokenizer, asks, prompt_cache=cache, batch_size=len(some), **mark, **limits)
            for (number, prompt, gold), text, trace in zip(some, made.texts, made.trace or (), strict=True):
                row: dict[str, Any] = {**about, "id": number, "tokens": len(trace)}
                for name, part in (("p", text), ("p_80", tokenizer.decode(trace.tokens[:80]))):
                    row[name] = caw.detect(part, tokenizer, caw.Recommended(key)).p_value
                row["marked"] = int(np.flatnonzero(np.array(trace.strength) > 0).max(initial=-1)) + 1
                row["changes"] = np.flatnonzero(trace.choice).tolist()
                if gold is not None:
                    row |= {"answer": answer_of(text), "right": grade_number(text, gold).correct}
                if judge is not None:
                    row["judge"], before = judge(prompt, text), prompt
                    if subject.chat:
                        said = [{"role": "user", "content": prompt}]
                        before = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
                    ids = tokenizer(before, add_special_tokens=not subject.chat)["input_ids"]
                    [own] = log_probs(model, [([*ids, *trace.tokens], len(ids))])
                    row["nats"] = [float(f"{-value:.3g}") for value in own]
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def gather(asked: argparse.Namespace) -> None:
    """Write of every model, kind, split and policy what was found, its price, and where in the text that lies.

    found_001, found_01: at 0.1 and 1 %; found_of_80: at 0.1 %, of the first 80 tokens. kept: the unmarked answer. rise:
    nats a token above the unmarked text, by the judge. nats_A_B: the model's own, of these tokens. beginning: in the
    first 40 over the mean of the marked part. changes: their share in the first 40. Lines with `than` are differences
    from the policy "full" on the same prompts. Intervals (95 %) are over prompts.
    """
    cases: dict[tuple[str, ...], dict[str, dict[str, dict[str, Any]]]] = {}
    for row in (json.loads(line) for path in asked.files for line in path.read_text().splitlines()):
        cases.setdefault(tuple(row[name] for name in CASE), {}).setdefault(row["policy"], {})[row["id"]] = row
    lines = []
    for case, by_policy in sorted(cases.items()):
        for policy, own in by_policy.items():
            for than in dict.fromkeys((policy, "full")):
                both = sorted(own.keys() & by_policy.get(than, {}).keys())
                if both and (policy, than) != ("none", "full"):
                    rows = ([columns_of(of[i], by_policy["none"][i]) for i in both] for of in (own, by_policy[than]))
                    a, b = map(figures, rows)
                    sums = a if than == policy else {name: a[name] - b[name] for name in a}
                    line = dict(zip(CASE, case, strict=True)) | {"policy": policy, "texts": len(both)}
                    line["than"] = None if than == policy else than
                    lines.append(line | {name: shown(values) for name, values in sums.items()})
    asked.output.write_text(json.dumps({"target": TARGET, "lines": lines}, separators=(",", ":")) + "\n")


def columns_of(row: dict[str, Any], bare: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Numerator and denominator of each figure of a text, which are summed over texts; 0 and 0 where it has none."""
    found, long, early = row["p"] <= 1e-3, row["tokens"] >= 80, sum(at < BEGINNING for at in row["changes"])
    columns: dict[str, Any] = {name: (row[name], 1.0) for name in ("tokens", "marked", "right") if name in row}
    columns |= {"found_001": (found, 1.0), "found_01": (row["p"] <= 1e-2, 1.0)}
    columns |= {"found_of_80": (long and row["p_80"] <= 1e-3, long), "changes": (early, len(row["changes"]))}
    if "right" in row:
        same, answered = bool(kept(bare["answer"], row["answer"])), bare["answer"] is not None
        columns |= {"kept": (same, answered), "both": (same and found, answered)}
    if "nats" in row:
        columns["rise"] = (0.0, 0.0) if None in (row["judge"], bare["judge"]) else (row["judge"] - bare["judge"], 1.0)
        nats = np.array(row["nats"])[: row["marked"] or None]
        parts = {f"nats_{low}_{high}": np.array(row["nats"])[low:high] for low, high in BINS}
        parts |= {"early": nats[:BEGINNING], "all": nats}
        columns |= {name: (float(part.sum()), len(part)) for name, part in parts.items()}
    return columns


def figures(rows: list[dict[str, tuple[float, float]]]) -> dict[str, np.ndarray]:
    """Each figure of these texts, and behind it those of 1,000 draws of as many: the same draws for as many texts."""
    draws = np.random.default_rng(0).integers(max(1, len(rows)), size=(1000, len(rows)))
    draws, made = np.vstack([np.arange(len(rows)), draws]), {}
    for name in rows[0] if rows else ():
        above, below = np.array([row[name] for row in rows], dtype=float)[draws].sum(1).T
        made[name] = above / np.where(below == 0, np.nan, below)
    if "all" in made:
        made["beginning"] = made.pop("early") / made.pop("all")
    return made


def shown(values: np.ndarray) -> list[float]:
    """The figure, and its interval; empty where there is none."""
    known = (values[0], *np.nanpercentile(values[1:], (2.5, 97.5))) if np.isfinite(values[0]) else ()
    return [round(float(value), 4) for value in known]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=("texts", "gather"))
    parser.add_argument("files", type=Path, nargs="+", help="JSONL of texts; `texts` writes one")
    for kind, names in {Path: "data models output", str: "model kind split", int: "first count batch tokens"}.items():
        for name in names.split():
            parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--policies", nargs="+")
    parser.set_defaults(first=0, count=24, batch=12, tokens=160, split="train")
    asked = parser.parse_args()
    {"texts": texts, "gather": gather}[asked.run](asked)


if __name__ == "__main__":
    main()
