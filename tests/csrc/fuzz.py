"""Fuzzer of the argument checks: random shapes, dtypes, strides and numbers, valid and not, must never crash.

    python tests/csrc/fuzz.py [seconds] [seed]

Every call either returns or raises RuntimeError / TypeError / NotImplementedError. Run it under the sanitizers with
`python csrc/sanitize.py fuzz`.
"""

from __future__ import annotations

import collections
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from caw import ops
from caw.ops_ref.block_types import BLOCK_TYPES, packed_bytes

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
EVERY = [*FLOATS, torch.float64, torch.int64, torch.int32, torch.bool]
SIZES = [0, 1, 2, 3, 5, 16, 33]
NUMBERS = [0, 1, -1, 2, 3, 7, 64, 100, 2**24, 2**31, 2**32, 2**63 - 1, -(2**63)]
REALS = [0.0, 1.0, -1.0, 0.5, 1e30, float("inf"), float("nan")]


def tensor(shape: list[int], dtype: torch.dtype, high: int = 6) -> torch.Tensor:
    """A tensor of this shape, mostly; sometimes another shape, dtype or stride."""
    if random.random() < 0.04:
        shape = [random.choice(SIZES) for _ in range(random.randrange(0, 5))]
    if random.random() < 0.04:
        dtype = random.choice(EVERY)
    if dtype.is_floating_point:
        t = torch.randn(shape).to(dtype)
        if t.numel() and random.random() < 0.1:
            t.view(-1)[random.randrange(t.numel())] = random.choice([torch.nan, torch.inf, -torch.inf])
    else:
        t = torch.randint(-1 if random.random() < 0.1 else 0, max(high, 1), shape).to(dtype)
    if t.dim() and random.random() < 0.2:
        t = t.repeat_interleave(2, dim=-1)[..., ::2]
    return t


def size() -> int:
    return random.choice(SIZES)


def number() -> int:
    return random.choice(NUMBERS)


def topk() -> Any:
    rows = tensor([size()], torch.int64) if random.random() < 0.5 else None
    return ops.topk_softmax(
        tensor([size(), size() * 31], random.choice(FLOATS)), random.choice([1, 2, 50, 100, 0, -3]), rows
    )


def attention() -> Any:
    batch, kv_heads, group, slots, dim, places = size(), size(), random.choice([1, 2, 3]), size(), size(), size() * 9
    dtype = random.choice(FLOATS)
    own = [batch, kv_heads, slots, dim]
    cache = [batch, kv_heads, places, dim]
    sinks = tensor([kv_heads * group], random.choice(FLOATS)) if random.random() < 0.3 else None
    window = random.choice([None, None, 1, 5, 0, -4, 2**40])
    softcap = random.choice([None, None, 5.0, 0.0])
    return ops.sibling_attention(
        tensor([batch, kv_heads * group, slots, dim], dtype), tensor(cache, dtype), tensor(cache, dtype),
        tensor(own, dtype), tensor(own, dtype), tensor([batch], torch.int64, places + 1), random.choice(REALS),
        window, softcap, sinks,
    )  # fmt: skip


def packed_attention() -> Any:
    batch, kv_heads, group, dim, places, count = size(), size(), random.choice([1, 2, 3]), size(), size() * 9, size()
    dtype = random.choice(FLOATS)
    own, cache = [count, kv_heads, random.choice([1, 1, 1, 2]), dim], [batch, kv_heads, places, dim]
    rows = tensor([count], torch.int64, batch)
    return ops.sibling_attention_packed(
        tensor([count, kv_heads * group, 1, dim], dtype), tensor(cache, dtype), tensor(cache, dtype),
        tensor(own, dtype), tensor(own, dtype), tensor([batch], torch.int64, places + 1),
        rows.sort().values if random.random() < 0.8 else rows, random.choice(REALS),
        random.choice([None, 1, 5, 0, -4, 2**40]), random.choice([None, 5.0, 0.0]),
    )  # fmt: skip


def commit() -> Any:
    layers, batch, slots, heads, places, dim = (size() for _ in range(6))
    dtype = random.choice(FLOATS)
    return ops.commit_kv(
        tensor([layers, 2, batch, heads, places, dim], dtype), tensor([layers, 2, batch, slots, heads, dim], dtype),
        tensor([batch], torch.int64, slots), tensor([batch], torch.int64, places), tensor([batch], torch.bool, 2),
    )  # fmt: skip


