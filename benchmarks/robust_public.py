"""A test of robustness that others wrote: SynthID texts of a 7B, and what an 8B made of them.

    python benchmarks/robust_public.py --public PUBLIC --folder runs/robust --models MODELS

PUBLIC holds a checkout of natzir/synthid-text-watermark-attacks in a folder `natzir`; nothing of it is kept here.
MODELS: see `bench_cost.py`, for Qwen's tokenizer. The set's own column (z >= 2.326) stands beside both of our readings,
found at 1 % and at .1 %; `bench_robust.py --out` gathers the rows.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_cost import Loaded
from bench_robust import LEVELS

import caw
from caw.benchmark.machine import about
from caw.io.files import write_text

SETS, UNDER = ("en", "es", "long", "low"), {"paraphrase", "rt_es", "rt_en", "rt_zh", "sira", "paraphrase_ch", "sira_ch"}


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
            for variant in sorted(UNDER & row.keys()):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--public", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path())
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in natzir(asked.public, Loaded(asked.models)):
        rows.append(row)
        print(row, flush=True)
    write_text(asked.folder / "natzir.json", json.dumps({**about(), "part": "natzir", "rows": rows}))


if __name__ == "__main__":
    main()
