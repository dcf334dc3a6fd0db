"""Compiled attention and commits against their references. Other instruction sets: the gate `isa`."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from pairwise import pairwise

from caw import ops
from caw.testing import assert_close, tolerance
from caw.triton_kernels.sibling_attention_ref import sibling_attention_ref

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


SHAPES = [
    (1, 9, 3, 2, 64, 300),
    (2, 4, 4, 1, 80, 70),
    (3, 6, 2, 8, 33, 600),
    (2, 2, 1, 3, 128, 1),
    (1, 2, 2, 2, 5, 1100),
]
EXTRAS: dict[str, dict[str, Any]] = {"plain": {}, "window": {"window": 7}, "softcap": {"softcap": 5.0}, "sinks": {}}


def attention_case(shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
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
