"""Compiled top-K, attention and the small ops against their references. Other instruction sets: the gate `isa`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from pairwise import pairwise

from caw import ops
from caw.capacity import evaluate_capacity_ref
from caw.ladder import select_candidate_ref
from caw.op_indices import TRANSFORMS
from caw.testing import assert_close, tolerance
from caw.triton_kernels.commit_kv_ref import commit_kv_ref
from caw.triton_kernels.evaluator_step_ref import evaluator_step_ref
from caw.triton_kernels.sibling_attention_ref import sibling_attention_ref
from caw.triton_kernels.topk_softmax_ref import topk_softmax_ref

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def same_topk(logits: torch.Tensor, k: int, rows: torch.Tensor | None = None) -> None:
    got, expected = ops.topk_softmax(logits, k, rows), topk_softmax_ref(logits, k, rows)
    assert torch.equal(got[1], expected[1])
    assert torch.equal(got[0].nan_to_num(nan=1.5), expected[0].nan_to_num(nan=1.5))
    assert_close(got[2], expected[2], "softmax")
    assert_close(got[3], expected[3], "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", [1, 2, 15, 16, 17, 99, 100, 101, 1009, 12_801, 49_152])
def test_topk(dtype: torch.dtype, vocab_size: int) -> None:
    logits = (torch.randn(4, vocab_size) * 4).to(dtype)
    logits[1] = logits[1].float().round().to(dtype)  # ties everywhere
    logits[2] = 0  # nothing but ties
    logits[3] = logits[3].sort().values  # every later token beats all before
    for k in (1, 7, 100):
        same_topk(logits, k)


@pytest.mark.parametrize("dtype", DTYPES)
def test_topk_of_masked_rows(dtype: torch.dtype) -> None:
    logits = torch.randn(5, 3001).to(dtype)
    logits[0, 50:] = -torch.inf  # fewer than K are left
    logits[1] = -torch.inf
    logits[2, ::2] = -torch.inf
    logits[3, :-1] = -torch.inf
    logits[4, 5] = torch.inf
    got, expected = ops.topk_softmax(logits, 100), topk_softmax_ref(logits, 100)
    for a, b in zip(got[:2], expected[:2], strict=True):
        assert torch.equal(a, b)
    assert_close(got[2][:4], expected[2][:4], "softmax")
    assert_close(got[3], expected[3], "float32")


def test_topk_orders_nan_first_and_zeros_by_id() -> None:
    logits = torch.randn(3, 500)
    logits[0, [3, 77]] = torch.nan
    logits[1, 7] = -torch.tensor(torch.nan)
    logits[2] = torch.where(torch.rand(500) < 0.5, -0.0, 0.0)
    same_topk(logits, 100)


def test_topk_of_chosen_rows_and_any_strides() -> None:
    logits = torch.randn(6, 2000)
    same_topk(logits, 50, torch.tensor([5, 0, 5]))
    same_topk(logits, 50, torch.empty(0, dtype=torch.int64))
    same_topk(logits.t().contiguous().t(), 50)
    same_topk(logits[::2, ::3], 50)
    same_topk(logits.bfloat16()[:, 1::2], 50)
    same_topk(logits[:1].expand(3, -1), 50)
    same_topk(logits[:0], 50)
    with pytest.raises(RuntimeError, match="rows must be below 6, got 6"):
        ops.topk_softmax(logits, 5, torch.tensor([6]))
    with pytest.raises(RuntimeError, match="logits must be float32, bfloat16 or float16"):
        ops.topk_softmax(logits.double(), 5)
    with pytest.raises(RuntimeError, match="k must be at least 1, got 0"):
        ops.topk_softmax(logits, 0)


SHAPES = [
    (1, 9, 3, 2, 64, 300),
    (2, 4, 4, 1, 80, 70),
    (3, 6, 2, 8, 33, 600),
    (2, 2, 1, 3, 128, 1),
    (1, 2, 2, 2, 5, 1100),
]
EXTRAS: dict[str, dict[str, Any]] = {"plain": {}, "window": {"window": 7}, "softcap": {"softcap": 5.0}, "sinks": {}}


def attention_case(shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    """Arguments of sibling_attention, strided as decoding makes them; NaN beyond each row's length."""
    batch, heads, kv_heads, candidates, dim, size = shape
    store = torch.randn(2, batch, kv_heads, size, dim).to(dtype)
    lengths = torch.randint(0, size + 1, (batch,))
    lengths[0] = size
    for row, length in enumerate(lengths.tolist()):
        store[:, row, :, length:] = torch.nan
    own = [torch.randn(batch, candidates, kv_heads, dim).to(dtype).transpose(1, 2) for _ in range(2)]
    q = torch.randn(batch, candidates, heads, dim).to(dtype).transpose(1, 2)
    cache = {"k_cache": store[0], "v_cache": store[1], "k_own": own[0], "v_own": own[1]}
    return {"q": q, **cache, "lengths": lengths, "scale": dim**-0.5}