def evaluate() -> Any:
    batch, inputs, hidden = size(), size(), size()
    shapes = [[inputs], [inputs], [hidden, inputs], [hidden], [hidden, hidden], [hidden], [1, hidden], [1]]
    return ops.evaluate_capacity(tensor([batch, inputs], torch.float32), [tensor(s, torch.float32) for s in shapes])


def select() -> Any:
    batch, width = size(), size()
    return ops.select_candidate(
        tensor([batch, width], torch.int64), tensor([batch, width], torch.float32), tensor([batch], torch.int64),
        tensor([batch], torch.float32), random.choice([0, 1, 2, 3, -1]), random.choice(REALS),
    )  # fmt: skip


def enumerate_() -> Any:
    batch, width, window = size(), size(), size()
    record = [batch, width]
    return ops.enumerate_candidates(
        tensor(record, torch.float32).sort(dim=-1, descending=True).values if width else tensor(record, torch.float32),
        tensor(record, torch.int64, 10**6), tensor(record, torch.float32), tensor([batch, size() * 7], torch.float32),
        tensor([batch, window], torch.int64, 10**6), tensor([batch], torch.int64, 2**62),
        random.choice([0, 1, 2, 3, 4]), random.choice([0, 1, 2**22, 2**24, -1]), random.choice(REALS),
        random.choice(REALS),
    )  # fmt: skip


def score() -> Any:
    count = size() * 5
    tokens, key = tensor([count], torch.int64, 10**6), tensor([count], torch.int64, random.choice([2, 2**62]))
    return ops.score_tokens(tokens, random.choice([0, 1, 3, 64, 65, -1]), key, random.choice([0, 1, 2, 3, 9]), 2**22)


def keys() -> Any:
    count = size() * 5
    contexts = tensor([count, random.choice([0, 1, 4, 65])], torch.int64, 10**6)
    tokens, secrets = tensor([count], torch.int64, 10**6), tensor([size()], torch.int64, 2**62)
    return ops.score_keys(
        contexts, tokens, secrets, random.choice([0, 1, 2, 3, 9]), random.choice([0, 2**22, 2**24, -1])
    )


def show() -> Any:
    batch, window, scheme = size(), random.choice([0, 1, 3, 64, 65, -1]), random.choice([0, 1, 2, 3, 9])
    columns = {0: window + 1, 1: 2}.get(scheme, window) if random.random() < 0.9 else size()
    return ops.show_evidence(
        tensor([batch, max(0, window) + size()], torch.int64, 10**6), tensor([batch], torch.int64, 10),
        tensor([batch, size()], torch.int64, 10**6), tensor([batch, size(), max(0, columns)], torch.int64, 3),
        tensor([batch], torch.int64, 10), window, tensor([batch], torch.int64, 2**62), scheme, 2**22,
    )  # fmt: skip


def count() -> Any:
    batch, columns, room = size(), size(), size()
    whole = [[batch, room, columns], [batch], [batch, 16 if random.random() < 0.9 else size()]]
    state = [tensor(shape, torch.int64, 10) for shape in whole]
    reals = [tensor(shape, torch.float64) for shape in ([batch], [batch, 2], [batch])]
    first, level = tensor([batch], torch.int64, 2) > 0, random.choice([None, tensor([batch], torch.int64, 20)])
    return ops.count_evidence(
        *state,
        *reals[:2],
        tensor([batch, columns], torch.int64),
        first,
        level,
        reals[2],
        0.25,
        0.2,
        random.choice(REALS),
    )


def noise() -> Any:
    batch = size()
    key = tensor([batch], torch.int64, 2**62)
    return ops.sampling_noise(tensor([batch, size()], torch.int64), key, random.choice([0, 1, 3, 5000, -1]))


def warped() -> Any:
    batch, flags = size(), torch.bool
    numbers = [tensor([batch], torch.float32), tensor([batch], torch.int64, 50), tensor([batch], torch.float32)]
    floors = tensor([batch], torch.float32)
    return ops.warp_logits(tensor([batch, size() * 31], torch.float32), tensor([batch], flags), *numbers, floors)


