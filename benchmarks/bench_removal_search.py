"""How many words must go before `caw.detect` no longer finds a text at 1 %, by what the remover is told.

    python benchmarks/bench_removal_search.py RUNS MODELS OUT

RUNS: folder of `bench_robust.py`. "blind": words go in random order. "verdicts": then each comes back without which the
text stays undetected. "scores": of `TRIED` random words the one goes whose loss raises the p-value most.
"""

import json
import sys
from pathlib import Path

import numpy as np
from bench_cost import Loaded
from bench_robust import KEY, KEYS, SETS, mark_of

import caw

RUNS, MODELS, OUT = map(Path, sys.argv[1:4])
LEVEL, TRIED, MOST = 0.01, 16, 16
tokenizer = Loaded(MODELS)("demo")[1]


class Asked:
    """The p-value of what is left of a text, and how often it was asked for."""

    def __init__(self, mark: str, number: int, ids: list[int]) -> None:
        self.words = tokenizer.decode(ids, skip_special_tokens=True).split(" ")
        self.watermark, self.count = mark_of(mark, KEY.format(number)), 0

    def __call__(self, kept: set[int]) -> float:
        self.count += 1
        left = " ".join(self.words[place] for place in sorted(kept))
        return float(caw.detect(left, tokenizer, self.watermark).p_value)


def search(p: Asked, seed: int) -> dict[str, tuple[float, int]]:
    """Return, by what is told, (share of the words that went, questions)."""
    rng, whole, found = np.random.default_rng(seed), set(range(len(p.words))), {}
    order, kept, gone = rng.permutation(len(whole)).tolist(), set(whole), list[int]()
    while kept and p(kept) <= LEVEL:
        gone.append(order.pop())
        kept.discard(gone[-1])
    found["blind"] = len(gone) / len(whole), p.count
    for word in list(gone):
        if p(kept | {word}) > LEVEL:
            kept.add(word)
            gone.remove(word)
    found["verdicts"] = len(gone) / len(whole), p.count
    kept, p.count, now = set(whole), 0, p(set(whole))
    while now <= LEVEL and len(kept) > 1:
        tried = rng.permutation(sorted(kept))[:TRIED].tolist()
        scores = [p(kept - {word}) for word in tried]
        kept.discard(tried[int(np.argmax(scores))])
        now = max(scores)
    found["scores"] = 1 - len(kept) / len(whole), p.count
    return found


rows = []
for mark in ("recommended", "race 4", "SynthID", "KGW 2 nats"):
    by_key = json.loads((RUNS / "ids" / f"demo .7 {mark}.json").read_text())
    own = [(n, ids) for n in range(KEYS) for ids in by_key[n] if len(ids) == SETS["demo .7"].tokens]
    asked = [Asked(mark, number, ids) for number, ids in own[:: len(own) // MOST][:MOST]]
    done = [search(p, seed) for seed, p in enumerate(asked) if p(set(range(len(p.words)))) <= LEVEL]
    for told in done[0]:
        gone, count = np.median([each[told] for each in done], axis=0)
        rows.append({"mark": mark, "told": told, "n": len(done), "gone": gone, "asked": count})
    OUT.write_text(json.dumps({"rows": rows}, indent=1))
