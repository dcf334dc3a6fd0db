"""Every op: schema, mutation, aliasing and fake agree with what it does; all are in one list."""

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from caw import _ext, ops, prf
from caw.models.packed import pack_weight
from caw.triton_kernels.packed_weights_ref import INT4, INT8

ROOT = Path(__file__).resolve().parents[1]
B, C, H, HK, D, S, K, V = 3, 2, 4, 2, 5, 7, 11, 37
CONTEXT = torch.tensor([[1, 2], [-1, 5], [-1, -1]])
KEY = 42
KEYS = torch.tensor([KEY, -1, 2**40])


def attention_inputs() -> list[Any]:
    def own() -> torch.Tensor:
        return torch.randn(B, C, HK, D).transpose(1, 2)

    q, store = torch.randn(B, C, H, D).transpose(1, 2), torch.randn(2, B, HK, S + 2, D)[:, :, :, :S]
    return [q, store[0], store[1], own(), own(), torch.tensor([S, 0, 3]), 0.4]


def packed_inputs() -> list[Any]:
    q, k_cache, v_cache, k_own, v_own, lengths, _ = attention_inputs()
    assert C > 1
    rows, own = torch.tensor([0, 0, 2]), ([0, 0, 2], slice(None), [0, 1, 1])
    return [q[own][:, :, None], k_cache, v_cache, k_own[own][:, :, None], v_own[own][:, :, None], lengths, rows]


def prefix_inputs() -> list[Any]:
    *given, _, rows = packed_inputs()
    return [*given, torch.tensor([S, 0, 3]), rows]


def commit_inputs() -> list[Any]:
    store, scratch = torch.randn(2, 2, B, HK, S, D), torch.randn(2, 2, B, C, HK, D)
    return [store, scratch, torch.tensor([1, 0, 1]), torch.tensor([2, 0, 6]), torch.tensor([True, False, True])]


def count_inputs(level: torch.Tensor | None) -> list[Any]:
    seen, distinct, score = torch.arange(B * 10).view(B, 5, 2), torch.tensor([0, 4, 2]), torch.rand(B).double()
    state = [seen, distinct, torch.randint(0, 9, (B, 16)), score, torch.rand(B, 2).double()]
    first = torch.tensor([True, True, False])
    return [*state, torch.randint(0, 9, (B, 2)), first, level, torch.rand(B).double(), 0.25, 0.1875, 0.09]


def layer_inputs(head_norms: bool, packed: bool = False) -> list[Any]:
    _, k_cache, v_cache, *_, lengths, scale = attention_inputs()
    dim, width, wide = D - 1, 6, 7  # rotation needs an even head dim
    shapes = [(H * dim, width), (HK * dim, width), (HK * dim, width), (width, H * dim)]
    norms = [torch.rand(n) for n in (width, width, *((dim, dim) if head_norms else ()))]
    mlp = [torch.randn(wide, width), torch.randn(wide, width), torch.randn(width, wide)]
    given = [norms[0], *(torch.randn(shape) for shape in shapes), norms[1], *mlp, *norms[2:]]
    rows = (B, 1) if packed else (B, C)
    hidden, rotary = torch.randn(*rows, width), [torch.randn(*rows, dim) for _ in range(2)]
    scratch = [torch.randn(B, C + 1, HK, dim) for _ in range(2)]
    biases = [torch.randn(H * dim), *[None] * 6]
    return [hidden, *rotary, k_cache[..., :dim], v_cache[..., :dim], *scratch, 1, lengths, given, biases, 1e-5, scale]


def after_norms(given: list[Any]) -> list[Any]:
    width = given[0].shape[2]
    return [x if i != 9 else [*x, torch.rand(width), torch.rand(width)] for i, x in enumerate(given)]


def gpu_weights() -> list[torch.Tensor]:
    """Without float8, which torch's check cannot compare."""
    return [pack_weight(torch.randn(V, 64), form) for form in (INT8, INT4)]


def packed_weights() -> torch.Tensor:
    return ops.pack_blocks(torch.randint(0, 60, (V, 2 * 22), dtype=torch.uint8), 6)


def stack_inputs(places: bool = False) -> list[Any]:
    hidden, cos, sin, *_, given, biases, eps, scale = layer_inputs(True)
    rows, positions = torch.tensor([2, 2, 0, 0, 1, 1]), torch.tensor([0, 1, 3, 4, 2, 3])
    store, scratch = torch.randn(2, 2, B, HK, S, D - 1), torch.randn(2, 2, B, C + 1, HK, D - 1)
    lengths = positions if places else torch.tensor([S, 0, 3])
    step = [hidden, cos, sin, store, scratch, 1, lengths, given * 2, biases * 2, eps, scale, [0, 3]]
    return [*step, rows] if places else step


