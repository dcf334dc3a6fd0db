"""Attention of prompts against torch's with an explicit mask, and the packages that compute it."""

import importlib.metadata
import sys
import types
from typing import Any

import pytest
import torch
from pairwise import pairwise
from torch.nn.functional import scaled_dot_product_attention

from caw.decoding.forward import prefill_attention as attention_module
from caw.decoding.forward.prefill_attention import causal_attention, check_prefill_attention
from caw.testing import assert_close


def expected(q: Any, k: Any, v: Any, scale: float, window: int | None, softcap: float | None, sinks: Any) -> Any:
    group, tokens = q.shape[1] // k.shape[1], q.shape[2]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)[None]
    hidden = (distance < 0) | (distance >= (window or tokens))
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], dim=-1)
    return scores.softmax(-1)[..., :tokens] @ v


@pytest.mark.parametrize(
    "tokens, window, softcap, sinks", pairwise([1, 2, 13, 37], [None, 1, 5, 13, 40], [None, 1.5], [False, True])
)
def test_prefill_attention(
    tokens: int, window: int | None, softcap: float | None, sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_module, "EAGER_BLOCK", 8)
    q, (k, v) = torch.randn(2, 6, tokens, 7), torch.randn(2, 2, 3, tokens, 7)
    sink = torch.randn(6) if sinks else None
    actual, whole = causal_attention(q, k, v, 0.6, window, softcap, sink), expected(q, k, v, 0.6, window, softcap, sink)
    assert_close(actual, whole, "attention/float32")
    assert_close(causal_attention(q, k, v, 0.6, window, softcap, sink, "eager"), whole, "attention/float32")
    for last in (1, tokens // 2, tokens - 1):  # the rest is in the cache already
        if last:
            part = causal_attention(q[:, :, -last:], k, v, 0.6, window, softcap, sink)
            assert_close(part, whole[:, :, -last:], "attention/float32")
    if softcap is None and not sinks:
        distance = torch.arange(tokens)[:, None] - torch.arange(tokens)[None]
        mask = (distance >= 0) & (distance < (window or tokens))
        torch_own = scaled_dot_product_attention(q, k, v, mask, scale=0.6, enable_gqa=True)
        assert_close(actual, torch_own, "attention/float32")


def test_unknown_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="one of sdpa, flash_attention_2, eager, got 'flash'"):
        check_prefill_attention("flash", torch.device("cpu"), torch.float32)


def test_flash_attention_is_found_by_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the name is not enough: the kernels' own checkout may lie in the path."""
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    with pytest.raises(ImportError, match="needs the flash-attn package, which is not installed; install it with"):
        check_prefill_attention("flash_attention_2", torch.device("cuda"), torch.float16)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: name)
    check_prefill_attention("flash_attention_2", torch.device("cuda"), torch.float16)
    for device, dtype in (("cuda", torch.float32), ("cpu", torch.float16)):
        with pytest.raises(ValueError, match=f"needs float16 or bfloat16 on CUDA, got float[0-9]* on {device}"):
            check_prefill_attention("flash_attention_2", torch.device(device), dtype)


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (5, None), (None, 1.5), (5, 2.0)])
def test_what_flash_attention_is_asked(
    window: int | None, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in with the package's meaning (arXiv 2307.08691, its README): layouts, windows, caps come out right."""

    def flash_attn_func(q, k, v, softmax_scale, causal, window_size, softcap):  # type: ignore[no-untyped-def]
        assert causal
        left = None if window_size[0] < 0 else window_size[0] + 1
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = expected(q, k, v, softmax_scale, left, softcap or None, None)
        return out.transpose(1, 2).to(q.dtype)

    module = types.ModuleType("flash_attn")
    module.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    q, (k, v) = torch.randn(2, 6, 13, 8), torch.randn(2, 2, 3, 13, 8)
    actual = causal_attention(q, k, v, 0.6, window, softcap, None, "flash_attention_2")
    assert_close(actual, expected(q, k, v, 0.6, window, softcap, None), "attention/float32")
    sink = torch.randn(6)  # which that package does not know
    actual = causal_attention(q, k, v, 0.6, window, softcap, sink, "flash_attention_2")
    assert_close(actual, expected(q, k, v, 0.6, window, softcap, sink), "attention/float32")