@pytest.mark.parametrize("shape, extra, dtype", pairwise(SHAPES, EXTRAS, DTYPES))
def test_sibling_attention(shape: tuple[int, ...], extra: str, dtype: torch.dtype) -> None:
    case = attention_case(shape, dtype)
    options = dict(EXTRAS[extra])
    if extra == "sinks":
        options["sinks"] = torch.randn(shape[1])
    got, expected = ops.sibling_attention(**case, **options), sibling_attention_ref(**case, **options)
    assert got.dtype == dtype and got.shape == expected.shape
    if dtype == torch.float32:  # against float64: a float32 reference is further off than the kernel is
        doubled = {name: x.double() if x.dtype == dtype else x for name, x in case.items() if torch.is_tensor(x)}
        exact = sibling_attention_ref(**{**case, **doubled}, **options)
        assert_close(got, exact.float(), "float32")
    else:  # both round one float32 result: a different rounding is one unit in the last place
        wide = expected.float()
        unit = torch.finfo(dtype).eps * wide.abs() + tolerance("float32").peak * wide.square().mean().sqrt()
        assert bool(((got.float() - wide).abs() <= unit).all())
        assert int((got != expected).sum()) <= 2 + 0.02 * got.numel()


@pytest.mark.parametrize("dim", [1, 3, 4, 8, 12, 20])
def test_attention_reads_nothing_that_the_call_before_left(dim: int) -> None:
    """Narrow heads are widened into memory that is used again; with short vectors its end kept NaN of wider ones."""
    wide = torch.full((1, 1, 70, 32), torch.nan, dtype=torch.bfloat16)
    ops.sibling_attention(*[wide[:, :, :1]] + [wide] * 2 + [wide[:, :, :1]] * 2, torch.tensor([70]), 1.0)
    q, own = torch.randn(2, 1, 1, 3, dim).bfloat16().unbind()
    cache = torch.randn(2, 1, 1, 70, dim).bfloat16()
    arguments = q, cache[0], cache[1], own, own, torch.tensor([70]), dim**-0.5
    assert_close(ops.sibling_attention(*arguments), sibling_attention_ref(*arguments), "attention/bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("extra", EXTRAS)
def test_packed_attention_is_the_rectangle_of_those_rows(extra: str, dtype: torch.dtype) -> None:
    case = attention_case((4, 6, 2, 3, 10, 700), dtype)
    options = {**EXTRAS[extra], **({"sinks": torch.randn(6)} if extra == "sinks" else {})}
    rows, places = torch.tensor([0, 1, 1, 1, 3, 3]), torch.tensor([0, 0, 1, 2, 0, 1])
    own = {k: case[k].transpose(1, 2)[rows, places][:, :, None] for k in ("q", "k_own", "v_own")}
    got = ops.sibling_attention_packed(**{**case, **own}, rows=rows, **options)
    whole = ops.sibling_attention(**case, **options).transpose(1, 2)
    assert torch.equal(got[1:4, :, 0], whole[1]), "as many as the rectangle carries: the same arithmetic"
    expected = whole[rows, places][:, :, None]
    unit = torch.finfo(dtype).eps if dtype != torch.float32 else 0.0
    off = (got.float() - expected.float()).abs() - unit * expected.float().abs()
    assert got.shape == expected.shape
    assert bool((off <= tolerance("float32").peak * expected.float().square().mean().sqrt() + 1e-30).all())


@pytest.mark.serial
def test_attention_does_not_depend_on_batch_or_threads() -> None:
    case = attention_case((3, 6, 2, 2, 64, 1500), torch.float32)
    whole = ops.sibling_attention(**case)
    for row in range(3):
        alone = {k: v[row : row + 1] if isinstance(v, torch.Tensor) else v for k, v in case.items()}
        assert torch.equal(ops.sibling_attention(**alone)[0], whole[row])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(ops.sibling_attention(**case), whole)
    finally:
        torch.set_num_threads(before)


def test_attention_refuses_what_it_cannot_read() -> None:
    case = attention_case((1, 4, 2, 2, 8, 10), torch.float32)
    for name, bad, message in (
        ("lengths", torch.tensor([11]), r"lengths must be in \[0, S\], got 11"),
        ("k_own", case["k_own"][:, :, :1], r"k_own must have shape \[1, 2, 2, 8\], got \[1, 2, 1, 8\]"),
        ("v_cache", case["v_cache"].bfloat16(), "must have one dtype"),
        ("q", case["q"][:, :3], "H must be a multiple of HK, got 3 and 2"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ops.sibling_attention(**{**case, name: bad})


def test_evaluate_capacity() -> None:
    for batch, size, hidden in ((0, 300, 128), (1, 300, 128), (5, 37, 19), (33, 1, 1)):
        shapes = [(size,), (size,), (hidden, size), (hidden,), (hidden, hidden), (hidden,), (1, hidden), (1,)]
        weights = [torch.randn(s) * 0.2 for s in shapes]
        weights[1] = weights[1].abs() + 0.5
        features = torch.randn(batch, size)
        assert_close(ops.evaluate_capacity(features, weights), evaluate_capacity_ref(features, weights), "float32")
        assert bool(ops.evaluate_capacity(torch.full_like(features, torch.nan), weights).isnan().all())
    with pytest.raises(RuntimeError, match=r"W3 must have shape \[1, 1\], got \[2, 1\]"):
        ops.evaluate_capacity(features, [*weights[:6], torch.zeros(2, 1), weights[7]])


def step_case(batch: int, positions: int, k: int, hidden: int, width: int, extra: int = 0) -> list[Any]:
    """Tensors of evaluator_step: sorted probabilities with empty tails, a network that spreads its capacities."""
    probs = [(torch.randn(batch, k + 3) * 3).softmax(1).sort(descending=True).values for _ in range(positions)]
    probs[-1][:, k // 2 :] = 0
    size = positions * k + extra
    shapes = [(size,), (size,), (hidden, size), (hidden,), (hidden, hidden), (hidden,), (1, hidden), (1,)]
    weights = [torch.randn(s) / max(1, s[-1]) ** 0.5 for s in shapes]
    weights[1] = weights[1].abs() + 0.5
    ladder = [torch.randint(0, 9, (batch, width)), torch.randint(-3, 4, (batch, width)).float() / 2]
    counts, pending = torch.randint(1, width + 1, (batch,)), torch.randint(-2, 3, (batch,))
    return [probs, weights, *ladder, counts, pending, torch.rand(batch), torch.rand(batch), torch.rand(batch) * 2]


@pytest.mark.parametrize("transform", range(len(TRANSFORMS)), ids=TRANSFORMS)
@pytest.mark.parametrize("rule", [0, 1, 2])
def test_evaluator_step(rule: int, transform: int) -> None:
    sizes = ((0, 3, 100, 128, 2, 0), (1, 3, 100, 128, 2, 9), (33, 4, 37, 19, 7, 1), (5, 1, 1, 1, 1, 0))
    for batch, positions, k, hidden, width, added in sizes:
        case = step_case(batch, positions, k, hidden, width, added)
        extra = torch.randn(batch, added) if added else None
        for theta, beta in ((0.7, 1.5), (0.0, 1.0), (1.0, 0.0)):
            rest = (k, transform, theta, beta, rule, 4.0, extra)
            got, expected = ops.evaluator_step(*case, *rest), evaluator_step_ref(*case, *rest)
            assert_close(got[0], expected[0], "evaluator")
            assert_close(got[1], expected[1], "evaluator")
            # the choice is that of the strength it was made with, which may differ in its last digit
            assert torch.equal(got[2], select_candidate_ref(*case[2:5], got[1], rule, 4.0))


def test_evaluator_step_of_nan_marks_nothing_and_refuses_what_does_not_fit() -> None:
    case = step_case(3, 2, 5, 4, 3)
    case[0][1][1] = torch.nan
    case[5].fill_(-1)
    case[8].fill_(1.0)
    capacity, strength, choice = ops.evaluator_step(*case, 5, 1, 0.7, 9.0, 2, 1.0)
    assert capacity.isnan().tolist() == strength.isnan().tolist() == [False, True, False]
    assert choice[1] == 0
    for index, bad, message in (
        (0, [], "probs must hold one tensor a window position, got none"),
        (0, [case[0][0], case[0][1][:, :4]], r"probs must have shape \[3, >= k\] with k >= 1, got \[3, 4\] for k 5"),
        (1, case[1][:7], "weights must be mean, scale, W1, b1, W2, b2, W3, b3, got 7 tensors"),
        (5, case[5][:2], r"pending must have shape \[3\], got \[2\]"),
        (8, case[8][:2], r"factor must have shape \[3\], got \[2\]"),
        (8, case[8].double(), "factor must be float32"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ops.evaluator_step(*case[:index], bad, *case[index + 1 :], 5, 1, 0.7, 9.0, 2, 1.0)
    with pytest.raises(RuntimeError, match=r"mean must have shape \[12\], got \[10\]"):
        ops.evaluator_step(*case, 5, 1, 0.7, 9.0, 2, 1.0, torch.zeros(3, 2))
    with pytest.raises(RuntimeError, match=r"extra must have shape \[3, X\], got \[2, 2\]"):
        ops.evaluator_step(*case, 5, 1, 0.7, 9.0, 2, 1.0, torch.zeros(2, 2))


@pytest.mark.parametrize("rule", [0, 1, 2])
def test_select_candidate(rule: int) -> None:
    for width in (1, 2, 7):
        candidates = torch.randint(0, 9, (500, width))
        needs = torch.randint(-3, 4, (500, width)).float() / 2
        counts = torch.randint(1, width + 1, (500,))
        strength = torch.randint(0, 5, (500,)).float() / 2
        args = (candidates, needs, counts, strength, rule, 1.5)
        assert torch.equal(ops.select_candidate(*args), select_candidate_ref(*args))


@pytest.mark.parametrize("dtype", DTYPES)
def test_commit_kv(dtype: torch.dtype) -> None:
    store = torch.randn(3, 2, 4, 2, 9, 5).to(dtype)
    scratch = torch.randn(3, 2, 4, 3, 2, 5).to(dtype)
    choice, active = torch.tensor([2, 0, 1, 0]), torch.tensor([True, True, False, True])
    mine, theirs = (store.clone(), torch.tensor([0, 8, 9, 3])), (store.clone(), torch.tensor([0, 8, 9, 3]))
    ops.commit_kv(mine[0], scratch, choice, mine[1], active)
    commit_kv_ref(theirs[0], scratch, choice, theirs[1], active)
    assert torch.equal(mine[1], theirs[1])
    assert torch.equal(mine[0][:, :, 2], store[:, :, 2])  # at rest
    for row in (0, 1, 3):
        length = int(mine[1][row])
        assert torch.equal(mine[0][:, :, row, :, :length], theirs[0][:, :, row, :, :length])
    before = mine[0].clone()
    with pytest.raises(RuntimeError, match="lengths of active rows must be below S, got 9"):
        ops.commit_kv(mine[0], scratch, choice, mine[1].fill_(9), active)
    assert torch.equal(mine[0].float().nan_to_num(), before.float().nan_to_num())


@pytest.mark.serial
def test_eight_threads_get_the_same_results() -> None:
    logits = torch.randn(4, 20_000)
    case = attention_case((2, 6, 2, 2, 64, 700), torch.bfloat16)
    tokens, seeds = torch.randint(0, 9999, (5000,)), torch.arange(3)
    nucleus = torch.tensor([0.05, 0.5, -1.0, 0.1]), torch.tensor([0.0, 0.0, 0.1, 0.1])

    def work(_: int) -> list[torch.Tensor]:
        return [
            *ops.topk_softmax(logits, 100),
            ops.sibling_attention(**case),
            ops.score_tokens(tokens, 4, torch.full_like(tokens, 7), 2, 0)[0],
            ops.sampling_noise(tokens[:6].view(2, 3), tokens[:2], 3001),
            ops.warp_logits(logits, seeds.new_ones(4).bool(), logits[0, :4].abs() + 1, tokens[:4], *nucleus),
            *ops.draw_scores(logits, tokens[:4] > 9, tokens[:12].view(4, 3), tokens[:4], 100, 4.0),
            ops.permutation_green(seeds, 3001, 750),
        ]

    expected = work(0)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(work, range(48)):
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