def penalised() -> Any:
    batch, width = size(), size() * 31
    own = tensor([batch, random.choice([0, width, size()])], torch.bool), tensor([batch, width], torch.float32)
    tokens = tensor([batch, size()], torch.int64, width + 3)
    rows = tensor([batch, width], torch.float32), tokens, tensor([batch], torch.bool), tensor([batch, 3], torch.float32)
    return ops.penalise_logits(*rows, *own)


def draws() -> Any:
    batch = size()
    rows = tensor([batch, size() * 31], torch.float32), tensor([batch], torch.bool), tensor([batch, 3], torch.int64)
    return ops.draw_scores(*rows, tensor([batch], torch.int64, 2**62), random.choice([1, 2, 50, 0, -3]),
                           random.choice(REALS))  # fmt: skip


def tournament() -> Any:
    batch, width = size(), size() * 31
    rows = [tensor([batch, width], torch.float32) for _ in range(2)]
    table = tensor([random.choice([1, 2, 64, 4096, 100])], random.choice([torch.int32, torch.int64]), 2**31 - 1)
    layers = random.choice([0, 1, 10, 11, 30, 64, -5, 2**40])
    return ops.tournament(*rows, tensor([batch], torch.int64, 50), tensor([batch, size()], torch.int64), table, layers)


def lists() -> Any:
    return ops.permutation_green(
        tensor([size()], torch.int64, 10**9), random.choice([0, 1, 8, 33, 1000, -1]), random.choice([0, 1, 8, 33, -1])
    )


def members() -> Any:
    n, vocab_size = size(), random.choice([1, 8, 33, 1000, 0])
    return ops.permutation_contains(
        tensor([n], torch.int64, 10**9), tensor([n], torch.int64, 1100), vocab_size, random.choice([0, 1, 8, 33, -1])
    )


def words() -> Any:
    n = size()
    return ops.generator_words(tensor([n], torch.int64, 10**9), tensor([n], torch.int64, 10**4))


def step() -> Any:
    batch, width, positions, k, hidden = (
        size(),
        size(),
        random.choice([0, 1, 3, 4]),
        random.choice([0, 1, 7, 9]),
        size(),
    )
    added = random.choice([0, 0, 3])
    inputs = positions * k + added
    shapes = [[inputs], [inputs], [hidden, inputs], [hidden], [hidden, hidden], [hidden], [1, hidden], [1]]
    return ops.evaluator_step(
        [tensor([batch, random.choice([k, k, 16])], torch.float32) for _ in range(positions)],
        [tensor(shape, torch.float32) for shape in shapes], tensor([batch, width], torch.int64),
        tensor([batch, width], torch.float32), tensor([batch], torch.int64), tensor([batch], torch.int64),
        *[tensor([batch], torch.float32) for _ in range(3)], random.choice([k, k, k, number()]),
        random.choice([0, 1, 2, 3, -1]), random.choice(REALS), random.choice(REALS), random.choice([0, 1, 2, 3]),
        random.choice(REALS), tensor([batch, added], torch.float32) if added else None,
    )  # fmt: skip


def linear() -> Any:
    rows, inputs, outputs, dtype = size(), size(), size(), random.choice(FLOATS)
    bias = tensor([outputs], dtype) if random.random() < 0.5 else None
    weight = tensor([outputs, inputs], random.choice([dtype, random.choice(FLOATS)])).contiguous()
    return ops.small_linear(tensor([rows, inputs], dtype), weight, bias)


def packed() -> torch.Tensor:
    """Packed weights of some type, sometimes with a byte changed or some missing."""
    kind = random.choice([2, 3, 6, 7, 8, 10, 11, 12, 13, 14])
    blocks = [random.choice([1, 3, 16, 33]), random.choice([1, 2, 9]) * BLOCK_TYPES[kind].bytes]
    made = ops.pack_blocks(torch.randint(0, 256, blocks).to(torch.uint8), kind, random.random() < 0.5)
    if random.random() < 0.2:
        made[random.randrange(64)] = random.randrange(256)
    return made if random.random() < 0.9 else made[: random.randrange(made.numel())]


