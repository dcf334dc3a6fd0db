"""What a guard's changes do to the wording, by a grammar and by a model that have no part in the search.

    python benchmarks/bench_wording.py runs/guard-*.jsonl --model OTHER.gguf --output results/guard_wording.json

Of the texts that `bench_guard.py` wrote and the guard changed: sentences that link-grammar (`link-parser`, the Debian
packages link-grammar and link-grammar-dictionaries-en) links whole, unmarked and marked; nats per token under another
model, without the prompt; and sentences with other words that lose more than 4 nats there against the sentence in whose
place they stand. The result holds no text.
"""

import argparse
import difflib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

import caw
from caw.benchmark.machine import about
from caw.models.teacher import log_probs

LOST = 4.0  # nats
SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n+")


def sentences_of(text: str) -> list[str]:
    return [each.strip() for each in SENTENCE.split(text) if each.strip()]


def linked(sentences: list[str], parser: list[str]) -> list[bool]:
    """Whether a grammar links each sentence whole."""
    lines = [re.sub(r"\s+", " ", re.sub(r"^[!%*#\s]+", "", each)) or "Yes." for each in sentences]
    done = subprocess.run([*parser, "-graphics=0", "-limit=50"], input="\n".join(lines), capture_output=True, text=True)
    first = re.findall(r"^(No complete linkages|Found \d+ linkages? \(.*\)$)", done.stdout, re.MULTILINE)
    assert len(first) == len(lines), f"{len(first)} verdicts on {len(lines)} sentences"
    return [not each.startswith("No") for each in first]


def nats_of(model: Any, tokenizer: Any, text: str) -> list[tuple[str, float]]:
    """Each sentence of a text with the nats that it costs behind those before it."""
    sentences, costs, known = sentences_of(text), [], list[int]()
    ids = [tokenizer(f"{each}\n", add_special_tokens=False)["input_ids"] for each in sentences]
    start = tokenizer("\n", add_special_tokens=False)["input_ids"]
    [values] = log_probs(model, [([*start, *(token for each in ids for token in each)], len(start))])
    for each in ids:
        costs.append(-float(values[len(known) : len(known) + len(each)].sum()))
        known += each
    return list(zip(sentences, costs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--model", required=True, help="another model than that of the texts")
    parser.add_argument("--parser", nargs="+", default=["link-parser", "en"], help="command and dictionary")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = caw.load_model(asked.model, device="cpu")
    lines = []
    for what in ("gsm8k", "everyday"):
        runs = [path.read_text().splitlines() for path in asked.files]
        rows = [json.loads(line) for run in runs if json.loads(run[0])["what"] == what for line in run[1:]]
        pairs = [(row["text"], row["guard"]["text"]) for row in rows if row["text"] != row["guard"]["text"]]
        if not pairs:
            continue
        costs = [[nats_of(model, tokenizer, text) for text in pair] for pair in pairs]
        reworded, dear = 0, 0
        for old, new in costs:
            texts = [[sentence for sentence, _ in each] for each in (old, new)]
            words = [[re.findall(r"[^\W\d_]+", each.lower()) for each in some] for some in texts]
            matcher = difflib.SequenceMatcher(
                None, *([" ".join(each) for each in some] for some in words), autojunk=False
            )
            for tag, start, end, begin, until in matcher.get_opcodes():
                if tag != "equal":
                    reworded += until - begin
                    dear += sum(n for _, n in new[begin:until]) - sum(n for _, n in old[start:end]) > LOST
        whole = [linked([sentence for each in costs for sentence, _ in each[side]], asked.parser) for side in (0, 1)]
        tokens = [sum(len(tokenizer(pair[side])["input_ids"]) for pair in pairs) for side in (0, 1)]
        nats = [sum(n for each in costs for _, n in each[side]) / tokens[side] for side in (0, 1)]
        lines.append({
            "what": what, "texts": len(pairs), "model": Path(asked.model).name, "reworded": reworded, "dear": dear,
            "sentences": [len(each) for each in whole], "linked": [sum(each) for each in whole],
            "nats": [round(each, 4) for each in nats],
        })  # fmt: skip
        print(json.dumps(lines[-1]))
    if asked.output:
        asked.output.write_text(json.dumps({**about(), "rows": lines}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
