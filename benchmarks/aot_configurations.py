"""Which launches are compiled ahead of time (`shipped`; `checked` stands for them in the tests), and their bounds."""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import torch
from aot import Report
from product_trials import product_trials

from caw.op_indices import GREEN, RACE_SCALE, RACE_TOP_K, SELFHASH
from caw.triton_kernels.block_sizes import ProductBlocks
from caw.triton_kernels.commit_kv import commit_kv, commit_step
from caw.triton_kernels.decision_step import decision_step
from caw.triton_kernels.decoder_layer import decoder_layer
from caw.triton_kernels.decoder_layer_ref import FAMILIES, LLAMA
from caw.triton_kernels.enumerate_candidates import enumerate_candidates
from caw.triton_kernels.evaluator_step import evaluate_capacity, evaluator_step, select_candidate
from caw.triton_kernels.green_argmax import green_argmax
from caw.triton_kernels.ladder_step import ladder_step
from caw.triton_kernels.packed_weights import unpack_weight
from caw.triton_kernels.packed_weights_ref import FORMATS, INT8, Format
from caw.triton_kernels.penalise_logits import penalise_logits
from caw.triton_kernels.race_ladder import race_ladder
from caw.triton_kernels.sampling_noise import sampling_noise
from caw.triton_kernels.sibling_attention import sibling_attention, sibling_attention_packed
from caw.triton_kernels.small_linear import product, small_linear
from caw.triton_kernels.topk_softmax import topk_softmax
from caw.triton_kernels.tournament import tournament
from caw.triton_kernels.warp_logits import warp_logits

BF16, F16, F32, I64 = torch.bfloat16, torch.float16, torch.float32, torch.int64
# Registers a thread: a guard against getting worse, set a little above what the compiler gave (Triton 3.9). Up to 255,
# two programs of 128 threads fit a multiprocessor, up to 168 three, up to 128 four. It says nothing about speed.
REGISTERS = {"_split_kernel": 232, "_combine_kernel": 128, "_part_kernel": 128, "_merge_kernel": 168,
             "_scan_kernel": 168, "_walk_kernel": 168, "_evaluator_kernel": 128, "_decision_kernel": 128,
             "_layer_attention_kernel": 200, "_border_kernel": 128, "_bins_kernel": 80, "_layers_kernel": 72,
             "_product_kernel": 255, "_bias_kernel": 72}  # fmt: skip
# instructions of a thread for each of its weights in the loop of a product for 16 rows, a little above what Triton 3.7
# gave: what is worked out twice, or converted dearly, shows here
INSTRUCTIONS = {"dense float16": 3.1, "dense bfloat16": 3.1, "fp8 float16": 3.8, "fp8 bfloat16": 5.4,
                "int8 float16": 8.5, "int8 bfloat16": 8.5, "int4 float16": 3.5, "int4 bfloat16": 7.0}  # fmt: skip
PIPELINED = ("_split_kernel", "_layer_attention_kernel", "_product_kernel")
SMALL = 64  # registers of every other kernel
# compare fl32(l + fl32(strength * delta)); the last subtracts fl32(penalty * count)
ROUNDED_TWICE = ("_select_kernel", "_green_kernel", "_reweight_kernel", "_walk_kernel", "_green_ladder_kernel",
                 "_penalty_kernel")  # fmt: skip


@dataclass(frozen=True)
class Configuration:
    """A launcher call on meta tensors under a name. registers: a bound of its own, None = REGISTERS."""

    name: str
    call: Callable[[], Any]
    registers: int | None = None


