"""How fast texts are tested: scoring beside tokenisation, and beside the detectors of transformers and MarkLLM.

    python benchmarks/bench_detect.py [--texts 100000] [--tokens 200] [--corpus texts.jsonl] [--out r.json]

One thread, processor time (not wall time), so that other users of the machine count little. All detectors get ids; the
texts are windows of a corpus (field "text" or "answer"), or Zipf-distributed ids without one. Rounds alternate
between all detectors, and the median of the rounds is reported. Ours tests every text; the others as many as a few
seconds allow. "score" is scoring alone, "detect" all of `Detector.detect_ids`: evidence, sums, exact tails, results.
"Lists" of other systems' formats are drawn when first met: the first round pays for them and is reported by itself.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from other_systems import KEY, markllm, transformers_read

from caw.detection import Detector
from caw.detection.token_scores import chunks, score_stream
from caw.models import DEMO_MODEL, load_tokenizer
from caw.watermarks import EXP, KGW, SynthID, Unigram, Watermark

CHUNK, ROUNDS = 4000, 5
Run = Callable[[int], int]  # round -> tokens worked on


def windows(corpus: Path | None, tokenizer: Any, vocab_size: int, texts: int, tokens: int) -> np.ndarray:
    """int64 [texts, tokens]: windows of the corpus's tokens at random places, or Zipf-distributed ids."""
    rng = np.random.default_rng(0)
    if corpus is None:
        return rng.zipf(1.3, (texts, tokens)) % vocab_size
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    encoded = tokenizer([row.get("text") or row["answer"] for row in rows], add_special_tokens=False)["input_ids"]
    stream = np.concatenate([np.array(ids, dtype=np.int64) for ids in encoded])
    starts = rng.integers(0, len(stream) - tokens, texts)
    return stream[starts[:, None] + np.arange(tokens)]


def ours(watermark: Watermark, ids: np.ndarray, share: int, work: str) -> Run:
    """Score or detect one of ROUNDS shares of the texts per round, or the first `share` of it."""
    detector = Detector(None, watermark)
    parts = np.array_split(ids, ROUNDS)

    def run(number: int) -> int:
        part = parts[number % ROUNDS][:share]
        for start in range(0, len(part), CHUNK):
            chunk = list(part[start : start + CHUNK])
            if work == "score":
                for texts in chunks(chunk):
                    score_stream(detector.watermark, texts, detector.mode)
            else:
                detector.detect_ids(chunk)
        return int(part.size)

    return run


def theirs(read: Callable[[torch.Tensor], Any], ids: np.ndarray, share: int) -> Run:
    """A few texts per round."""

    def run(number: int) -> int:
        part = ids[number * share : (number + 1) * share]
        for row in part:
            read(torch.from_numpy(row))
        return int(part.size)

    return run


def tokenising(tokenizer: Any, ids: np.ndarray, share: int) -> Run:
    texts = tokenizer.batch_decode([row.tolist() for row in ids[: share * ROUNDS]])
    return lambda number: sum(
        len(t) for t in tokenizer(texts[number * share : (number + 1) * share], add_special_tokens=False)["input_ids"]
    )


def contenders(tokenizer: Any, ids: np.ndarray, vocab_size: int) -> dict[str, Run]:
    native: dict[str, Watermark] = {
        "KGW lefthash": KGW(key=KEY),
        "KGW selfhash": KGW(key=KEY, seeding="selfhash"),
        "Unigram": Unigram(key=KEY),
        "EXP": EXP(key=KEY),
        "KGW lefthash, transformers' format": KGW(key=KEY, format="transformers", vocab_size=vocab_size),
        "KGW, MarkLLM's format": KGW(key=KEY, format="markllm", vocab_size=vocab_size),
    }
    slow: dict[str, Watermark] = {
        "KGW selfhash, transformers' format": KGW(
            key=KEY, seeding="selfhash", context_width=4, format="transformers", vocab_size=vocab_size
        ),
        "EXP, MarkLLM's format": EXP(key=KEY, format="markllm", vocab_size=vocab_size),
        "SynthID, mean": SynthID(KEY, reading="mean"),
    }
    found = {"tokenise (demo model)": tokenising(tokenizer, ids, 400)}
    for work in ("score", "detect"):
        found |= {f"caw {work}: {name}": ours(w, ids, len(ids), work) for name, w in native.items()}
        found |= {f"caw {work}: {name}": ours(w, ids, 100, work) for name, w in slow.items()}
    for seeding in ("lefthash", "selfhash"):
        found[f"transformers: {seeding}"] = theirs(transformers_read(vocab_size, seeding), ids, 2)
    name, _, read = markllm(vocab_size)
    found[f"{name}: KGW"] = theirs(read, ids, 2)
    return found


def measure(found: dict[str, Run]) -> list[dict[str, Any]]:
    speeds: dict[str, list[float]] = {name: [] for name in found}
    for number in range(ROUNDS):
        for name, run in found.items():
            start = time.process_time()
            tokens = run(number)
            speeds[name].append(tokens / max(time.process_time() - start, 1e-9))
    return [
        {"name": name, "tokens_per_second": statistics.median(values), "first_round": values[0], "rounds": values}
        for name, values in speeds.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(DEMO_MODEL)
    vocab_size = len(tokenizer)
    ids = windows(options.corpus, tokenizer, vocab_size, options.texts, options.tokens)
    rows = measure(contenders(tokenizer, ids, vocab_size))
    base = next(r["tokens_per_second"] for r in rows if r["name"].endswith(": KGW"))
    for row in rows:
        row["times_markllm"] = row["tokens_per_second"] / base
        print(
            f"{row['name']:55s} {row['tokens_per_second']:14,.0f} tokens/s {row['times_markllm']:12,.1f} x MarkLLM KGW"
        )
    if options.out:
        about = {"texts": options.texts, "tokens": options.tokens, "vocab_size": vocab_size, "threads": 1,
                 "clock": "process_time", "corpus": options.corpus.name if options.corpus else "zipf 1.3",
                 "torch": torch.__version__, "command": "python benchmarks/bench_detect.py"}  # fmt: skip
        options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
