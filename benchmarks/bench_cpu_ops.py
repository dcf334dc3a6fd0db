"""Compiled CPU ops against their PyTorch references and against what other systems do per token, in one run.

    python benchmarks/bench_cpu_ops.py [--threads 1] [--repeat 30] [--out results.json]

Variants are interleaved and the median is reported, in processor time of the calling thread (one thread) or wall time
(more), so that a busy machine shifts all variants alike. Microseconds unless said otherwise.
"""

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from other_systems import DELTA, GAMMA, KEY, markllm, transformers_read, transformers_step

from caw import ops
from caw.benchmark.machine import about
from caw.capacity import evaluate_capacity_ref
from caw.evaluator import Evaluator, FeatureSpec
from caw.ladder import select_candidate_ref
from caw.ops_ref.draw_scores_ref import draw_scores_ref
from caw.record import Record
from caw.triton_kernels.commit_kv_ref import commit_kv_ref
from caw.triton_kernels.evaluator_step_ref import evaluator_step_ref
from caw.triton_kernels.penalise_logits_ref import penalise_logits_ref
from caw.triton_kernels.race_winner_ref import race_winner_ref
from caw.triton_kernels.sampling_noise_ref import sampling_noise_ref
from caw.triton_kernels.sibling_attention_ref import sibling_attention_ref
from caw.triton_kernels.topk_softmax_ref import topk_softmax_ref
from caw.triton_kernels.tournament_ref import tournament_ref
from caw.triton_kernels.warp_logits_ref import warp_logits_ref
from caw.watermarks import EXP, KGW, Position, Unigram

Variants = dict[str, Callable[[], Any]]
OURS = ("compiled", "compiled ops, Python between", "sets kept from before")  # variants that are not what others do
WATERMARKS = {
    "KGW lefthash": KGW(key=1),
    "KGW selfhash": KGW(key=1, seeding="selfhash"),
    "Unigram": Unigram(key=1),
    "EXP top_k 20": EXP(key=1, top_k=20),
    "EXP scale": EXP(key=1, strength="scale"),
}


def measure(variants: Variants, repeat: int, clock: Callable[[], float]) -> dict[str, float]:
    return {name: round(statistics.median(s) * 1e6, 1) for name, s in rounds_of(variants, repeat, clock).items()}


