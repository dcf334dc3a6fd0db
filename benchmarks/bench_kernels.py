"""Each kernel against the time its memory traffic takes, and against what torch has for the same task.

    python benchmarks/bench_kernels.py [--device cuda] [--smoke] [--only PART] [--rounds 20] [--out r.json]

The floor of a kernel is the bytes it must move over what a kernel reads in a second, measured first beside a copy's.
Every side is checked against the reference before it is timed; another's that fails is left out and said so, ours makes
the exit code 1. On a GPU each side is a CUDA graph of its calls, so that launches cost nothing, over as many copies of
its data as exceed the second-level cache, so that it comes from memory; what a step has just written (the tail's keys,
values and records) stays where it is. The sides take turns and the median of the rounds is reported, in microseconds a
call. What is done is saved after each round.

`--smoke`: small shapes, plain calls, numbers that
mean nothing; it shows that the benchmark still runs, and gives compute-sanitizer every kernel (kernel_smoke.py).
"""

import argparse
import importlib.util
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from kernel_smoke import Made, flat, moved, small_calls
from replays import CACHE, CALLS, Call, copies_of, copy_bandwidth, impossible, read_bandwidth, timer

from caw import ops
from caw.io.show import in_a_line
from caw.testing import assert_close
from caw.triton_kernels.commit_kv_ref import commit_kv_ref
from caw.triton_kernels.decision_step_ref import decision_step_ref
from caw.triton_kernels.evaluator_step_ref import evaluator_step_ref
from caw.triton_kernels.penalise_logits_ref import penalise_logits_ref
from caw.triton_kernels.race_winner_ref import race_winner_ref
from caw.triton_kernels.sibling_attention_ref import sibling_attention_ref
from caw.triton_kernels.small_linear_ref import small_linear_ref
from caw.triton_kernels.topk_softmax_ref import topk_softmax_ref
from caw.triton_kernels.tournament_ref import tournament_ref
from caw.triton_kernels.warp_logits_ref import warp_logits_ref


@dataclass
class Case:
    """name; bytes that must move; sides, the first ours; expected, and the tolerance row of the first output; aim;
    copies of the data that the calls go through."""

    name: str
    bytes: int
    sides: dict[str, Call]
    expected: Callable[[], torch.Tensor]
    row: str
    aim: str = ""
    copies: int = 1


def attention_case(batch: int, heads: int, kv_heads: int, dim: int, size: int, slots: int, device: str,
                   dtype: torch.dtype, smoke: bool) -> Case:  # fmt: skip
    """C candidates over a prefix of `size` tokens; torch's answers need the prefix and the own tokens in one tensor."""
    bytes_moved = 2 * batch * kv_heads * size * dim * dtype.itemsize

    def make() -> dict[str, torch.Tensor]:
        kv = torch.randn(2, batch, kv_heads, size, dim, device=device, dtype=dtype)
        own = torch.randn(2, batch, kv_heads, slots, dim, device=device, dtype=dtype)
        return {"q": torch.randn(batch, heads, slots, dim, device=device, dtype=dtype), "kv": kv, "own": own,
                "all": torch.cat([kv, own], dim=3)}  # fmt: skip

    data = copies_of(make, bytes_moved, smoke)
    lengths = torch.full((batch,), size, device=device)
    mask = torch.ones(slots, size + slots, dtype=torch.bool, device=device)
    mask[:, size:] = torch.eye(slots, dtype=torch.bool, device=device)
    scale = dim**-0.5

    def ours(i: int) -> torch.Tensor:
        d = data[i % len(data)]
        return ops.sibling_attention(d["q"], d["kv"][0], d["kv"][1], d["own"][0], d["own"][1], lengths, scale)

    def sdpa(i: int) -> torch.Tensor:
        d = data[i % len(data)]
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(d["q"], d["all"][0], d["all"][1], attn_mask=mask, scale=scale, enable_gqa=heads != kv_heads)

    flash = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention" + ("_for_cpu" if device == "cpu" else ""))

    def merged(i: int) -> torch.Tensor:
        """FlashAttention-2 as torch has it, over the prefix without a mask; the own token joins by its share."""
        d = data[i % len(data)]
        q, (k, v), (k_own, v_own) = d["q"], d["kv"], d["own"]
        out, lse = flash(q, k, v, scale=scale)[:2]
        share = torch.sigmoid((q * k_own).sum(-1, dtype=torch.float32) * scale - lse)[..., None]
        return torch.lerp(out.float(), v_own.float(), share).to(dtype)

    sides: dict[str, Call] = {"caw": ours, "SDPA with a mask": sdpa}
    if heads == kv_heads:  # the operator knows no shared heads
        sides["FlashAttention-2 of the prefix"] = merged
    first = data[0]
    kind = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}[dtype]
    return Case(
        f"attention b{batch} h{heads}/{kv_heads} d{dim} prefix {size} C={slots} {kind}", bytes_moved, sides,
        lambda: sibling_attention_ref(
            first["q"].float(), *first["kv"].float(), *first["own"].float(), lengths, scale
        ).to(dtype),
        f"attention/{kind}", "85 % of what is read" if size >= 2048 else "", len(data),
    )  # fmt: skip


