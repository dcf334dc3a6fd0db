"""False-positive rates on unmarked text, by watermark and key: what a deployer should measure on text of their own.

    python benchmarks/bench_null.py --data-dir DATA [--keys 5] [--extra plain.jsonl] [--out r.json]

Texts: GSM8K questions, solutions, and solutions with their calculator notes (and "text" of --extra, plain text of a
model, which `caw generate --watermark none` writes). "rates" are of texts as they are, "once" of the same texts with
evidence counted once in the whole corpus, which must be uniform for every key.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from caw.detection import Detector
from caw.detection.null_rates import NullReport, null_report, plot_qq
from caw.models import DEMO_MODEL, load_tokenizer
from caw.watermarks import EXP, KGW, SynthID, Unigram, Watermark
from caw_lab.training.labels import strip_notes

MAKERS: dict[str, Callable[[Any, int], Watermark]] = {
    "KGW lefthash": lambda key, size: KGW(key=key),
    "KGW selfhash": lambda key, size: KGW(key=key, seeding="selfhash"),
    "Unigram": lambda key, size: Unigram(key=key),
    "EXP": lambda key, size: EXP(key=key),
    "KGW lefthash, transformers": lambda key, size: KGW(key=key, format="transformers", vocab_size=size),
    "SynthID mean": lambda key, size: SynthID(key, reading="mean"),
}


def texts_of(folder: Path) -> list[str]:
    rows = [
        json.loads(line)
        for split in ("train", "test")
        for line in (folder / "gsm8k" / f"{split}.jsonl").read_text().splitlines()
    ]
    return [r["question"] for r in rows] + [strip_notes(r["answer"]) for r in rows] + [r["answer"] for r in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--extra", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plots", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(DEMO_MODEL)
    extra = [json.loads(line)["text"] for line in options.extra.read_text().splitlines()] if options.extra else []
    texts = texts_of(options.data_dir) + extra
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    rows = []
    for name, make in MAKERS.items():
        reports: list[NullReport] = []
        for key in range(1, options.keys + 1):
            reports.append(null_report(ids, Detector(None, make(key * 1_000_003, len(tokenizer)))))
            rows.append({"watermark_name": name, "key": key * 1_000_003, **reports[-1].as_dict()})
        for level, rates in enumerate(zip(*(r.rates for r in reports), strict=True)):
            once = [r.once[level] for r in reports]
            plain, single = ([f"{r.rate:.5f}" for r in found] for found in (rates, once))
            kept = sum(r.holds for r in once)
            print(f"{name:28s} level {rates[0].level:g}: {plain}; evidence once {single} kept {kept}/{len(once)}")
        print(f"{name:28s} uniform p {[f'{r.uniform_p:.3f}' for r in reports]}", flush=True)
        if options.plots:
            options.plots.mkdir(exist_ok=True)
            plot_qq(reports, options.plots / f"null_{name.replace(',', '').replace(' ', '_').lower()}.svg")
    if options.out:
        about = {
            "texts": len(texts),
            "texts_of_a_model": len(extra),
            "tokens": sum(map(len, ids)),
            "command": "python benchmarks/bench_null.py --data-dir DATA" + " --extra plain.jsonl" * bool(extra),
        }
        options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
