"""The reference of sibling attention against torch's own attention with an explicit mask, in float64."""

import pytest
import torch
from pairwise import pairwise
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


@pytest.mark.parametrize(
    "group, kv_heads, candidates, dim", pairwise([1, 2, 7], [1, 2, 3], [1, 2, 5, 32], [1, 7, 64, 127])
)
def test_heads_and_candidates(group: int, kv_heads: int, candidates: int, dim: int) -> None:
    arguments = inputs(3, group * kv_heads, kv_heads, candidates, dim)
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_computed_in_float32(dtype: torch.dtype) -> None:
    arguments = [x.to(dtype) if x.is_floating_point() else x for x in inputs(2, 4, 2, 3, 8)]
    actual = sibling_attention_ref(*arguments, 0.5)
    assert actual.dtype == dtype
    exact = sibling_attention_ref(*(x.float() if x.is_floating_point() else x for x in arguments), 0.5)
    assert torch.equal(actual, exact.to(dtype))