def topk_case(rows: int, vocab_size: int, device: str, dtype: torch.dtype, smoke: bool, aim: str) -> Case:
    bytes_moved = rows * vocab_size * dtype.itemsize
    data = copies_of(lambda: (torch.randn(rows, vocab_size, device=device) * 4).to(dtype), bytes_moved, smoke)

    def theirs(i: int) -> Any:
        x = data[i % len(data)]
        return x.topk(100), x.float().logsumexp(-1)

    sides: dict[str, Call] = {
        "caw": lambda i: ops.topk_softmax(data[i % len(data)], 100)[0], "torch.topk + logsumexp": theirs,
    }  # fmt: skip
    if device != "cpu" and importlib.util.find_spec("flashinfer"):
        import flashinfer

        def radix(i: int) -> Any:
            x = data[i % len(data)]
            return flashinfer.top_k(x, 100, sorted=True), x.float().logsumexp(-1)

        sides["FlashInfer top_k + logsumexp"] = radix
    name = f"top-100 of {rows} rows x {vocab_size} {str(dtype).removeprefix('torch.')}"
    return Case(name, bytes_moved, sides, lambda: topk_softmax_ref(data[0], 100)[0], "exact", aim, len(data))


def product_case(rows: int, outputs: int, size: int, device: str, dtype: torch.dtype, smoke: bool) -> Case:
    bytes_moved, kind = outputs * size * dtype.itemsize, str(dtype).removeprefix("torch.")
    data = copies_of(lambda: torch.randn(outputs, size, device=device).to(dtype), bytes_moved, smoke)
    x = torch.randn(rows, size, device=device).to(dtype)
    sides: dict[str, Call] = {
        "caw": lambda i: ops.small_linear(x, data[i % len(data)]),
        "torch": lambda i: torch.nn.functional.linear(x, data[i % len(data)]),
    }
    return Case(
        f"product of {rows} rows, {outputs} outputs of {size} {kind}", bytes_moved, sides,
        lambda: small_linear_ref(x, data[0]), "float32" if dtype == torch.float32 else f"attention/{kind}",
        "90 % of what is read", len(data),
    )  # fmt: skip


