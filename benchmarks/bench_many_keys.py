"""One text under 10,000 keys: processor time of one core, beside a detector for each key.

    python benchmarks/bench_many_keys.py [--keys 10000] [--tokens 500] [--out benchmarks/results/many_keys.json]

Random ids below 49,152, all keys random. First the p-values of 100 keys are compared with those of their detectors.
Then rounds alternate between the watermarks: "operator" is `score_keys` alone, "search" all of `KeySearch.search`
(evidence, sums, exact tails, the correction), "one by one" a detector for each of 100 keys, for as many keys as in the
search. "make ready" is what making the KeySearch takes, once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from caw import ops
from caw.detection import Detector, KeySearch
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, Unigram

COMMAND = "benchmarks/bench_many_keys.py"
VOCABULARY, ROUNDS, FEW = 49_152, 9, 100
BUILDS: dict[str, Callable[[int], Any]] = {
    "KGW lefthash": lambda key: KGW(key=key),
    "Unigram": lambda key: Unigram(key=key),
    "EXP": lambda key: EXP(key=key),
}


def seconds(run: Callable[[], object]) -> float:
    """Processor time of one call, in seconds."""
    start = time.process_time()
    run()
    return time.process_time() - start


def contenders(build: Callable[[int], Any], ids: np.ndarray, keys: list[int]) -> tuple[float, dict[str, Any]]:
    """(time to make ready, what to run by name), after a check that the p-values agree."""
    marks = {str(i): build(key) for i, key in enumerate(keys)}
    start = time.process_time()
    search = KeySearch(None, marks)
    ready = time.process_time() - start
    few = [Detector(None, mark) for mark in list(marks.values())[:FEW]]
    assert_close(search.search(ids).p_values[:FEW], [d.detect_ids([ids])[0].p_value for d in few], "tail")
    first = next(iter(marks.values()))
    tokens, native = torch.from_numpy(ids), first.native
    secrets = torch.tensor([mark.native.signed_key for mark in marks.values()])
    contexts = first.contexts(tokens)
    return ready, {
        "operator": lambda: ops.score_keys(contexts, tokens, secrets, native.scheme, native.threshold),
        "search": lambda: search.search(ids),
        "one by one": lambda: [detector.detect_ids([ids]) for detector in few],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCABULARY, given.tokens)
    keys = [int(key) for key in rng.integers(0, 2**64, given.keys, dtype=np.uint64)]
    runs = {name: contenders(build, ids, keys) for name, build in BUILDS.items()}
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for name, (_, works) in runs.items():
            for work, run in works.items():
                share = given.keys / min(FEW, given.keys) if work == "one by one" else 1
                times.setdefault((name, work), []).append(seconds(run) * share)
    rows = [
        {"watermark": name, "work": work, "seconds": statistics.median(each), "least": min(each), "greatest": max(each)}
        for (name, work), each in times.items()
    ]
    rows += [{"watermark": name, "work": "make ready", "seconds": ready} for name, (ready, _) in runs.items()]
    for row in rows:
        print(f"{row['watermark']:14} {row['work']:11} {row['seconds']:.4f} s")
    if given.out is not None:
        about = {"keys": given.keys, "tokens": given.tokens, "threads": 1, "rounds": ROUNDS, "command": COMMAND}
        given.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