def record_inputs() -> list[torch.Tensor]:
    return list(ops.topk_softmax(torch.randn(B, V), K))


def step_inputs() -> list[Any]:
    records = [x for _ in range(2) for x in record_inputs()]
    return [*commit_inputs(), torch.randn(B, V), torch.randn(B, C, V), records, record_inputs()]


def weights(inputs: int, hidden: int = 6) -> list[torch.Tensor]:
    shapes = [(inputs,), (inputs,), (hidden, inputs), (hidden,), (hidden, hidden), (hidden,), (1, hidden), (1,)]
    return [torch.rand(shape) + 0.1 for shape in shapes]


def ladder_inputs() -> list[torch.Tensor]:
    candidates = torch.tensor([[4, 7, 1], [2, 2, 2], [9, 3, 9]])
    needs = torch.tensor([[1.0, 2.0, 5.0], [1.0, torch.inf, torch.inf], [1.0, 3.0, torch.inf]])
    return [candidates, needs, torch.tensor([3, 1, 2])]


def evaluator_step_inputs() -> list[Any]:
    probs = [torch.rand(B, K) for _ in range(3)]
    pending = [torch.tensor([-1, 2, -1]), torch.rand(B), torch.rand(B), torch.rand(B)]
    return [probs, weights(3 * 9), *ladder_inputs(), *pending, 9, 1, 0.6, 1.5, 1, 10.0]


def enumerate_inputs(scheme: int, full: float, strength: float) -> list[Any]:
    scores = torch.randn(B, V)
    values, ids, _, _ = ops.topk_softmax(scores, K)
    return [values, ids, values, scores, CONTEXT, KEYS, scheme, prf.green_threshold(0.25), full, strength]


def ladder_step_inputs(scheme: int, full: float, slots: int) -> list[Any]:
    record = enumerate_inputs(scheme, full, 1.0)
    text = [torch.randint(0, 3, (B, 3 + 5)), torch.arange(B), KEYS, torch.tensor([-1, 4, -1])]
    ends = None if scheme == 1 else torch.randint(0, 9, (B, 2))
    return [*record[:4], *text, ends, 2, scheme, prf.green_threshold(0.25), full, 1.0, scheme > 1, slots]


def decision_inputs(classes: int, trace: bool) -> list[Any]:
    """With an evaluator: without one the capacity is NaN, which no comparison takes for equal."""
    window = [torch.rand(B, K) for _ in range(2)], [torch.randint(0, V, (B, K)) for _ in range(2)]
    table = torch.randint(0, classes, (V,)).to(torch.uint8) if classes else None
    waiting = [torch.tensor([-1, 2, -1]), torch.rand(B), torch.rand(B)], torch.rand(B)
    text = [torch.zeros(B, 7, dtype=torch.int64), torch.arange(B), torch.full((B,), 3), torch.randint(0, 9, (B, 1))]
    ring = [torch.zeros(2, B, 6 if trace else 1, dtype=torch.int64), torch.zeros(2, B, 2) if trace else None]
    numbers = [2, 2, 9, 1, classes, 0.6, 1.5, 1, 10.0]
    return [*window, weights(2 * (9 + classes)), table, *ladder_inputs(), *waiting, None, torch.randn(B), *text,
            torch.tensor([True, True, False]), *ring, torch.tensor([1]), *numbers]  # fmt: skip


