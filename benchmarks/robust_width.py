"""How wide the race's context should be: variety, and what a reader of many texts learns.

    python benchmarks/robust_width.py variety stealing --folder runs/robust --models MODELS

Parts write into the folder that `bench_robust.py --out` gathers.

    variety   several draws of a prompt under one key: 4-grams that a text shares with another draw and with texts of
              other prompts, Self-BLEU, distinct 4-grams, repeated contexts; entropy of what follows the 100 commonest
              contexts, beside as many unmarked continuations of the same contexts
    stealing  Jovanovic et al. (ICML 2024) in a simple form: from the marked texts of `variety` an attacker counts what
              follows each context more often than in unmarked texts, adds `BOOST` to the logits of that, and answers
              other prompts; how many of these texts does the detector take for marked
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_cost import GRAM, Loaded, coded, distinct
from bench_robust import LEVELS, MARKS, UNMARKED, prompts_of
from transformers import LogitsProcessor, LogitsProcessorList

import caw
from caw.benchmark.machine import about
from caw.io.files import write_text
from caw.watermarks import Watermark

KEY, PROMPTS, DRAWS, TOKENS = "one key for all", 32, 4, 160
COMPARED = (UNMARKED, "race 2", "race 4", "SynthID", "race 3", "race 1")
Texts = list[list[list[int]]]  # by draw, by prompt
BOOST, LEAST, FORGED = 4.0, 2, 32


def mark_of(mark: str) -> Watermark | None:
    if mark.startswith("race"):
        return caw.EXP(KEY, strength="scale", context_width=int(mark[-1]))
    return None if mark == UNMARKED else MARKS[mark](KEY)


def drawn(folder: Path, loaded: Loaded, mark: str) -> Texts:
    """Texts under one key, each draw with another seed; an unmarked twin has other seeds."""
    path = folder / "ids" / f"variety {mark}.json"
    if not path.exists():
        model, tokenizer = loaded("demo")
        ids = coded("demo", tokenizer, prompts_of(0, 4 * PROMPTS))
        found = [
            caw.generate(
                model, tokenizer, ids, do_sample=True, temperature=0.7, seed=seed, max_new_tokens=TOKENS, batch_size=32,
                return_trace=False, progress=False, speculate=None, watermark=mark_of(mark),
            ).sequences
            for seed in range(DRAWS)
        ]  # fmt: skip
        write_text(path, json.dumps([[list(map(int, ids)) for ids in draw] for draw in found]))
    return json.loads(path.read_text())


def grams(ids: list[int], n: int = GRAM) -> list[tuple[int, ...]]:
    return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]


def bleu(text: list[int], others: list[list[int]]) -> float:
    """BLEU of 1 to 4 tokens against the others, smoothed by one."""
    logs = []
    for n in range(1, 5):
        most: Counter[tuple[int, ...]] = Counter()
        for other in others:
            most |= Counter(grams(other, n))
        own = Counter(grams(text, n))
        logs.append(math.log((1 + sum((own & most).values())) / (1 + sum(own.values()))))
    nearest = min((len(other) for other in others), key=lambda n: (abs(n - len(text)), n))
    return math.exp(sum(logs) / 4 + min(0.0, 1 - nearest / max(len(text), 1)))


def follow(texts: Iterable[list[int]], width: int) -> dict[tuple[int, ...], list[int]]:
    """What comes after each context at its first occurrence in a text: where a race draws by its key."""
    after: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for ids in texts:
        seen = set()
        for i in range(width, len(ids)):
            context = tuple(ids[i - width : i])
            if context not in seen:
                seen.add(context)
                after[context].append(ids[i])
    return after


def repeats(ids: list[int], width: int) -> float:
    """Share of the tokens whose context has occurred before: a race leaves them unmarked."""
    return 1 - len(follow([ids], width)) / max(len(ids) - width, 1)


def entropy(tokens: list[int]) -> float:
    shares = np.array(list(Counter(tokens).values())) / len(tokens)
    return float(-(shares * np.log(shares)).sum())


def freedom(marked: list[list[int]], plain: list[list[int]], width: int) -> dict[str, Any]:
    """Entropy of the token after the commonest contexts of the unmarked texts, equally many of either kind."""
    own, base, rng = follow(marked, width), follow(plain, width), random.Random(0)
    pairs = []
    for context, tokens in sorted(base.items(), key=lambda item: (-len(item[1]), item[0]))[:100]:
        n = min(len(tokens), len(own.get(context, [])))
        if n > 1:
            pairs.append((entropy(rng.sample(own[context], n)), entropy(rng.sample(tokens, n)), n))
    means = np.array(pairs).mean(0).round(3).tolist()
    return {"contexts": len(pairs), "marked": means[0], "unmarked": means[1], "tokens_each": means[2]}


def mean(values: Iterable[float]) -> list[float]:
    """Mean and its standard error."""
    found = np.array(list(values))
    return [round(float(found.mean()), 4), round(float(found.std(ddof=1) / len(found) ** 0.5), 4)]


def variety(folder: Path, loaded: Loaded) -> Iterator[dict[str, Any]]:
    plain = [ids for draw in drawn(folder, loaded, UNMARKED) for ids in draw]
    for mark in COMPARED:
        draws = drawn(folder, loaded, mark)
        by_prompt = list(zip(*draws, strict=True))
        sets = [[set(grams(ids)) for ids in several] for several in by_prompt]
        shared, across, self_bleu = [], [], []
        for p, several in enumerate(by_prompt):
            elsewhere = set().union(*(s for q, own in enumerate(sets) if q != p for s in own[:1]))
            inside = [[own & set().union(*(o for o in sets[p] if o is not own)), own] for own in sets[p]]
            shared.append(float(np.mean([len(both) / max(len(own), 1) for both, own in inside])))
            across.append(float(np.mean([len(own & elsewhere) / max(len(own), 1) for own in sets[p]])))
            others = [[o for o in several if o is not ids] for ids in several]
            self_bleu.append(float(np.mean([bleu(ids, o) for ids, o in zip(several, others, strict=True)])))
        flat = [ids for draw in draws for ids in draw]
        widths = [int(mark[-1])] if mark.startswith("race") else [4] if mark == "SynthID" else []
        yield {
            "mark": mark, "shared": mean(shared), "across": mean(across), "self_bleu": mean(self_bleu),
            "distinct": mean(distinct(ids) for ids in flat),
            "repeats": {w: mean(repeats(ids, w) for ids in flat) for w in (1, 2, 3, 4)},
            "after_common": {w: freedom(flat, plain, w) for w in widths},
        }  # fmt: skip


class Forger(LogitsProcessor):
    """Prefers what the attacker saw more often behind a context than the unmarked texts lead one to expect."""

    def __init__(self, marked: list[list[int]], plain: list[list[int]], width: int, start: int) -> None:
        base, words = follow(plain, width), Counter(token for ids in plain for token in ids)
        total, self.width, self.start = sum(words.values()), width, start
        self.learned: dict[tuple[int, ...], tuple[list[int], list[float]]] = {}
        for context, tokens in follow(marked, width).items():
            seen = Counter(base.get(context, []))
            expected = {t: (seen[t] + words[t] / total) / (seen.total() + 1) for t in tokens}
            ratios = {t: n / len(tokens) / max(expected[t], 1e-6) for t, n in Counter(tokens).items()}
            known = {t: min(ratio, 2.0) / 2 for t, ratio in ratios.items() if ratio >= 1}
            if len(tokens) >= LEAST and known:
                self.learned[context] = list(known), list(known.values())

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] - self.start >= self.width:
            for row, ids in enumerate(input_ids[:, -self.width :].tolist()):
                tokens, values = self.learned.get(tuple(ids), ([], []))
                scores[row, tokens] += BOOST * torch.tensor(values)
        return scores


def stealing(folder: Path, loaded: Loaded) -> Iterator[dict[str, Any]]:
    model, tokenizer = loaded("demo")
    plain = [ids for draw in drawn(folder, loaded, UNMARKED) for ids in draw]
    asked = coded("demo", tokenizer, prompts_of(1, 4 * FORGED))
    start = max(map(len, asked))
    pad = [[tokenizer.pad_token_id or 0] * (start - len(ids)) + ids for ids in asked]
    ids, mask = torch.tensor(pad), torch.tensor([[0] * (start - len(i)) + [1] * len(i) for i in asked])
    for mark in ("race 1", "race 2", "race 3", "race 4", "SynthID", "KGW 2 nats"):
        marked = [ids for draw in drawn(folder, loaded, mark) for ids in draw]
        width = int(mark[-1]) if mark.startswith("race") else 4 if mark == "SynthID" else 1
        forger = Forger(marked, plain, width, start)
        torch.manual_seed(0)
        out = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, temperature=0.7, max_new_tokens=TOKENS, top_k=0,
            logits_processor=LogitsProcessorList([forger]), pad_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
        texts = tokenizer.batch_decode(out[:, start:], skip_special_tokens=True)
        p = [result.p_value for result in caw.detect(texts, tokenizer, mark_of(mark))]
        new = [key for row in out[:, start:].tolist() for key in follow([row], width)]
        yield {
            "mark": mark, "tokens_seen": sum(map(len, marked)), "contexts_learned": len(forger.learned),
            "met": round(sum(key in forger.learned for key in new) / len(new), 3),
            "n": len(p), "found": [sum(v <= level for v in p) for level in LEVELS],
        }  # fmt: skip


PARTS = {"variety": variety, "stealing": stealing}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path())
    asked = parser.parse_args()
    torch.set_num_threads(1)
    loaded = Loaded(asked.models)
    (asked.folder / "ids").mkdir(parents=True, exist_ok=True)
    for part in asked.parts:
        rows, began = [], time.time()
        for row in PARTS[part](asked.folder, loaded):
            rows.append(row)
            print(f"{part} {time.time() - began:.0f} s: {row}", flush=True)
            write_text(asked.folder / f"{part}.json", json.dumps({**about(), "part": part, "rows": rows}))


if __name__ == "__main__":
    main()