def empty(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def attention(
    batch: int, heads: int, kv_heads: int, candidates: int, size: int, dim: int, dtype: torch.dtype, packed: int = 0,
    **options: Any,
) -> Configuration:  # fmt: skip
    """Attention as decoding calls it: query and own keys transposed from [B, C, H, D], store [L, 2, B, HK, S, D]."""
    extras = " ".join(f"{name}={value}" for name, value in {"packed": packed, **options}.items() if value)
    if options.pop("sinks", False):
        options["sinks"] = empty(heads, dtype=dtype)
    q, k_own, v_own = (
        empty(packed or batch, candidates, h, dim, dtype=dtype).transpose(1, 2) for h in (heads, kv_heads, kv_heads)
    )
    lengths = empty(batch, dtype=I64)
    name = f"attention b{batch} h{heads}/{kv_heads} c{candidates} s{size} d{dim} {str(dtype)[6:]} {extras}"
    store = empty(2, batch, kv_heads, size, dim, dtype=dtype)
    given = (q, store[0], store[1], k_own, v_own, lengths)
    if packed:
        rows = empty(packed, dtype=I64)
        return Configuration(name, lambda: sibling_attention_packed(*given, rows, 0.1, **options))
    return Configuration(name, lambda: sibling_attention(*given, 0.1, **options))


def layer(
    batch: int, candidates: int, width: int, heads: int, kv_heads: int, wide: int, dim: int, dtype: torch.dtype,
    head_norms: bool = False, biases: bool = False, window: int | None = None, size: int = 2048, packed: int = 0,
    family: str = LLAMA, softcap: float | None = None, rotated: int | None = None,
) -> Configuration:  # fmt: skip
    """A whole layer as decoding calls it; of the two norms only the first clears counters, so both are compiled."""
    name = (
        f"layer b{batch} c{candidates} e{width} h{heads}/{kv_heads} i{wide} d{dim} {str(dtype)[6:]}"
        f"{' norms' if head_norms else ''}{' biases' if biases else ''}{f' window={window}' if window else ''} s{size}"
        f"{f' packed={packed}' if packed else ''}"
        f"{'' if family == LLAMA else f' {family}'}{f' cap={softcap}' if softcap else ''}"
        f"{f' rotated={rotated}' if rotated else ''}"
    )
    inner, kv = heads * dim, kv_heads * dim
    shapes = [(width,), (inner, width), (kv, width), (kv, width), (width, inner), (width,), (wide, width),
              (wide, width), (width, wide), *([(dim,)] * 2 if head_norms else []),
              *([(width,)] * 2 if FAMILIES[family].after_norms else [])]  # fmt: skip
    weights = [empty(*shape, dtype=dtype) for shape in shapes]
    bias = [empty(weights[i].shape[0], dtype=dtype) if biases and i < 4 else None for i in (1, 2, 3, 4, 6, 7, 8)]
    cache = empty(2, batch, kv_heads, size, dim, dtype=dtype)
    scratch = empty(2, batch, candidates, kv_heads, dim, dtype=dtype)
    of_rows = (packed, 1) if packed else (batch, candidates)
    hidden, rotary = empty(*of_rows, width, dtype=dtype), empty(2, *of_rows, rotated or dim, dtype=dtype)
    rows = empty(packed, dtype=I64) if packed else None
    lengths = empty(batch, dtype=I64)

    def call() -> None:
        decoder_layer(hidden, *rotary, *cache, *scratch, 0, lengths, weights, bias, 1e-5, 0.1, window, rows, family,
                      softcap)  # fmt: skip

    return Configuration(name, call)


def linear(rows: int, outputs: int, size: int, dtype: torch.dtype) -> Configuration:
    x, weight = empty(rows, size, dtype=dtype), empty(outputs, size, dtype=dtype)
    name = f"linear r{rows} o{outputs} k{size} {str(dtype)[6:]}"
    return Configuration(name, lambda: small_linear(x, weight, None))


def packed_registers(dtype: torch.dtype, gated: bool) -> int:
    """A little above what Triton 3.7 gave: 188, of int8 and 64 rows; in float32 178, gate and up 255."""
    return 255 if gated else 184 if dtype == F32 else 216


def packed(rows: int, outputs: int, size: int, dtype: torch.dtype, form: Format, gated: bool = False) -> Configuration:
    """A product of packed weights, whose numbers stand in registers, and one made dense."""
    x = empty(rows, size, dtype=dtype)
    weights = [empty(outputs, form.row(size), dtype=form.dtype) for _ in range(2 if gated else 1)]

    def call() -> None:
        product(x, weights, [None] * len(weights), gated=gated)
        unpack_weight(weights[0], size, dtype)

    name = f"packed {form.name} r{rows} o{outputs} k{size} {str(dtype)[6:]}{' gated' if gated else ''}"
    return Configuration(name, call, registers=packed_registers(dtype, gated))


def trial(
    rows: int, dtype: torch.dtype, gated: bool, blocks: ProductBlocks, form: Format | None = None
) -> Configuration:
    """A product by tiles that the tuner tries; of so many outputs that 64 rows take them twice as wide."""
    x, shape, kind = empty(rows, 4096, dtype=dtype), (16384, 4096 if form is None else form.row(4096)), dtype
    if form is not None:
        kind = form.dtype
    weights = [empty(*shape, dtype=kind) for _ in range(2 if gated else 1)]
    sizes = "/".join(map(str, astuple(blocks)))
    name = f"trial r{rows} {sizes} {str(dtype)[6:]}{' gated' if gated else ''}{'' if form is None else f' {form.name}'}"
    call = partial(product, x, weights, [None] * len(weights), gated=gated, blocks=blocks)
    return Configuration(name, call, registers=None if form is None else packed_registers(dtype, gated))


def trials(capability: int) -> Iterator[Configuration]:
    """Of the cards whose compute capability begins so."""
    for dtype, gated in ((F16, False), (F16, True), (F32, False)):
        for blocks in product_trials(4096, dtype, gated, capability):
            yield from (trial(rows, dtype, gated, blocks) for rows in (1, 64))
    for form in FORMATS.values():
        for dtype, gated in ((BF16, False), (BF16, True), (F32, False)):
            for blocks in product_trials(4096, dtype, gated, capability, form):
                yield trial(64, dtype, gated, blocks, form)


def topk(rows: int, vocab_size: int, dtype: torch.dtype, k: int = 100, select: bool = False) -> Configuration:
    chosen = empty(rows, dtype=I64) if select else None
    name = f"topk r{rows} v{vocab_size} {str(dtype)[6:]} k{k}{' rows' if select else ''}"
    return Configuration(name, lambda: topk_softmax(empty(rows, vocab_size, dtype=dtype), k, chosen))


def network(inputs: int, h: int) -> list[torch.Tensor]:
    return [empty(*s) for s in ((inputs,), (inputs,), (h, inputs), (h,), (h, h), (h,), (1, h), (1,))]


def evaluator(batch: int, hidden: int, positions: int, transform: int, rule: int, rungs: int,
              extra: int = 0) -> Configuration:  # fmt: skip
    """extra: inputs behind the probabilities, as evaluators with token classes have them: 11 for each position."""
    inputs = positions * 100 + extra
    weights = network(inputs, hidden)
    whole, more = empty(batch, dtype=I64), empty(batch, extra) if extra else None
    ladder, pending = [empty(batch, rungs, dtype=I64), empty(batch, rungs), whole], [whole, empty(batch), empty(batch)]

    def call() -> None:
        probs = [empty(batch, 100) for _ in range(positions)]
        evaluator_step(probs, weights, *ladder, *pending, empty(batch), 100, transform, 0.5, 1.0, rule, 4.0, more)
        evaluate_capacity(empty(batch, inputs), weights)
        select_candidate(*ladder, empty(batch), rule, 4.0)

    return Configuration(f"evaluator b{batch} h{hidden} p{positions} t{transform} r{rule} m{rungs} x{extra}", call)


def decision(
    batch: int, hidden: int, positions: int, transform: int, rule: int, rungs: int, classes: int = 0,
    trace: bool = False,
) -> Configuration:  # fmt: skip
    """With an evaluator, and with a given strength."""
    inputs = positions * (100 + classes)
    weights = network(inputs, hidden)
    whole, real, table = empty(batch, dtype=I64), empty(batch), empty(32000, dtype=torch.uint8) if classes else None
    window = [[empty(batch, 100, dtype=dtype) for _ in range(positions)] for dtype in (F32, I64)]
    text = [empty(batch, 1028, dtype=I64), whole, whole, empty(batch, 2, dtype=I64), empty(batch, dtype=torch.bool)]
    ring = [empty(8, batch, 3 + rungs if trace else 1, dtype=I64), empty(8, batch, 2) if trace else None]
    ladder = [empty(batch, rungs, dtype=I64), empty(batch, rungs), whole]
    rest, waiting = [*text, *ring, empty(1, dtype=I64), 2, 4], [whole, real, real]

    def call() -> None:
        numbers = [100, transform, classes, 0.5, 1.0, rule, 4.0]
        carried = whole if rungs > 2 else None
        decision_step(*window, weights, table, *ladder, waiting, real, None, real, *rest, *numbers, carried)
        decision_step([], [], [], None, *ladder, waiting, real, real, real, *rest, *numbers)

    name = f"decision b{batch} h{hidden} p{positions} t{transform} r{rule} m{rungs} x{classes}"
    return Configuration(f"{name}{' trace' if trace else ''}", call)


def commit(layers: int, batch: int, heads: int, dim: int, dtype: torch.dtype, positions: int) -> Configuration:
    kv = [empty(layers, 2, batch, heads, 2048, dim, dtype=dtype), empty(layers, 2, batch, 8, heads, dim, dtype=dtype),
          empty(batch, dtype=I64), empty(batch, dtype=I64), empty(batch, dtype=torch.bool)]  # fmt: skip
    record = [empty(batch, 100), empty(batch, 100, dtype=I64), empty(batch, 100), empty(batch)]
    name = f"commit l{layers} b{batch} hk{heads} d{dim} {str(dtype)[6:]} p{positions}"
    if not positions:
        return Configuration(name, lambda: commit_kv(*kv))
    of_all = [empty(8 * batch, *t.shape[1:], dtype=t.dtype) for t in record]

    def call() -> None:
        commit_step(*kv, empty(batch, 32000), empty(batch, 8, 32000), record * positions, record)
        commit_step(*kv, empty(batch, 32000), empty(batch, 8, 32000, dtype=dtype), record * positions, of_all, kv[-1])

    return Configuration(name, call)


def prf(width: int, selfhash: bool, vocab_size: int = 128256) -> Configuration:
    context, key = empty(2, width, dtype=I64), empty(2, dtype=I64)  # a key for each row

    def call() -> None:
        green_argmax(empty(2, vocab_size), context, key, 1 << 22, selfhash, empty(2, dtype=torch.bool))
        record = [empty(2, 100), empty(2, 100, dtype=I64)]
        race_ladder(*record, empty(2, 100, dtype=torch.float64), 1.0 if selfhash else 20.0, 1.0, selfhash)

    return Configuration(f"prf w{width}{' selfhash' if selfhash else ''}", call)


def ladder(scheme: int, width: int, k: int = 100) -> Configuration:
    key, context = empty(2, dtype=I64), empty(2, width, dtype=I64)
    record = [empty(2, k), empty(2, k, dtype=I64), empty(2, k), empty(2, 128256), context]

    def call() -> None:
        enumerate_candidates(*record, key, scheme, 1 << 22, 10.0, 1.0)
        text = [empty(2, 1024 + width, dtype=I64), key, key, key]
        ladder_step(*record[:4], *text, empty(2, 2, dtype=I64), width, scheme, 1 << 22, 10.0, 1.0, width > 1, 2)
        ladder_step(*record[:4], *text, None, width, scheme, 1 << 22, 10.0, 1.0, False, 2)
        sampling_noise(record[-1], key, 128256)
        floats = [empty(2) for _ in range(3)]
        warp_logits(record[3], empty(2, dtype=torch.bool), floats[0], key, *floats[1:])

    return Configuration(f"ladder s{scheme} w{width}", call)


def layered(layers: int, width: int, vocab_size: int = 128256) -> Configuration:
    """SynthID's tournament."""
    rows = [empty(2, vocab_size), empty(2, vocab_size), empty(2, dtype=I64), empty(2, width, dtype=I64)]
    table = empty(1 << 16, dtype=torch.int32 if layers <= 32 else I64)
    return Configuration(f"tournament l{layers} w{width} v{vocab_size}", lambda: tournament(*rows, table, layers))


def penalised(biased: bool, repeats: bool, vocab_size: int = 128256) -> Configuration:
    """Bias and penalties, of texts behind the context that a watermark reads."""
    rows = [empty(2, vocab_size), empty(2, 1028, dtype=I64)[:, 4:], empty(2, dtype=torch.bool), empty(2, 3)]
    own = [empty(2, vocab_size * repeats, dtype=torch.bool), empty(2, vocab_size * biased)]
    name = f"penalties v{vocab_size}{' bias' if biased else ''}{' repetition' if repeats else ''}"
    return Configuration(name, lambda: penalise_logits(*rows, *own))


def layers() -> list[Configuration]:
    """Of every family, among `checked`."""
    return [
        layer(1, 1, 4096, 32, 32, 11008, 128, F16),  # Llama-2-7B
        layer(1, 8, 4096, 32, 8, 14336, 128, BF16), layer(32, 2, 4096, 32, 8, 14336, 128, BF16),
        layer(1, 2, 896, 14, 2, 4864, 64, BF16, biases=True),
        layer(1, 2, 1024, 16, 8, 3072, 128, BF16, head_norms=True, window=512),
        layer(1, 2, 576, 9, 3, 1536, 64, F32), layer(32, 8, 4096, 32, 8, 14336, 128, BF16, packed=64),
        layer(8, 6, 1024, 16, 8, 3072, 128, F16, head_norms=True, window=512),
        layer(1, 2, 2304, 8, 4, 9216, 256, BF16, window=4096, size=8192, family="gemma2", softcap=50.0),  # Gemma-2-2B
        layer(8, 6, 2560, 8, 4, 10240, 256, BF16, head_norms=True, window=1024, family="gemma2"),
        layer(4, 8, 2048, 8, 1, 16384, 256, F16, family="gemma"),  # Gemma-2B
        layer(1, 2, 3072, 24, 8, 8192, 128, BF16, rotated=96),  # Phi-4-mini
    ]  # fmt: skip


def checked() -> list[Configuration]:
    """What the tests compile for compute capability 9.0: every kernel, dtype, head dim and option at least once."""
    return [
        attention(1, 32, 32, 1, 2048, 128, F16),  # Llama-2-7B: plain decode, two candidates, a full batch
        attention(8, 32, 32, 2, 2048, 128, BF16),
        attention(32, 32, 8, 8, 2048, 128, BF16),  # one part: the first kernel finishes
        attention(1, 32, 8, 16, 8192, 128, BF16), attention(1, 9, 3, 2, 2048, 64, F32),
        attention(1, 32, 32, 2, 2048, 80, F16), attention(1, 32, 32, 4, 2048, 96, BF16),
        attention(1, 8, 4, 2, 4096, 256, BF16, window=4096, softcap=50.0), attention(1, 16, 8, 32, 4096, 256, BF16),
        attention(64, 16, 8, 32, 4096, 256, BF16, softcap=50.0),  # one part, and a tile too large to finish
        attention(32, 32, 8, 16, 2048, 128, F16), attention(1, 64, 8, 2, 4096, 64, BF16, window=128, sinks=True),
        attention(4, 32, 8, 1, 2048, 128, BF16, packed=8), attention(1, 32, 8, 2, 2048, 128, F32),
        attention(32, 32, 8, 6, 2048, 128, F16, sinks=True),  # one part
        *layers(), linear(2, 32000, 4096, F16), linear(64, 151936, 1536, BF16), linear(2, 49152, 576, F32),
        *[packed(2, 32000, 4096, F16, form) for form in FORMATS.values()],
        *[packed(64, 14336, 4096, BF16, form, gated=True) for form in FORMATS.values()],
        topk(2, 128256, BF16, select=True), topk(64, 151936, F32), topk(2, 262144, F32), topk(2, 49152, F16),
        evaluator(2, 128, 3, 2, 0, 2, extra=33),  # those that ship with this library
        evaluator(2, 512, 4, 2, 1, 10), decision(2, 128, 3, 2, 0, 2, classes=11),
        decision(2, 512, 4, 2, 1, 10, trace=True), commit(32, 2, 8, 128, BF16, 0), commit(32, 2, 8, 128, BF16, 2),
        prf(1, False), prf(4, False), prf(3, True), ladder(GREEN, 1), ladder(SELFHASH, 3), ladder(RACE_TOP_K, 4),
        ladder(RACE_SCALE, 4), layered(30, 4), penalised(True, True),
    ]  # fmt: skip


def few() -> list[Configuration]:
    """What the tests compile for compute capabilities 8.0 and 10.0."""
    return [
        attention(1, 32, 8, 2, 2048, 128, BF16), attention(32, 32, 8, 16, 2048, 128, F16),
        attention(1, 8, 4, 2, 4096, 256, BF16, window=4096, softcap=50.0),
        layer(1, 2, 4096, 32, 8, 14336, 128, BF16), linear(2, 32000, 4096, F16),
        *[packed(2, 14336, 4096, BF16, form, gated=form is not INT8) for form in FORMATS.values()],
        topk(2, 128256, BF16), evaluator(2, 128, 3, 1, 0, 2, extra=33), decision(2, 128, 3, 1, 0, 2, classes=11),
        ladder(GREEN, 1), commit(32, 2, 8, 128, BF16, 2), layered(33, 4), penalised(True, True),
    ]  # fmt: skip


def shipped() -> Iterator[Configuration]:
    """Every configuration that ships."""
    for dtype in (BF16, F16, F32):
        for dim in (64, 80, 96, 128, 256):
            for group, candidates in ((1, 1), (1, 8), (4, 1), (4, 8), (8, 2), (8, 32)):
                capped, sunk = {"softcap": 50.0, "window": 4096}, {"sinks": True, "window": 128}
                for options in ({}, {"window": 4096}, capped, sunk):
                    yield attention(1, 8 * group, 8, candidates, 8192, dim, dtype, **options)
                yield attention(64, 8 * group, 8, candidates, 8192, dim, dtype)
                yield attention(4, 8 * group, 8, 1, 8192, dim, dtype, packed=candidates)
    for dtype in (BF16, F16, F32):
        sizes = 500, 32000, 49152, 128256, 151936, 262144
        yield from (topk(2, size, dtype, select=select) for size in sizes for select in (False, True))
    for hidden in (16, 64, 128, 256, 512):
        for positions in (1, 2, 3, 4):
            for transform in range(3):
                for extra in (0, 11 * positions):
                    shape = 2, hidden, positions, transform, transform, (2, 10, 100)[transform]
                    yield evaluator(*shape, extra)
                    yield decision(*shape, extra // positions)
    for dtype in (BF16, F16, F32):
        yield from (commit(32, 2, 8, dim, dtype, n) for dim in (64, 80, 96, 128, 256) for n in range(4))
    for form in FORMATS.values():
        for dtype in (BF16, F16, F32):
            yield from (packed(rows, 4096, 1536, dtype, form, gated) for rows in (1, 64) for gated in (False, True))
    yield from trials(9)
    yield from (prf(width, False) for width in (0, 1, 2, 3, 4, 5, 8))
    yield from (prf(width, True) for width in (1, 2, 3, 4))
    yield from (ladder(scheme, width) for scheme in (GREEN, RACE_TOP_K, RACE_SCALE) for width in (1, 4, 8))
    yield from (ladder(SELFHASH, width) for width in (1, 3))
    yield from (layered(layers, width) for layers in (1, 30, 33) for width in (1, 4))
    for biased in (False, True):
        yield from (penalised(biased, repeats, size) for repeats in (False, True) for size in (500, 128256))


def complaints(report: Report, registers: int | None = None) -> list[str]:
    """What a compiled kernel does wrong; empty if it passes the gate. registers: at most; None: REGISTERS."""
    found = []
    if report.stack or report.local:
        found.append(f"{report.stack} bytes of stack and {report.local} of local memory, expected none (spills)")
    bound = REGISTERS.get(report.kernel, SMALL) if registers is None else registers
    if report.registers > bound:
        found.append(f"{report.registers} registers, expected at most {bound}")
    if report.kernel in PIPELINED and not report.async_copies:
        found.append("no asynchronous copy: loads of the prefix or of weights are not pipelined")
    if report.repeated > 1:
        found.append(f"{report.repeated:g} times the multiply-adds of its tile: warps repeat work")
    if report.instructions > INSTRUCTIONS.get(report.numbers, 0.0):
        found.append(f"{report.instructions:.2f} instructions a weight of {report.numbers}")
    if report.kernel in ROUNDED_TWICE and report.fused_multiply_adds:
        found.append("a fused multiply-add: the rule must round twice")
    return found