def tail_case(batch: int, device: str, smoke: bool, layers: int = 32, heads: int = 32, dim: int = 128) -> Case:
    """Evaluator, strength, selection and commit of one step."""
    classes, hidden, size = 11, 128, 64
    inputs = 3 * (100 + classes)
    shapes = [(inputs,), (inputs,), (hidden, inputs), (hidden,), (hidden, hidden), (hidden,), (1, hidden), (1,)]
    weights = [torch.rand(shape, device=device) * 0.1 + 0.05 for shape in shapes]
    probs = [torch.rand(batch, 100, device=device).softmax(1) for _ in range(3)]
    ladder = [torch.arange(2 * batch, device=device).view(batch, 2), torch.rand(batch, 2, device=device),
              torch.full((batch,), 2, device=device)]  # fmt: skip
    pending = [torch.full((batch,), -1, device=device), *torch.zeros(2, batch, device=device)]
    factor = torch.ones(batch, device=device)
    extra = torch.zeros(batch, 3 * classes, device=device)
    store = torch.zeros(layers, 2, batch, heads, size, dim, device=device, dtype=torch.float16)
    scratch = torch.randn(layers, 2, batch, 2, heads, dim, device=device).half()
    lengths = torch.zeros(batch, dtype=torch.int64, device=device)
    active = torch.ones(batch, dtype=torch.bool, device=device)
    arguments = [probs, weights, *ladder, *pending, factor, 100, 1, 0.8, 1.5, 0, 4.0, extra]

    def ours(i: int) -> torch.Tensor:
        capacity, _, choice = ops.evaluator_step(*arguments)
        lengths.zero_()
        ops.commit_kv(store, scratch, choice, lengths, active)
        return capacity

    def by_torch(i: int) -> torch.Tensor:
        capacity, _, choice = evaluator_step_ref(*arguments)
        lengths.zero_()
        commit_kv_ref(store, scratch, choice, lengths, active)
        return capacity

    size_moved = 2 * layers * 2 * batch * heads * dim * 2 + sum(w.numel() * 4 for w in weights)
    aim = "15 us" if batch == 1 else ""
    expected = evaluator_step_ref(*arguments)[0]
    sides: dict[str, Call] = {"caw": ours, "the same in torch": by_torch}
    return Case(f"evaluate + select + commit b{batch}", size_moved, sides, lambda: expected, "evaluator", aim)


def decision_case(batch: int, device: str) -> Case:
    """Evaluator with token classes, strength, choice, end of text and output of one captured step: one launch."""
    classes, hidden, vocab_size, k = 11, 128, 32000, 100
    inputs = 3 * (k + classes)
    shapes = [(inputs,), (inputs,), (hidden, inputs), (hidden,), (hidden, hidden), (hidden,), (1, hidden), (1,)]
    weights = [torch.rand(shape, device=device) * 0.1 + 0.05 for shape in shapes]
    records = [topk_softmax_ref(torch.randn(batch, vocab_size, device=device), k) for _ in range(3)]
    table = (torch.arange(vocab_size, device=device) % classes).to(torch.uint8)
    counts, nothing = torch.zeros(batch, dtype=torch.int64, device=device), torch.zeros(batch, device=device)
    ladder = [torch.arange(2 * batch, device=device).view(batch, 2), torch.rand(batch, 2, device=device), counts + 2]
    text = [torch.full((batch, 1028), -1, device=device), counts, counts + 1024, counts[:, None] - 1,
            torch.ones(batch, dtype=torch.bool, device=device)]  # fmt: skip
    ring = [torch.zeros(8, batch, 1, dtype=torch.int64, device=device), None, torch.zeros(1, dtype=torch.int64,
            device=device)]  # fmt: skip
    given = [[r[2] for r in records], [r[1] for r in records], weights, table, *ladder, [counts - 1, nothing.clone(),
             nothing.clone()], nothing + 1.0, None, nothing, *text, *ring, 2, 4, k, 1, classes, 0.8, 1.5, 0,
             4.0]  # fmt: skip

    def by(op: Callable[..., Any]) -> Call:
        def call(i: int) -> torch.Tensor:
            counts.zero_()  # every step is a text's first
            return op(*given)[5]

        return call

    size_moved = sum(w.numel() * 4 for w in weights) + batch * 3 * k * (4 + 8 + 1)
    sides: dict[str, Call] = {"caw": by(ops.decision_step), "the same in torch": by(decision_step_ref)}
    expected = by(decision_step_ref)(0)
    return Case(f"evaluate, decide and write b{batch}", size_moved, sides, lambda: expected, "evaluator", "")


