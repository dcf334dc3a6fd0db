"""The reference of sibling attention against torch's own attention with an explicit mask, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from caw.testing import assert_close
from caw.triton_kernels.sibling_attention_ref import sibling_attention_ref

SIZE = 23  # prime


def inputs(
    batch: int, heads: int, kv_heads: int, candidates: int, dim: int, lengths: list[int] | None = None
) -> list[torch.Tensor]:
    q = torch.randn(batch, heads, candidates, dim)
    cache = [torch.randn(batch, kv_heads, SIZE, dim) for _ in range(2)]
    own = [torch.randn(batch, kv_heads, candidates, dim) for _ in range(2)]
    return [q, *cache, *own, torch.tensor(lengths or [SIZE, 0, 11, 1][:batch])]


def expected(arguments: list[torch.Tensor], scale: float, window: int | None = None) -> torch.Tensor:
    """One softmax over [cache; all candidates] with a mask: the prefix in the window, and the diagonal."""
    q, k_cache, v_cache, k_own, v_own, lengths = arguments
    group, candidates = q.shape[1] // k_cache.shape[1], q.shape[2]
    keys, values = (
        torch.cat([a, b], dim=2).double().nan_to_num(0).repeat_interleave(group, dim=1)
        for a, b in ((k_cache, k_own), (v_cache, v_own))
    )
    masks = []
    for length in lengths.tolist():
        first = 0 if window is None else max(0, length - window + 1)
        prefix = torch.zeros(candidates, k_cache.shape[2], dtype=torch.bool)
        prefix[:, first:length] = True
        masks.append(torch.cat([prefix, torch.eye(candidates, dtype=torch.bool)], dim=1))
    return scaled_dot_product_attention(q.double(), keys, values, torch.stack(masks)[:, None], scale=scale)


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8])
def test_grouped_heads(group: int, kv_heads: int) -> None:
    arguments = inputs(3, group * kv_heads, kv_heads, 3, 8)
    assert_close(sibling_attention_ref(*arguments, 0.3), expected(arguments, 0.3), "attention/float32")


@pytest.mark.parametrize("dim", [1, 2, 7, 13, 64, 127])
@pytest.mark.parametrize("candidates", [1, 2, 5, 32])
def test_head_sizes_and_candidates(dim: int, candidates: int) -> None:
    arguments = inputs(2, 4, 2, candidates, dim)
    scale = dim**-0.5
    assert_close(sibling_attention_ref(*arguments, scale), expected(arguments, scale), "attention/float32")


@pytest.mark.parametrize("window", [1, 2, 5, SIZE, SIZE + 1, 100])
def test_windows(window: int) -> None:
    """A window of 1 sees itself only; one as long as the prefix hides its first token."""
    arguments = inputs(4, 4, 2, 3, 8, [SIZE, 0, 5, 1])
    actual = sibling_attention_ref(*arguments, 0.5, window)
    assert_close(actual, expected(arguments, 0.5, window), "attention/float32")
    if window == 1:
        assert torch.equal(actual, arguments[4].repeat_interleave(2, dim=1))


def test_without_a_prefix_each_candidate_sees_itself() -> None:
    arguments = inputs(2, 6, 3, 4, 8, [0, 0])
    assert torch.equal(sibling_attention_ref(*arguments, 1.0), arguments[4].repeat_interleave(2, dim=1))
    empty = [arguments[0], *(x[:, :, :0] for x in arguments[1:3]), *arguments[3:]]
    assert torch.equal(sibling_attention_ref(*empty, 1.0), arguments[4].repeat_interleave(2, dim=1))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_what_lies_beyond_the_lengths_is_not_read(poison: float) -> None:
    arguments = inputs(4, 4, 2, 3, 8, [SIZE, 0, 11, 1])
    clean = sibling_attention_ref(*arguments, 0.5)
    for cache in arguments[1:3]:
        for row, length in zip(cache, arguments[5].tolist(), strict=True):
            row[:, length:] = poison
    assert torch.equal(sibling_attention_ref(*arguments, 0.5), clean)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_lies_before_the_window_is_not_read(poison: float) -> None:
    arguments = inputs(2, 4, 2, 3, 8, [SIZE, 11])
    clean = sibling_attention_ref(*arguments, 0.5, 4)
    for cache in arguments[1:3]:
        cache[0, :, : SIZE - 3], cache[1, :, : 11 - 3] = poison, poison
    assert torch.equal(sibling_attention_ref(*arguments, 0.5, 4), clean)


def by_hand(arguments: list[torch.Tensor], scale: float, softcap: float | None, sinks: torch.Tensor | None) -> Any:
    """Row by row in float64: scores, cap, sink, softmax."""
    q, k_cache, v_cache, k_own, v_own, lengths = (x.double() if x.is_floating_point() else x for x in arguments)
    group, out = q.shape[1] // k_cache.shape[1], torch.empty_like(q)
    for b, h, c in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        kv, length = h // group, int(lengths[b])
        keys = torch.cat([k_cache[b, kv, :length], k_own[b, kv, c : c + 1]])
        values = torch.cat([v_cache[b, kv, :length], v_own[b, kv, c : c + 1]])
        scores = keys @ q[b, h, c] * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            scores = torch.cat([scores, sinks[h].double()[None]])
        out[b, h, c] = scores.softmax(0)[: length + 1] @ values
    return out


@pytest.mark.parametrize("softcap", [None, 0.5, 30.0])
@pytest.mark.parametrize("sinks", [False, True])
def test_caps_and_sinks(softcap: float | None, sinks: bool) -> None:
    arguments = inputs(3, 6, 2, 3, 5, [SIZE, 0, 11])
    sink = torch.tensor([-50.0, -1.0, 0.0, 1.0, 3.0, 50.0]) if sinks else None
    actual = sibling_attention_ref(*arguments, 0.7, None, softcap, sink)
    assert_close(actual, by_hand(arguments, 0.7, softcap, sink), "attention/float32")


def test_layout_in_memory_does_not_matter() -> None:
    """As decoding hands it over: transposed queries, the cache a slice of a larger store."""
    arguments = inputs(2, 4, 2, 3, 8)
    q, k, v, k_own, v_own, lengths = arguments
    store = torch.randn(2, 5, 2, SIZE + 9, 8)
    store[0, :2, :, :SIZE], store[1, :2, :, :SIZE] = k, v
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k_own, v_own)]
    views = [strided[0], store[0, :2, :, :SIZE], store[1, :2, :, :SIZE], strided[1], strided[2], lengths]
    assert not any(x.is_contiguous() for x in views[:5])
    assert_close(sibling_attention_ref(*views, 0.5), sibling_attention_ref(*arguments, 0.5), "attention/float32")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_computed_in_float32(dtype: torch.dtype) -> None:
    arguments = [x.to(dtype) if x.is_floating_point() else x for x in inputs(2, 4, 2, 3, 8)]
    actual = sibling_attention_ref(*arguments, 0.5)
    assert actual.dtype == dtype
    exact = sibling_attention_ref(*(x.float() if x.is_floating_point() else x for x in arguments), 0.5)
    assert torch.equal(actual, exact.to(dtype))


def test_siblings_are_blind_to_each_other() -> None:
    arguments = inputs(2, 4, 2, 4, 8)
    whole = sibling_attention_ref(*arguments, 0.5)
    for c in range(4):
        alone = [
            arguments[0][:, :, c : c + 1],
            *arguments[1:3],
            *(x[:, :, c : c + 1] for x in arguments[3:5]),
            arguments[5],
        ]
        assert_close(whole[:, :, c : c + 1], sibling_attention_ref(*alone, 0.5), "attention/float32")