SAMPLES: dict[str, Callable[[], list[list[Any]]]] = {
    "topk_softmax": lambda: [
        [torch.randn(B, V), K],
        [torch.randn(B, V), V + 4],
        [torch.randn(B, V).bfloat16(), K, torch.tensor([2, 0, 2, 1])],
        [torch.randn(V, B).T, 1],
    ],
    "sibling_attention": lambda: [
        attention_inputs(),
        [*attention_inputs(), 3, 2.0, torch.randn(H)],
        [x.bfloat16() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in attention_inputs()],
    ],
    "sibling_attention_packed": lambda: [
        [*packed_inputs(), 0.3], [*packed_inputs(), 0.3, 3, 2.0, torch.randn(H)],
    ],
    "prefix_attention": lambda: [[*prefix_inputs(), 0.3], [*prefix_inputs(), 0.3, 3, 2.0, torch.randn(H)]],
    "commit_kv": lambda: [commit_inputs()],
    "commit_step": lambda: [step_inputs(), [*step_inputs(), torch.tensor([True, False, True])]],
    "evaluate_capacity": lambda: [[torch.randn(B, K), weights(K)], [torch.randn(0, K), weights(K)]],
    "select_candidate": lambda: [[*ladder_inputs(), torch.tensor([0.0, 1.0, 0.2]), r, 10.0] for r in (0, 1, 2)],
    "evaluator_step": lambda: [
        evaluator_step_inputs(),
        [x if i != 1 else weights(3 * 9 + 4) for i, x in enumerate(evaluator_step_inputs())] + [torch.rand(B, 4)],
    ],
    "race_winner": lambda: [[torch.randn(B, V), CONTEXT, KEYS], [torch.randn(V, B).T, CONTEXT, KEYS, 0.7]],
    "penalise_logits": lambda: [
        [torch.randn(B, V), torch.tensor([[1, 1, -1], [2, 3, 4], [-1, -1, -1]]), torch.tensor([True, False, True]),
         torch.tensor([[1.3, 0.5, 0.1]]).expand(B, 3), prompts, bias]
        for prompts, bias in ((torch.rand(B, V) < 0.3, torch.randn(B, V)), (torch.ones(B, 0) > 0, torch.ones(B, 0)))
    ],
    "warp_logits": lambda: [
        [torch.randn(B, V), torch.tensor([True, False, True]), torch.tensor([0.7, 1.0, 2.0]), torch.tensor([5, 0, 50]),
         torch.tensor([-1.0, 0.1, 0.4]), torch.tensor([0.0, 0.1, 0.2])],
    ],
    "warp_recorded": lambda: [[x[0], *x[0].topk(K), *x[1:]] for x in SAMPLES["warp_logits"]()],
    "draw_scores": lambda: [
        [torch.randn(V, B).T, torch.tensor([True, False, True]), CONTEXT, KEYS, K, torch.inf],
        [torch.randn(B, V), torch.tensor([True, False, True]), CONTEXT, KEYS, V + 2, torch.inf],
    ],
    "tournament": lambda: [
        [torch.randn(B, V), torch.randn(B, V), torch.tensor([0, 1, 2]), CONTEXT, torch.arange(-9, 55).to(kind), 3]
        for kind in (torch.int32, torch.int64)
    ],
    "race_ladder": lambda: [
        [*record_inputs()[:2], torch.randn(B, K).double(), full, 1.3, scale]
        for full, scale in ((5.0, False), (1.0, True))
    ],
    "enumerate_candidates": lambda: [
        enumerate_inputs(0, 4.0, 1.0), enumerate_inputs(1, 4.0, 1.0), enumerate_inputs(2, 5.0, 1.3),
        enumerate_inputs(3, 1.0, 1.3),
    ],
    "ladder_step": lambda: [ladder_step_inputs(0, 4.0, 2), ladder_step_inputs(1, 4.0, 1), ladder_step_inputs(2, 5.0, 3),
                            ladder_step_inputs(3, 1.0, 2)],
    "decision_step": lambda: [decision_inputs(4, True), decision_inputs(0, False)],
    "score_tokens": lambda: [
        [torch.arange(9), 2, torch.arange(9) % 2, scheme, prf.green_threshold(0.25)] for scheme in (0, 1, 2)
    ],
    "show_evidence": lambda: [
        [torch.arange(B * 6).view(B, 6) % 5 - 1, torch.tensor([0, 4, 2]), torch.tensor([[3, 1], [2, 2], [0, 4]]),
         torch.zeros(B, 5, columns, dtype=torch.int64), torch.tensor([0, 4, 2]), 2, KEYS, scheme, 1 << 22]
        for scheme, columns in ((0, 3), (1, 2), (2, 2), (3, 2))
    ],
    "count_evidence": lambda: [count_inputs(level) for level in (None, torch.tensor([3, 0, 15]))],
    "sampling_noise": lambda: [[CONTEXT, KEYS, V]],
    "permutation_green": lambda: [
        [torch.tensor([1, 2**40]), V, 5, wanted] for wanted in (None, torch.tensor([True, False]))
    ],
    "permutation_contains": lambda: [[torch.tensor([1, 2**40, 1]), torch.tensor([3, 36, -1]), V, 9]],
    "generator_words": lambda: [[torch.tensor([1, 2**40, 1]), torch.tensor([3, 700, 0])]],
    "decoder_layer": lambda: [
        layer_inputs(False), [*layer_inputs(True), 3],
        [*after_norms(layer_inputs(False)), 3, None, "gemma2", 2.0],
        [*layer_inputs(False, packed=True), None, torch.tensor([0, 2, 2]), "gemma", 1.5],
    ],
    "rms_norm": lambda: [[torch.randn(B, C, D), torch.randn(D), 1e-5, *offset] for offset in ([], [1.0])],
    "pack_blocks": lambda: [[torch.randint(0, 60, (V, 2 * 22), dtype=torch.uint8), 6, fast] for fast in (False, True)],
    "pack_blocks_into": lambda: [
        [torch.randint(0, 60, (V, 2 * 22), dtype=torch.uint8), 6, True, torch.zeros_like(packed_weights())]
    ],
    "unpack_rows": lambda: [[packed_weights(), torch.tensor([0, V - 1, 3]), 64]],
    "quantized_linear": lambda: [[torch.randn(2, 64), packed_weights(), V, bias] for bias in (None, torch.randn(V))],
    "decoder_stack": lambda: [
        stack_inputs(), [*stack_inputs(places=True), torch.arange(6)], [*stack_inputs(), None, None, "gemma", 1.5],
        [*stack_inputs(), None, None, "llama", None, [], 0.5],
    ],
    "packed_linear": lambda: [
        [torch.randn(2, 64), packed, bias] for packed in gpu_weights() for bias in (None, torch.randn(V))
    ],
    "unpack_weight": lambda: [[packed, 64, torch.bfloat16] for packed in gpu_weights()],
    "small_linear": lambda: [[torch.randn(2, K), torch.randn(V, K), bias] for bias in (None, torch.randn(V))],
}  # fmt: skip