def drawn_cases(batch: int, vocab_size: int, device: str) -> Iterator[Case]:
    """What a step does that draws: bias and penalties of texts of 500 tokens, the cut at top-p .95, then the full race
    or SynthID. Logits were just written."""
    logits, context = torch.randn(batch, vocab_size) * 3, torch.randint(0, vocab_size, (batch, 4))
    scores = logits - torch.rand(batch, vocab_size).log_().neg_().log_()
    settings = [torch.full((batch,), value) for value in (True, 0.7, 0, 0.05, 0.0)]
    table = torch.randint(-(1 << 31), 1 << 31, (1 << 16,)).int()
    size = batch * vocab_size * 4
    penalties = [torch.randint(0, 300, (batch, 500)), settings[0], torch.tensor([[1.1, 0.2, 0.1]]).repeat(batch, 1),
                 logits > 6, torch.zeros(batch, vocab_size)]  # fmt: skip
    ways: list[tuple[str, int, Any, Any, list[Any]]] = [
        ("bias and penalties", 3 * size + size // 4, ops.penalise_logits, penalise_logits_ref, [logits, *penalties]),
        ("temperature and top-p", 2 * size, ops.warp_logits, warp_logits_ref, [logits, *settings]),
        ("race", size, ops.race_winner, race_winner_ref, [logits, context, torch.arange(batch), 0.7]),
        ("tournament of 30 layers", 2 * size, ops.tournament, tournament_ref,
         [logits, scores, scores.argmax(1), context, table, 30]),
    ]  # fmt: skip
    for name, moved_bytes, op, reference, arguments in ways:
        there = moved(arguments, device)
        sides: dict[str, Call] = {
            "caw": lambda i, op=op, there=there: op(*there),  # type: ignore[misc]
            "the same in torch": lambda i, op=reference, there=there: op(*there),  # type: ignore[misc]
        }
        expected = moved(reference(*arguments), device)
        yield Case(f"drawn: {name}, b{batch}", moved_bytes, sides, lambda e=expected: e, "exact")  # type: ignore[misc]


def small_case(made: Made, device: str) -> Case:
    """One small call of a kernel, all its results held against the reference's."""
    name, op, reference, arguments, row = made
    sides: dict[str, Call] = {"caw": lambda i: flat(op(*moved(arguments, device)))}
    return Case(f"small: {name}", flat([x for x in arguments if isinstance(x, torch.Tensor)]).numel(), sides,
                lambda: flat(reference(*moved(arguments, "cpu"))), row)  # fmt: skip


def cases(device: str, smoke: bool) -> Iterator[Case]:
    """Each made when its turn comes: together their data would fill a GPU."""
    if smoke:
        yield attention_case(1, 4, 2, 64, 40, 2, device, torch.float32, True)
        yield topk_case(2, 1000, device, torch.float32, True, "")
        yield tail_case(1, device, True, layers=2, heads=2, dim=16)
        yield decision_case(1, device)
        yield product_case(2, 40, 70, device, torch.float32, True)
        yield from drawn_cases(2, 1500, device)
        yield from (small_case(made, device) for made in small_calls())
        return
    half = torch.float16
    for rows, vocab_size, dtype, aim in (
        (2, 128_256, half, "15 us"), (64, 128_256, half, "40 us"), (2, 128_256, torch.float32, ""),
        (2, 32_000, half, ""),
    ):  # fmt: skip
        yield topk_case(rows, vocab_size, device, dtype, False, aim)
    for b in (1, 8, 32):
        yield decision_case(b, device)
        yield tail_case(b, device, False)
        yield from drawn_cases(b, 128_256, device)
    for rows, outputs, size in ((1, 12288, 4096), (8, 12288, 4096), (1, 4096, 11008), (32, 4096, 11008)):
        yield product_case(rows, outputs, size, device, half, False)
    for b, h, hk in ((1, 32, 32), (8, 32, 8), (32, 32, 8)):
        for size in (512, 2048, 8192):
            for slots in (1, 2, 8):
                if b * hk * size <= 1 << 20:
                    yield attention_case(b, h, hk, 128, size, slots, device, half, False)


def run(case: Case, rounds: int, bandwidth: float, device: str, smoke: bool,
        saved: Callable[[dict[str, Any]], None] = lambda row: None) -> dict[str, Any]:  # fmt: skip
    """The row of a case; `saved` is called with it after each round."""
    case.sides, wrong = checked(case)
    if "caw" not in case.sides:
        return {"case": case.name, "wrong": wrong}
    timers = {}
    for name, side in case.sides.items():
        try:
            timers[name] = timer(side, 1 if smoke else max(CALLS, case.copies), device, smoke)
        except Exception as error:  # what no graph can hold is left out as well
            wrong[name] = in_a_line(error)
    times: dict[str, list[float]] = {name: [] for name in timers}
    if "caw" not in timers:
        return {"case": case.name, "wrong": wrong}
    for _ in range(rounds):
        for name, once in timers.items():
            times[name].append(once())
        saved(row := row_of(case, times, bandwidth, wrong))
    return row


def row_of(case: Case, times: dict[str, list[float]], bandwidth: float, wrong: dict[str, str]) -> dict[str, Any]:
    """Of the rounds so far."""
    floor = case.bytes / bandwidth
    medians = {name: statistics.median(seconds) * 1e6 for name, seconds in times.items()}
    spread = {name: [round(1e6 * min(s), 2), round(1e6 * max(s), 2)] for name, s in times.items()}
    return {
        "case": case.name,
        "floor_us": round(floor * 1e6, 2),
        "us": {name: round(median, 2) for name, median in medians.items()},
        "min_max": spread,
        "rounds_us": {name: [round(1e6 * s, 3) for s in seconds] for name, seconds in times.items()},
        # what stays in the cache has no share of the memory's
        "share_of_bandwidth": round(floor * 1e6 / medians["caw"], 3) if case.bytes * case.copies > CACHE // 4 else None,
        "aim": case.aim,
        "wrong": wrong,
    }


def checked(case: Case) -> tuple[dict[str, Call], dict[str, str]]:
    """(sides that agree with the reference, what is wrong with the others)."""
    expected, good, wrong = case.expected(), {}, {}
    for name, side in case.sides.items():
        try:
            found = side(0)
            if "logsumexp" not in name:  # ties may fall differently there
                assert_close(found, expected, case.row)
            good[name] = side
        except Exception as error:  # of any kind: a kernel that does not compile must not take the others along
            wrong[name] = in_a_line(error)
    return good, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--ceiling", action="store_true", help="what a kernel reads and a copy moves, and no case")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.device == "cpu" and not arguments.smoke:
        parser.error("expected a GPU, found none; use --smoke, or bench_cpu_ops.py for the CPU's operators")
    bandwidth = read_bandwidth(arguments.device, arguments.smoke)
    copied = copy_bandwidth(arguments.device, arguments.smoke)
    machine = torch.cuda.get_device_name() if arguments.device != "cpu" else "cpu"
    print(f"{machine}: a kernel reads {bandwidth / 1e9:.0f} GB/s, a copy moves {copied / 1e9:.0f}\n")
    print("| case | floor us | caw us | of bandwidth | others us | aim |\n| --- | --- | --- | --- | --- | --- |")
    rows: list[dict[str, Any]] = []
    versions = {"torch": torch.__version__, "machine": machine, "read_bytes_per_second": bandwidth,
                "copy_bytes_per_second": copied}  # fmt: skip

    def save(*now: dict[str, Any]) -> None:
        if arguments.out:
            found = {"arguments": vars(arguments), "versions": versions, "rows": [*rows, *now]}
            Path(arguments.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    save()
    with torch.inference_mode():
        for case in cases(arguments.device, arguments.smoke):
            if arguments.ceiling:
                break
            if arguments.only not in case.name:
                continue
            row = run(case, arguments.rounds, bandwidth, arguments.device, arguments.smoke, save)
            save(row)
            rows.append(row)
            print(line(row), flush=True)
    if wrong := "" if arguments.smoke else impossible(rows):
        print(wrong, file=sys.stderr)
    return int(bool(wrong) or any("caw" in row["wrong"] for row in rows))


def line(row: dict[str, Any]) -> str:
    wrong = "".join(f" WRONG {name}: {why}" for name, why in row["wrong"].items())
    if "us" not in row:
        return f"| {row['case']} |{wrong} |"
    others = ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items() if name != "caw")
    share = row["share_of_bandwidth"]
    return (
        f"| {row['case']} | {row['floor_us']:.1f} | {row['us']['caw']:.1f} | {'' if share is None else f'{share:.0%}'} "
        f"| {others}{wrong} | {row['aim']} |"
    )


if __name__ == "__main__":
    sys.exit(main())
