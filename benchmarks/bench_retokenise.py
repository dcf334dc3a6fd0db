"""What it costs that a detector reads text, not the ids that were generated: tokenised anew, it may split otherwise.

    python benchmarks/bench_retokenise.py --texts marked.jsonl [--more texts.jsonl] [--plain plain.jsonl] [--out r.json]

--texts and --more: marked ids of bench_power.py and bench_weights.py (the first are generated if absent), at most 200
tokens of each. --plain: unmarked ones of `caw generate --watermark none`. A text is decoded without special tokens,
which are left out of its ids as well, and tokenised again. "same": share of texts with the same ids. "lost": share of
generated tokens outside the common blocks of both sequences (difflib). Then p-values from ids and from text: medians,
share found at 1e-3, and texts where only one of the two finds the mark. Unmarked texts are tested with KGW under five
keys.
"""

from __future__ import annotations

import argparse
import json
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_power import NAMES, groups, read_texts, watermark_of

from caw.benchmark.machine import about
from caw.detection import Detector
from caw.models import DEMO_MODEL, load_tokenizer
from caw.watermarks import KGW

TOKENS, FPR = 200, 1e-3


def lost(before: list[int], after: list[int]) -> int:
    """Tokens of `before` that are in no block common to both, in order."""
    if before == after:
        return 0
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return len(before) - sum(block.size for block in blocks)


def compare(name: str, ids: list[list[int]], again: list[list[int]], pairs: np.ndarray) -> dict[str, Any]:
    """One row: `ids` generated, `again` from text, pairs float64 [tests, 2] = p-values from either."""
    found = pairs <= FPR
    gone = [lost(a, b) for a, b in zip(ids, again, strict=True)]
    return {
        "texts_of": name,
        "texts": len(ids),
        "tokens": sum(map(len, ids)),
        "same": sum(a == b for a, b in zip(ids, again, strict=True)) / len(ids),
        "lost": sum(gone) / sum(map(len, ids)),
        "most_lost_in_a_text": max(g / len(a) for g, a in zip(gone, ids, strict=True)),
        "tests": len(pairs),
        "median_log10_p": dict(zip(("ids", "text"), np.median(np.log10(pairs), axis=0).tolist(), strict=True)),
        "found": dict(zip(("ids", "text"), found.mean(axis=0).tolist(), strict=True)),
        "only_from_ids": int((found[:, 0] & ~found[:, 1]).sum()),
        "only_from_text": int((found[:, 1] & ~found[:, 0]).sum()),
    }


def p_values(detector: Detector, items: list[list[int]]) -> list[float]:
    return [r.p_value for r in detector(items)]  # type: ignore[union-attr]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--more", type=Path)
    parser.add_argument("--plain", type=Path)
    parser.add_argument("--keys", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(DEMO_MODEL)
    special = set(tokenizer.all_special_ids)

    def both(rows: list[dict[str, Any]]) -> tuple[list[list[int]], list[list[int]]]:
        ids = [[t for t in row["tokens"][:TOKENS] if t not in special] for row in rows]
        ids = [row for row in ids if row]
        return ids, tokenizer(tokenizer.batch_decode(ids), add_special_tokens=False)["input_ids"]

    found = []
    for (how, of), rows in groups(read_texts(options.texts, options.keys, options.more)).items():
        everything: list[list[list[int]]] = [[], []]
        pairs: list[tuple[float, float]] = []
        for key in sorted({row["key"] for row in rows}):
            detector = Detector(None, watermark_of(how, key))
            sides = both([row for row in rows if row["key"] == key])
            pairs += zip(*(p_values(detector, side) for side in sides), strict=True)
            everything = [old + new for old, new in zip(everything, sides, strict=True)]
        found.append(compare(f"{NAMES[how]}; {of}", *everything, np.array(pairs)))
    if options.plain:
        sides = both([json.loads(line) for line in options.plain.read_text().splitlines()])
        tests = [Detector(None, KGW(key=f"plain {number}")) for number in range(5)]
        pairs = [pair for d in tests for pair in zip(*(p_values(d, side) for side in sides), strict=True)]
        found.append(compare("unmarked, sampled", *sides, np.array(pairs)))
    for row in found:
        print(
            f"{row['texts_of']}: {row['texts']} texts, same ids {row['same']:.4f}, tokens lost {row['lost']:.5f}; "
            f"median log10 p {row['median_log10_p']['ids']:.3f} -> {row['median_log10_p']['text']:.3f}, found "
            f"{row['found']['ids']:.4f} -> {row['found']['text']:.4f} "
            f"(-{row['only_from_ids']} +{row['only_from_text']} of {row['tests']})"
        )
    if options.out:
        command = "python benchmarks/bench_retokenise.py --texts marked.jsonl"
        command += " --more texts.jsonl" * bool(options.more) + " --plain plain.jsonl" * bool(options.plain)
        said = {"command": command, "longest": TOKENS, "fpr": FPR, **about()}
        options.out.write_text(json.dumps({**said, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