def pack() -> Any:
    shape = [size(), random.choice([0, 18, 20, 22, 34, 84, 144, 210, 211])]
    blocks, kind = tensor(shape, torch.uint8, 255), random.choice([2, 3, 6, 8, 10, 12, 14, number()])
    if random.random() < 0.5:
        return ops.pack_blocks(blocks, kind)
    fits = kind in BLOCK_TYPES and shape[1] % BLOCK_TYPES[kind].bytes == 0 and random.random() < 0.8
    out = torch.zeros(packed_bytes(*shape, kind) if fits else size(), dtype=torch.uint8)
    return ops.pack_blocks_into(blocks, kind, random.random() < 0.5, out)


def unpack() -> Any:
    weights = packed()
    inputs = int(weights[24:32].view(torch.int64)) if weights.numel() >= 32 else 32
    return ops.unpack_rows(weights, tensor([size()], torch.int64, 4), inputs)


def quantization() -> Any:
    weights = packed()
    outputs, inputs = weights[16:32].view(torch.int64).tolist() if weights.numel() >= 32 else (3, 32)
    inputs = inputs if 0 < inputs <= 4096 else 32
    bias = tensor([min(abs(outputs), 99)], torch.float32) if random.random() < 0.5 else None
    return ops.quantized_linear(tensor([size(), inputs], torch.float32), weights, outputs, bias)


def prefix_attention() -> Any:
    kv_heads, group = random.choice([1, 2]), random.choice([1, 3])
    batch, dim, places, rows = size(), size(), size(), size()
    dtype, cache, own = random.choice(FLOATS), [batch, kv_heads, places, dim], [rows, kv_heads, 1, dim]
    return ops.prefix_attention(
        tensor([rows, kv_heads * group, 1, dim], dtype), tensor(cache, dtype), tensor(cache, dtype), tensor(own, dtype),
        tensor(own, dtype), tensor([rows], torch.int64, places + 1), tensor([rows], torch.int64, batch),
        random.choice(REALS), random.choice([None, 1, 5, 0, 2**40]), random.choice([None, 2.0]),
    )  # fmt: skip


def prefill_layer() -> Any:
    kv_heads, group = random.choice([1, 2]), random.choice([1, 3])
    rows, tokens, batch, dim = size(), size(), size(), size()
    width, wide, places, dtype = size(), size(), size(), random.choice(FLOATS)
    heads, dim = kv_heads * group, dim // 2 * 2
    shapes = [[width], [heads * dim, width], [kv_heads * dim, width], [kv_heads * dim, width], [width, heads * dim],
              [width], [wide, width], [wide, width], [width, wide], *random.choice([[], [[dim]] * 2])]  # fmt: skip
    cache, several = [batch, kv_heads, places, dim], [rows, tokens]
    return ops.prefill_layer(
        tensor([*several, width], dtype), tensor([*several, dim], dtype), tensor([*several, dim], dtype),
        tensor(cache, dtype), tensor(cache, dtype), tensor([rows * tokens], torch.int64, batch),
        tensor([rows * tokens], torch.int64, places),
        [tensor(shape, dtype).contiguous() for shape in shapes], [None] * 7,
        1e-5, random.choice(REALS), random.choice([None, 1, 5, 0, 2**40]),
        random.choice([None, tensor([rows * tokens], torch.int64, places)]),
    )  # fmt: skip


def layer() -> Any:
    batch, slots, kv_heads, group, dim, width = (
        size(),
        size(),
        random.choice([1, 2]),
        random.choice([1, 3]),
        size(),
        size(),
    )
    wide, places, dtype = size(), size(), random.choice(FLOATS)
    heads, dim = kv_heads * group, dim // 2 * 2
    matrices = [[heads * dim, width], [kv_heads * dim, width], [kv_heads * dim, width], [width, heads * dim]]
    shapes = [
        [width],
        *matrices,
        [width],
        [wide, width],
        [wide, width],
        [width, wide],
        *random.choice([[], [[dim]] * 2]),
    ]
    weights = [
        tensor(shape, dtype).contiguous() if random.random() < 0.98 else tensor(shape, dtype) for shape in shapes
    ]
    biases = [tensor([shapes[i][0]], dtype) if random.random() < 0.3 else None for i in (1, 2, 3, 4, 6, 7, 8)]
    cache, scratch = [batch, kv_heads, places, dim], [batch, slots + 1, kv_heads, dim]
    rows = tensor([size()], torch.int64, batch).sort().values if random.random() < 0.5 else None
    shape = [batch, slots] if rows is None else [rows.numel(), 1]
    return ops.decoder_layer(
        tensor([*shape, width], dtype), tensor([*shape, dim], dtype), tensor([*shape, dim], dtype),
        tensor(cache, dtype), tensor(cache, dtype), tensor(scratch, dtype), tensor(scratch, dtype),
        random.choice([0, 1, 1, number()]), tensor([batch], torch.int64, places + 1), weights, biases,
        random.choice([1e-5, *REALS]), random.choice(REALS), random.choice([None, 1, 5, 0, 2**40]),
        rows,
    )  # fmt: skip