def rounds_of(variants: Variants, repeat: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each variant in each round, one call of each in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for call in variants.values():
        call()
    for _ in range(repeat):
        for name, call in variants.items():
            call()  # the others' data is out of the cache again: in decoding the logits were just written
            start = clock()
            call()
            seconds[name].append(clock() - start)
    return seconds


def topk_cases() -> dict[str, Variants]:
    cases: dict[str, Variants] = {}
    for vocab_size in (49_152, 128_256):
        for rows in (1, 32):
            for dtype in (torch.float32, torch.bfloat16):
                x = (torch.randn(rows, vocab_size) * 4).to(dtype)
                cases[f"topk_softmax V={vocab_size} rows={rows} {dtype}"] = {
                    "compiled": lambda x=x: ops.topk_softmax(x, 100),
                    "torch.topk + logsumexp": lambda x=x: (x.topk(100), x.float().logsumexp(-1)),
                    "reference": lambda x=x: topk_softmax_ref(x, 100),
                }
    return cases


def attention_cases() -> dict[str, Variants]:
    cases: dict[str, Variants] = {}
    for dtype in (torch.float32, torch.bfloat16):
        for size in (300, 2000):
            for slots in (1, 2, 8):
                # 30 layers in turn, so that the cache is as cold as in decoding
                store = torch.randn(30, 2, 1, 3, size, 64).to(dtype)
                q = torch.randn(1, 9, slots, 64).to(dtype)
                own = torch.randn(2, 1, 3, slots, 64).to(dtype)
                turn = {"compiled": 0, "reference": 0}

                def run(op: Any, name: str, store: Any = store, q: Any = q, own: Any = own, turn: Any = turn) -> Any:
                    turn[name] = (turn[name] + 1) % 30
                    k, v = store[turn[name]]
                    return op(q, k, v, own[0], own[1], torch.tensor([k.shape[2]]), 0.125)

                cases[f"sibling_attention T={size} C={slots} {dtype}"] = {
                    "compiled": lambda run=run: run(ops.sibling_attention, "compiled"),
                    "reference": lambda run=run: run(sibling_attention_ref, "reference"),
                }
    return cases


def step_cases() -> dict[str, Variants]:
    """The small ops of a step, and the ladder of each watermark over V = 49152."""
    network = Evaluator(FeatureSpec()).requires_grad_(False)
    features, weights = torch.randn(1, network.spec.size), network.weights()
    store, scratch = torch.zeros(30, 2, 1, 3, 500, 64), torch.randn(30, 2, 1, 2, 3, 64)
    choice, lengths, active = torch.tensor([1]), torch.tensor([5]), torch.tensor([True])
    rungs = (torch.tensor([[3, 5]]), torch.tensor([[3.0, 2.0]]), torch.tensor([2]), torch.tensor([0.5]), 0, 4.0)
    probs = list(torch.randn(3, 1, 100).softmax(-1).sort(descending=True).values)
    carried = (torch.tensor([-1]), torch.zeros(1), torch.zeros(1), torch.ones(1))
    step = (probs, weights, *rungs[:3], *carried, 100, 1, 0.7, 1.5, 0, 4.0)
    context, key = torch.tensor([[1, 2, 3]]), torch.tensor([1])
    cases: dict[str, Variants] = {
        "evaluate_capacity 300-128-128-1": {
            "compiled": lambda: ops.evaluate_capacity(features, weights),
            "reference": lambda: evaluate_capacity_ref(features, weights),
        },
        "evaluator_step 3 x 100, 128-128-1": {
            "compiled": lambda: ops.evaluator_step(*step),
            "compiled ops, Python between": lambda: evaluator_step_ref(
                *step, evaluate=ops.evaluate_capacity, select=ops.select_candidate
            ),
            "reference": lambda: evaluator_step_ref(*step),
        },
        "commit_kv L=30": {
            "compiled": lambda: ops.commit_kv(store, scratch, choice, lengths.fill_(5), active),
            "reference": lambda: commit_kv_ref(store, scratch, choice, lengths.fill_(5), active),
        },
        "select_candidate": {
            "compiled": lambda: ops.select_candidate(*rungs),
            "reference": lambda: select_candidate_ref(*rungs),
        },
        "sampling_noise V=49152": {
            "compiled": lambda: ops.sampling_noise(context, key, 49_152),
            "reference": lambda: sampling_noise_ref(context, key, 49_152),
        },
    }
    scores = torch.randn(1, 49_152) * 3
    record = Record.from_logits(scores)
    for name, watermark in WATERMARKS.items():
        at = Position(record, record.values, scores, torch.randint(0, 999, (1, watermark.window)))
        cases[f"ladder {name}"] = {
            "compiled": lambda w=watermark, at=at: w.candidates(at, 1.0, native=True),
            "reference": lambda w=watermark, at=at: w.ladder(at, 1.0),
        }
    return cases


def sampling_cases() -> dict[str, Variants]:
    """What drawing adds to a step, of 1, 8 and 16 rows over V = 49152."""
    cases: dict[str, Variants] = {}
    for rows in (1, 8, 16):
        scores, context = torch.randn(rows, 49_152) * 3, torch.randint(0, 999, (rows, 3))
        key, text = torch.arange(rows) + 1, torch.randint(0, 49_152, (rows, 200))
        asked = [torch.tensor([value]).repeat(rows) for value in (True, 0.7, 0, 0.05, 0.0)]
        bare = [*asked[:3], torch.full((rows,), -1.0), asked[4]]  # temperature alone
        penalties = torch.tensor([[1.1, 0.2, 0.1]]).repeat(rows, 1), torch.rand(rows, 49_152) < 0.01
        penalised = scores, text, asked[0], *penalties, torch.zeros(rows, 0)
        kept = ops.warp_logits(scores, *asked)
        table = torch.randint(-(1 << 31), 1 << 31, (65_536,)).int()
        ends = f"V=49152 rows={rows}"
        of = {
            f"penalise_logits of 200 tokens, {ends}": (ops.penalise_logits, penalise_logits_ref, penalised),
            f"warp_logits T .7, {ends}": (ops.warp_logits, warp_logits_ref, (scores, *bare)),
            f"warp_logits T .7, top-p .95, {ends}": (ops.warp_logits, warp_logits_ref, (scores, *asked)),
            f"draw_scores of all, {ends}": (
                ops.draw_scores, draw_scores_ref, (scores, asked[0], context, key, 100, 0.0)
            ),
            f"draw_scores of a nucleus, {ends}": (
                ops.draw_scores, draw_scores_ref, (kept, asked[0], context, key, 100, 0.0)
            ),
            f"race_winner of all, {ends}": (ops.race_winner, race_winner_ref, (scores, context, key)),
            f"race_winner of a nucleus, {ends}": (ops.race_winner, race_winner_ref, (kept, context, key)),
            f"tournament of 30 layers, all, {ends}": (
                ops.tournament, tournament_ref, (scores, scores, scores.argmax(1), context, table, 30)
            ),
            f"tournament of 30 layers, a nucleus, {ends}": (
                ops.tournament, tournament_ref, (kept, scores, kept.argmax(1), context, table, 30)
            ),
        }  # fmt: skip
        for name, (op, reference, given) in of.items():
            cases[name] = {"compiled": partial(op, *given), "reference": partial(reference, *given)}
    return cases


def foreign_step_cases() -> dict[str, Variants]:
    """What one token costs with the lists others use: our ladder's part, and their whole logits processors."""
    cases: dict[str, Variants] = {}
    for vocab_size in (32_000, 49_152, 128_256):
        seeds, count = torch.tensor([42 * KEY]), int(vocab_size * GAMMA)
        ids, scores = torch.tensor([[5, 7, 9, 42]]), torch.randn(1, vocab_size)
        generator, their_name, their_step = torch.Generator(), *markllm(vocab_size)[:2]
        left, own = transformers_step(vocab_size, "lefthash"), transformers_step(vocab_size, "selfhash")
        forty = torch.arange(40) * 777

        def steps(size: int = vocab_size, count: int = count, g: Any = generator, x: Any = scores) -> torch.Tensor:
            g.manual_seed(42 * KEY)
            mask = torch.zeros(1, size, dtype=torch.bool)
            mask[0, torch.randperm(size, generator=g)[:count]] = True
            return torch.where(mask, x + DELTA, x)

        cases[f"one token, lefthash lists V={vocab_size} gamma={GAMMA}"] = {
            "compiled": lambda s=seeds, v=vocab_size, c=count: ops.permutation_green(s, v, c),
            "reseed + randperm + mask": steps,
            "transformers": lambda left=left, ids=ids, x=scores: left(ids, x),
            their_name: lambda step=their_step, ids=ids, x=scores: step(ids, x),
        }
        cases[f"one token, selfhash lists V={vocab_size} gamma={GAMMA}"] = {
            "compiled": lambda f=forty, v=vocab_size, c=count: ops.permutation_contains(f * KEY, f, v, c),
            "transformers": lambda own=own, ids=ids, x=scores: own(ids, x),
        }
        native = KGW(key=1, gamma=GAMMA, delta=DELTA)

        def record_and_ladder(x: Any = scores, ids: Any = ids, native: Any = native) -> Any:
            record = Record.from_logits(x)
            return native.candidates(Position(record, record.values, x, ids[:, -1:]), 1.0, native=True)

        cases[f"one token, native lefthash V={vocab_size}, top-K included"] = {
            "compiled": record_and_ladder,
            "transformers": lambda left=left, ids=ids, x=scores: left(ids, x).argmax(-1),
            their_name: lambda step=their_step, ids=ids, x=scores: step(ids, x).argmax(-1),
        }
    return cases


def foreign_score_cases(tokens: int = 300) -> dict[str, Variants]:
    """Reading a text with the lists others use. Words repeat as in a text: ranks after Zipf's law."""
    vocab_size = 49_152
    weights = 1 / torch.arange(1, vocab_size + 1, dtype=torch.float64)
    ids = torch.multinomial(weights, tokens, replacement=True)
    count, seeds = int(vocab_size * GAMMA), ids[:-1] * KEY
    their_name, _, their_read = markllm(vocab_size)
    left, own = transformers_read(vocab_size, "lefthash"), transformers_read(vocab_size, "selfhash")
    distinct, rows = seeds.unique(return_inverse=True)
    sets, target = ops.permutation_green(distinct, vocab_size, count), ids[1:]
    many = torch.multinomial(weights, 100_000, replacement=True)
    own_seeds = torch.randint(-(2**63), 2**63 - 1, (tokens - 3,))
    return {
        f"score {tokens} tokens, lefthash lists": {
            "compiled": lambda: ops.permutation_contains(seeds, target, vocab_size, count),
            "sets kept from before": lambda: (sets[rows, target >> 5] >> (target & 31)) & 1,
            "transformers": lambda: left(ids),
            their_name: lambda: their_read(ids),
        },
        f"score {tokens} tokens, selfhash lists": {
            "compiled": lambda: ops.permutation_contains(own_seeds, ids[3:], vocab_size, count),
            "transformers": lambda: own(ids),
        },
        "score 100000 tokens, lefthash lists": {
            "compiled": lambda: ops.permutation_contains(many[:-1] * KEY, many[1:], vocab_size, count),
        },
    }


def score_cases(tokens: int = 100_000) -> dict[str, Variants]:
    ids = torch.randint(0, 49_152, (tokens,))
    cases: dict[str, Variants] = {}
    for name, watermark in WATERMARKS.items():
        if name == "EXP scale":
            continue
        native = watermark.native
        assert native is not None
        args = (ids, watermark.window, torch.full_like(ids, native.signed_key), native.scheme, native.threshold)
        cases[f"score {tokens} tokens, {name}"] = {
            "compiled": lambda args=args: ops.score_tokens(*args),
            "reference": lambda w=watermark: w.scheme.score_ref(ids),
        }
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--only", default="", help="only cases whose name holds this text")
    parser.add_argument("--out")
    options = parser.parse_args()
    if ops.missing_extension():
        raise SystemExit(ops.missing_extension())
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    rows = []
    for build in (topk_cases, attention_cases, step_cases, sampling_cases, foreign_step_cases, score_cases,
                  foreign_score_cases):  # fmt: skip
        for name, variants in build().items():
            if options.only not in name:
                continue
            found = measure(variants, 5 if name.startswith("score ") else options.repeat, clock)
            row: dict[str, Any] = {"case": name, **found}
            others = [v for k, v in found.items() if k not in OURS]
            if others:
                row["ratio"] = round(min(others) / found["compiled"], 1)
            tokens = re.match(r"score (\d+) tokens", name)
            if tokens:
                row["million tokens/s"] = round(int(tokens[1]) / found["compiled"], 3)
            rows.append(row)
            print(f"{name:55} " + "  ".join(f"{k} {v}" for k, v in row.items() if k != "case"), flush=True)
    if options.out:
        with open(options.out, "w") as file:
            json.dump({**about(), "command": "python benchmarks/bench_cpu_ops.py", "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