def registered() -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(ops).items()
        if isinstance(value, torch._ops.OpOverload) and value.namespace == ops.NAMESPACE
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_schema_fake_and_mutation_agree_with_the_op(name: str) -> None:
    if not ops.has_kernel(name, "cpu"):
        pytest.skip(f"only the compiled extension has {name}: {ops.missing_extension()}")
    for arguments in SAMPLES[name]():
        torch.library.opcheck(registered()[name], tuple(arguments))


def test_every_op_has_a_sample() -> None:
    assert set(registered()) == set(SAMPLES)


def test_names_in_the_namespace_are_those_of_the_list() -> None:
    schemas = torch._C._jit_get_all_schemas()
    found = {s.name.split("::")[1] for s in schemas if s.name.startswith(f"{ops.NAMESPACE}::")}
    assert found == set(SAMPLES)


def test_references_are_plain_functions() -> None:
    plain, dispatched = vars(ops.references()), vars(ops.dispatched())
    assert plain.keys() == dispatched.keys()
    for name in SAMPLES.keys() & plain.keys():
        assert not isinstance(plain[name], torch._ops.OpOverload)
        assert dispatched[name] is registered()[name]


def test_a_change_of_a_schema_raises_their_number() -> None:
    """A library built before must not be loaded: raise SCHEMAS in caw/_ext.py and csrc/schemas.h; not for less."""
    names = sorted(name for name in dir(torch.ops.caw) if not name.startswith("_") and name not in ("name", "default"))
    every = "\n".join(str(getattr(torch.ops.caw, name).default._schema) for name in names)
    found = hashlib.sha256(every.encode()).hexdigest()[:16]
    assert (_ext.SCHEMAS, found) == (20, "4c6ffeb40c4e789a"), every
    assert f"caw operator schemas {_ext.SCHEMAS};" in (ROOT / "csrc" / "schemas.h").read_text()


def test_a_gpu_without_its_extension_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ext, "WHY_MISSING_CUDA", "no nvcc")
    _ext._say_what_is_missing.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ext.warn_without_cuda(torch.device("cpu"))
        with pytest.raises(RuntimeWarning, match="no nvcc; without it"):
            _ext.warn_without_cuda(torch.device("cuda"))
    with pytest.warns(RuntimeWarning, match="no nvcc") as said:
        _ext.warn_without_cuda(torch.device("cuda"))
        _ext.warn_without_cuda(torch.device("cuda"))
    assert len(said) == 1
    _ext._say_what_is_missing.cache_clear()
    monkeypatch.setattr(_ext, "WHY_MISSING_CUDA", "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ext.warn_without_cuda(torch.device("cuda"))