def stack() -> Any:
    kv_heads, group, layers = random.choice([1, 2]), random.choice([1, 3]), random.choice([0, 1, 2])
    batch, slots, dim, width, wide, places = (size() for _ in range(6))
    dtype, heads, dim = random.choice(FLOATS), kv_heads * group, dim // 2 * 2
    queries, keys = heads * dim, kv_heads * dim
    shapes = [[width], [queries, width], [keys, width], [keys, width], [width, queries], [width],
              [wide, width], [wide, width], [width, wide]]  # fmt: skip
    if random.random() < 0.4:  # merged
        shapes = [[width], [queries + 2 * keys, width], [width, queries], [width], [2 * wide, width], [width, wide]]
    matrices = [shape for shape in shapes if len(shape) == 2]
    shapes += random.choice([[], [[dim]] * 2])
    family, turned = random.choice(["llama", "llama", "gemma", "gemma2", "other"]), random.choice([dim, dim, 2])
    shapes += [[width]] * 2 if family == "gemma2" else []
    kinds = random.choice([[], [], [1], [2]])
    rotations = [random.choice([0, 1]) for _ in range(layers)] if kinds else []
    weights = [tensor(shape, dtype).contiguous() for _ in range(layers) for shape in shapes]
    biases = [tensor([shape[0]], dtype) for _ in range(layers) for shape in matrices]
    rows = tensor([size()], torch.int64, batch).sort().values if random.random() < 0.7 else None
    shape = [batch, slots] if rows is None else [rows.numel(), 1]
    drafted = rows is not None and random.random() < 0.5
    lengths = tensor([rows.numel() if drafted and rows is not None else batch], torch.int64, places + 1)
    rotation = [*kinds, *shape, turned]
    return ops.decoder_stack(
        tensor([*shape, width], dtype), tensor(rotation, dtype), tensor(rotation, dtype),
        tensor([layers, 2, batch, kv_heads, places, dim], dtype),
        tensor([layers, 2, batch, slots + 1, kv_heads, dim], dtype), random.choice([0, 1, number()]), lengths,
        weights, random.choice([[], biases]), 1e-5, random.choice(REALS), [random.choice([0, 1, 5, 2**40])] * layers,
        rows, tensor(list(lengths.shape), torch.int64, places) if drafted else None, family,
        random.choice([None, *REALS]), rotations, random.choice([1.0, 0.22, *REALS]),
    )  # fmt: skip


CALLS: list[Callable[[], Any]] = [
    topk, attention, packed_attention, commit, evaluate, select, step, enumerate_, score, keys, show, count, noise,
    penalised, warped, draws, tournament, lists, members, words, linear, layer, pack, unpack, quantization,
    prefix_attention, prefill_layer, stack,
]  # fmt: skip
LEAST, MOST = 40, 400  # calls of each, however slow the machine; and until one returned, which is rare for some


def main(seconds: float, seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    end, done = time.monotonic() + seconds, 0
    missing = {call.__name__ for call in CALLS}
    while time.monotonic() < end or done < LEAST * len(CALLS) or (missing and done < MOST * len(CALLS)):
        call = CALLS[done % len(CALLS)]
        done += 1
        try:
            call()
            counts[call.__name__, "returned"] += 1
            missing.discard(call.__name__)
        except (RuntimeError, TypeError, NotImplementedError):
            counts[call.__name__, "refused"] += 1
    for (name, how), count in sorted(counts.items()):
        print(f"{name:12} {how:9} {count}")
    if missing:
        sys.exit(f"no call of {', '.join(sorted(missing))} ever returned: the fuzzer only tests refusals there")


if __name__ == "__main__":
    if ops.missing_extension():
        sys.exit(ops.missing_extension())
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
