"""Small calls of every Triton kernel, with what their references say: cases of `bench_kernels.py --smoke`.

For compute-sanitizer, which must see every kernel and every way through it that memory could go wrong, and for machines
without pytest. Nothing here is a size at which time means anything.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from caw import ops
from caw.capacity import evaluate_capacity_ref
from caw.ladder import select_candidate_ref
from caw.models.packed import pack_weight
from caw.op_indices import GREEN, RACE_SCALE, RACE_TOP_K, SELFHASH
from caw.tournament import layered_table
from caw.triton_kernels.commit_kv_ref import commit_step_ref
from caw.triton_kernels.decision_step_ref import decision_step_ref
from caw.triton_kernels.decoder_layer_ref import decoder_layer_ref
from caw.triton_kernels.enumerate_candidates_ref import enumerate_candidates_ref
from caw.triton_kernels.ladder_step_ref import ladder_step_ref
from caw.triton_kernels.packed_weights_ref import FP8, INT4, INT8, Format, unpack_weight_ref
from caw.triton_kernels.penalise_logits_ref import penalise_logits_ref
from caw.triton_kernels.race_ladder_ref import race_ladder_ref
from caw.triton_kernels.race_winner_ref import race_winner_ref
from caw.triton_kernels.rms_norm_ref import rms_norm_ref
from caw.triton_kernels.sampling_noise_ref import sampling_noise_ref
from caw.triton_kernels.sibling_attention_ref import (
    sibling_attention_packed_ref,
    sibling_attention_ref,
)
from caw.triton_kernels.small_linear_ref import packed_linear_ref, small_linear_ref
from caw.triton_kernels.topk_softmax_ref import topk_softmax_ref
from caw.triton_kernels.tournament_ref import tournament_ref
from caw.triton_kernels.warp_logits_ref import warp_logits_ref

Made = tuple[str, Callable[..., Any], Callable[..., Any], list[Any], str]  # name, op, reference, arguments, row
SEED, SPLIT, KEY = 5, 200, 0x1234_5678_9ABC_DEF0
RARE = 1 << 16  # a green list of 0.4 %: most records hold none of it, so that whole rows are scanned
HALF = torch.float16 if torch.cuda.is_available() else torch.float32  # a CPU has no layers of float16


def moved(x: Any, device: str) -> Any:
    """Arguments on another device, each a copy of its own: some are changed in place."""
    if isinstance(x, (list, tuple)):
        return [moved(y, device) for y in x]
    return x.to(device, copy=True) if isinstance(x, torch.Tensor) else x


def flat(x: Any) -> torch.Tensor:
    """All numbers of a result, one after another, as float64 on the CPU."""
    found = [flat(y) for y in x] if isinstance(x, (list, tuple)) else [x.detach().cpu().double().reshape(-1)]
    return torch.cat(found)


def attention(dtype: torch.dtype, size: int, packed: bool, **options: Any) -> Made:
    batch, heads, kv_heads, slots, dim = 2, 4, 2, 3, 80
    q = torch.randn(batch, heads, slots, dim).to(dtype)
    kv, own = (torch.randn(2, batch, kv_heads, n, dim).to(dtype) for n in (size, slots))
    lengths = torch.tensor([size - 1, size // 2])
    if "sinks" in options:
        options["sinks"] = torch.randn(heads).to(dtype)
    rest = [*own, lengths, 0.1, options.get("window"), options.get("softcap"), options.get("sinks")]
    name = f"{str(dtype).removeprefix('torch.')} T={size} {' '.join(options)}"
    row = f"attention/{str(dtype).removeprefix('torch.')}"
    if not packed:
        return f"sibling_attention {name}", ops.sibling_attention, sibling_attention_ref, [q, *kv, *rest], row
    rows = torch.tensor([0, 0, 0, 1, 1, 1])
    flat_q, *flat_own = (x.transpose(1, 2).flatten(0, 1)[:, :, None] for x in (q, *own))
    arguments = [flat_q, *kv, *flat_own, lengths, rows, *rest[3:]]
    return (
        f"sibling_attention_packed {name}", ops.sibling_attention_packed, sibling_attention_packed_ref, arguments, row,
    )  # fmt: skip


def layer(dtype: torch.dtype, size: int, *, rows: Sequence[int] | None = None, window: int | None = None) -> Made:
    """Output, keys and values of a layer whose dimensions fill no tile; a prefix in one part, or in several.

    rows: of which sequences the candidates are, where they are packed.
    """
    batch, slots, width, heads, kv_heads, wide, dim = 2, 3, 70, 4, 2, 90, 80
    of_rows = (batch, slots) if rows is None else (len(rows), 1)
    shapes = [(width,), (heads * dim, width), (kv_heads * dim, width), (kv_heads * dim, width), (width, heads * dim),
              (width,), (wide, width), (wide, width), (width, wide), (dim,), (dim,)]  # fmt: skip
    weights = [(torch.randn(shape) / shape[-1] ** 0.5).to(dtype) for shape in shapes]
    biases = [weights[i][:, 0].contiguous() if i < 4 else None for i in (1, 2, 3, 4, 6, 7, 8)]
    angles = torch.rand(*of_rows, dim // 2).repeat(1, 1, 2)
    cache = torch.randn(2, batch, kv_heads, size, dim).to(dtype)
    scratch = torch.zeros(2, batch, slots + 1, kv_heads, dim).to(dtype)
    given = [torch.randn(*of_rows, width).to(dtype), angles.cos().to(dtype), angles.sin().to(dtype), *cache, *scratch]
    lengths, rest = torch.tensor([size - 1, size // 2]), [weights, biases, 1e-5, 0.1]

    def changed(op: Any) -> Callable[..., Any]:
        return lambda *given: [op(*given), given[5], given[6]]

    name, row = str(dtype).removeprefix("torch."), "forward" if dtype == torch.float32 else "layer/bfloat16"
    arguments = [*given, 1, lengths, *rest, window, None if rows is None else torch.tensor(rows)]
    made = changed(ops.decoder_layer), changed(decoder_layer_ref)
    return f"decoder_layer {name} T={size}{'' if rows is None else ' packed'}", *made, arguments, row


def family_layer(dtype: torch.dtype, size: int, family: str, turned: int, head_norms: bool = False) -> Made:
    """As `layer`, of a family that does something otherwise; of a head's 80 dimensions `turned` are rotated."""
    _, *made, (x, cos, sin, *given, weights, biases, eps, scale, window, _), row = layer(dtype, size)
    after = [torch.rand(x.shape[2]).to(dtype) for _ in range(2 if family == "gemma2" else 0)]
    weights = [*(weights if head_norms else weights[:9]), *after]
    rotated = [table[..., : turned // 2].repeat(1, 1, 2) for table in (cos, sin)]
    arguments = [x, *rotated, *given, weights, biases, eps, scale, window, None, family, 3.0]
    name = f"decoder_layer {family} {str(dtype).removeprefix('torch.')} T={size} {turned} rotated"
    return name, *made, arguments, row


def norm(dtype: torch.dtype, width: int, offset: float) -> Made:
    given = [torch.randn(2, 3, width).to(dtype), torch.randn(width).to(dtype), 1e-5, offset]
    row = "float32" if dtype == torch.float32 else "attention/" + str(dtype).removeprefix("torch.")
    return f"rms_norm {width} wide {dtype} offset {offset}", ops.rms_norm, rms_norm_ref, given, row


def linear(rows: int, dtype: torch.dtype) -> Made:
    given = [torch.randn(rows, 70).to(dtype), torch.randn(90, 70).to(dtype), torch.randn(90).to(dtype)]
    row = "float32" if dtype == torch.float32 else "attention/" + str(dtype).removeprefix("torch.")
    return f"small_linear {rows} rows {dtype}", ops.small_linear, small_linear_ref, given, row


def packed(rows: int, dtype: torch.dtype, form: Format) -> list[Made]:
    """A product of weights of 4 or 8 bits, and those weights made dense; neither dimension fills a tile."""
    x, weight = torch.randn(rows, 160).to(dtype), pack_weight(torch.randn(90, 160), form)
    name, row = f"{form.name} {rows} rows {dtype}", "attention/" + str(dtype).removeprefix("torch.")
    given = [x, weight, torch.randn(90).to(dtype)]
    return [
        (f"packed_linear {name}", ops.packed_linear, packed_linear_ref, given, row),
        (f"unpack_weight {name}", ops.unpack_weight, unpack_weight_ref, [weight, 160, dtype], "exact"),
    ]


def commit() -> Made:
    """A full sequence and an inactive one among them; fewer candidates forwarded than there are slots."""
    layers, batch, heads, size, dim, slots, vocab_size = 2, 3, 2, 9, 80, 4, 2500
    store, scratch = torch.zeros(layers, 2, batch, heads, size, dim), torch.randn(layers, 2, batch, slots, heads, dim)
    tensors = [store, scratch, torch.tensor([1, 0, 1]), torch.tensor([0, 4, 8]), torch.tensor([True, False, True])]
    records = [topk_softmax_ref(torch.randn(batch, 200), 100) for _ in range(3)]
    logits, step_logits = torch.randn(batch, vocab_size), torch.randn(batch, 2, vocab_size)
    arguments = [*tensors, logits, step_logits, [*records[0], *records[1]], list(records[2])]

    def changed(op: Any) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            op(*given)
            kept = [given[0][:, :, b, :, :n] for b, n in enumerate(given[3].tolist())]
            return [*kept, given[3], given[5], *given[7]]

        return call

    return "commit_step", changed(ops.commit_step), changed(commit_step_ref), arguments, "exact"


def reached(op: Any) -> Callable[..., Any]:
    """Candidates, counts and the needs that count; beyond them needs are undefined."""

    def call(*given: Any) -> Any:
        candidates, needs, counts = op(*given)
        there = torch.arange(needs.shape[1], device=needs.device)[None] < counts[:, None]
        return candidates, torch.where(there & needs.isfinite(), needs, 0.0), counts

    return call


def ladder(scheme: int, width: int, full: float) -> Made:
    scores = torch.randn(3, 2500) * 2
    values, ids, _, _ = topk_softmax_ref(scores, 100)
    context = torch.randint(-1, 2500, (3, width))
    numbers = [torch.tensor([KEY, ~KEY, 5]), scheme, RARE, full, 1.0]

    name, row = f"enumerate_candidates scheme {scheme}", "float32" if scheme == RACE_SCALE else "exact"
    arguments = [values, ids, values, scores, context, *numbers]
    return name, reached(ops.enumerate_candidates), reached(enumerate_candidates_ref), arguments, row


def whole_ladder(scheme: int, width: int, full: float, ends: bool) -> Made:
    """A row that waits, texts of other lengths, repeated contexts."""
    _, _, _, (values, ids, race, scores, _, key, *numbers), row = ladder(scheme, width, full)
    padded, tally = torch.randint(0, 2, (3, width + 40)), torch.tensor([0, 39, 7])
    given = [values, ids, race, scores, padded, tally, key, torch.tensor([-1, -1, 8]),
             ids[:, :2].contiguous() if ends else None, width, *numbers, not ends, 2]  # fmt: skip

    def carried(op: Any) -> Callable[..., Any]:
        """Needs apart, which the ladder's own cases compare."""
        return lambda *arguments: [op(*arguments)[i] for i in (0, 2, 3)]

    name = f"ladder_step scheme {scheme}{' ends' if ends else ''}"
    return name, carried(ops.ladder_step), carried(ladder_step_ref), given, row


def decision(evaluated: bool) -> Made:
    """Results and all that is changed: with classes and a trace, or with a given strength and neither."""
    batch, k, classes, rungs = 3, 100, 11, 3
    inputs, hidden = 3 * (k + classes), 128
    shapes = [(inputs,), (inputs,), (hidden, inputs), (hidden,), (hidden, hidden), (hidden,), (1, hidden), (1,)]
    records = [topk_softmax_ref(torch.randn(batch, 300), k) for _ in range(3 if evaluated else 0)]
    network = [torch.rand(shape) / 10 + 0.05 for shape in shapes] if evaluated else []
    table = (torch.arange(250) % classes).to(torch.uint8) if evaluated else None
    ladders = [torch.randint(0, 300, (batch, rungs)), torch.tensor([[1.0, 2, 7]] * batch), torch.tensor([3, 2, 1])]
    waiting = [torch.tensor([-1, 4, -1]), torch.rand(batch), torch.rand(batch), torch.rand(batch)]
    text = [torch.full((batch, 9), -1), torch.tensor([0, 3, 8]), torch.tensor([9, 4, 9]),
            ladders[0][:, :1].contiguous()]  # fmt: skip
    ring = [torch.zeros(4, batch, 3 + rungs if evaluated else 1, dtype=torch.int64),
            torch.zeros(4, batch, 2) if evaluated else None, torch.tensor([3])]  # fmt: skip
    active = torch.tensor([True, True, False])
    given = [[r[2] for r in records], [r[1] for r in records], network, table, *ladders, waiting[:3], waiting[3],
             None if evaluated else torch.rand(batch), torch.randn(batch), *text, active, *ring, 2, 1, k, 1, classes,
             0.8, 1.5, 1, 10.0]  # fmt: skip

    def changed(op: Any) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            tokens, choice, chosen, shown, strength, _, *said = op(*arguments)
            mutated = [*arguments[7][:2], *(arguments[i] for i in (11, 12, 15, 16, 18))]
            return [tokens, choice, chosen, shown, strength, *said, *mutated]

        return call

    name = f"decision_step {'evaluated' if evaluated else 'given'}"
    return name, changed(ops.decision_step), changed(decision_step_ref), given, "evaluator"


def evaluator() -> list[Made]:
    inputs, hidden = 333, 128
    shapes = [(inputs,), (inputs,), (hidden, inputs), (hidden,), (hidden, hidden), (hidden,), (1, hidden), (1,)]
    features = [torch.rand(2, inputs), [torch.rand(shape) / 10 + 0.05 for shape in shapes]]
    rungs = [torch.arange(6).view(2, 3), torch.tensor([[1.0, 2, 7], [1, 4, 5]]), torch.tensor([3, 2])]
    choice = [*rungs, torch.tensor([0.3, 0.6]), 1, 10.0]
    return [
        ("evaluate_capacity", ops.evaluate_capacity, evaluate_capacity_ref, features, "evaluator"),
        ("select_candidate", ops.select_candidate, select_candidate_ref, choice, "exact"),
    ]  # fmt: skip


def known_race(full: float, scale: bool) -> Made:
    """Races whose values come from elsewhere; one row where nobody races."""
    values, ids, _, _ = topk_softmax_ref(torch.randn(3, 2500) * 2, 100)
    race = values.double() + 3 * torch.randn(3, 100, dtype=torch.float64)
    race[2] = -torch.inf
    arguments = [values, ids, race, full, 1.0, scale]
    return f"race_ladder scale={scale}", reached(ops.race_ladder), reached(race_ladder_ref), arguments, "exact"


def draws() -> list[Made]:
    """What needs the PRF alone, and what a sampler does to logits."""
    scores, key = torch.randn(2, 2500), torch.tensor([KEY, ~KEY])
    context = torch.randint(-1, 2500, (2, 3))
    found: list[Made] = [("race_winner", ops.race_winner, race_winner_ref, [scores, context, key, 0.7], "exact")]
    kept = [torch.tensor([True, True]), torch.tensor([0.7, 1.0]), torch.tensor([0, 40]), torch.tensor([0.05, 0.1]),
            torch.tensor([0.0, 0.02])]  # fmt: skip
    found.append(("warp_logits", ops.warp_logits, warp_logits_ref, [scores, *kept], "exact"))
    text = torch.randint(-1, 600, (2, 700))
    numbers, seen = torch.tensor([[1.3, 0.5, 0.1], [0.8, -0.7, -0.3]]), torch.rand(2, 2500) < 0.1
    given = [scores, text, torch.tensor([True, True]), numbers]
    for name, own in (("", [seen, torch.randn(2, 2500)]), (" of counts", [seen[:, :0], torch.zeros(2, 0)])):
        found.append((f"penalise_logits{name}", ops.penalise_logits, penalise_logits_ref, [*given, *own], "exact"))
    context = torch.tensor([[1, 2, 3], [3, 4, 2**40]])
    found.append(("sampling_noise", ops.sampling_noise, sampling_noise_ref, [context, key, 1100], "float32"))
    return found


def layered(count: int, size: int, kept: int) -> Made:
    """Tournaments of several groups of ten layers, with noise, contexts with tokens missing, a row cut to a few."""
    warped = torch.randn(3, 2500) * 2
    warped[1] = torch.where(warped[1] < warped[1].topk(kept).values[-1], -torch.inf, warped[1])
    scores = warped - torch.rand(3, 2500).log_().neg_().log_()
    table = layered_table(torch.randint(0, 2, (size,)), torch.randint(1 << 62, (count,)).tolist())
    given = [warped, scores, scores.argmax(1), torch.randint(-1, 2500, (3, 4)), table, count]
    return f"tournament of {count} layers", ops.tournament, tournament_ref, given, "exact"


def small_calls() -> Sequence[Made]:
    """Every kernel: one part and several, half precision and float32, options, pages, long and short vocabularies."""
    torch.manual_seed(SEED)
    options = {"window": 70, "softcap": 3.0, "sinks": True}
    return [
        attention(torch.float16, 60, False), attention(torch.float16, SPLIT, False),
        attention(torch.bfloat16, SPLIT, False, **options), attention(torch.float32, SPLIT, False),
        attention(torch.float16, SPLIT, True), attention(torch.bfloat16, 60, True, **options),
        *[(f"topk_softmax {v} {dtype}", ops.topk_softmax, lambda *a: topk_softmax_ref(*a),
           [torch.randn(3, v).to(dtype), 100, torch.tensor([2, 0])], "softmax")
          for v, dtype in ((60, torch.float32), (4500, torch.float16), (4500, torch.float32))],
        layer(HALF, SPLIT), layer(torch.float32, 60, window=40), layer(HALF, SPLIT, rows=(0, 1, 1, 1)),
        linear(1, HALF), linear(33, torch.bfloat16), linear(5, torch.float32),
        *packed(1, torch.float16, FP8), *packed(33, torch.bfloat16, INT8), *packed(5, torch.bfloat16, INT4),
        commit(), *evaluator(),
        *[whole_ladder(*kind, ends) for kind in ((SELFHASH, 3, 6.0), (RACE_TOP_K, 4, 20.0)) for ends in (False, True)],
        decision(True), decision(False),
        *[ladder(*kind) for kind in ((GREEN, 1, 6.0), (SELFHASH, 3, 6.0), (RACE_TOP_K, 4, 20.0), (RACE_SCALE, 4, 1.0))],
        known_race(20.0, False), known_race(1.0, True), *draws(),
        layered(1, 64, 1), layered(30, 1 << 16, 20), layered(33, 1 << 10, 900),
        family_layer(HALF, SPLIT, "gemma2", 80, head_norms=True), family_layer(torch.float32, 60, "gemma", 80),
        family_layer(HALF, 60, "llama", 32), family_layer(torch.float32, SPLIT, "gemma2", 32),
        norm(torch.float32, 1, 1.0), norm(torch.bfloat16, 997, 0.0), norm(HALF, 70, 1.0),
    ]  # fmt: skip
