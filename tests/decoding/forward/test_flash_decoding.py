"""Sibling attention by flash-attn, against a stand-in with the documented signature of its function."""

from __future__ import annotations

import copy
import importlib.metadata
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from decoding.architectures import build, prompt, spread_evaluator, tokenizer
from decoding.running import run

import caw
from caw import generate
from caw.decoding.forward import flash_decoding, fused_forwards
from caw.testing import assert_close
from caw.triton_kernels.sibling_attention_ref import sibling_attention_ref


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, Q, H, D], caches [B, S, HK, D] -> out [B, Q, H, D], lse [B, H, Q]; a query at i is at i + length - Q.

    An empty prefix gives what the real one may: an output of NaN and a logsumexp of +inf.
    """
    assert k is None and v is None and not causal and return_softmax_lse and cache_seqlens is not None
    assert cache_seqlens.dtype == torch.int32 and q.stride(-1) == k_cache.stride(-1) == v_cache.stride(-1) == 1
    group = q.shape[2] // k_cache.shape[2]
    keys, values = (x.float().repeat_interleave(group, dim=2) for x in (k_cache, v_cache))
    out = torch.full(q.shape, torch.nan)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), torch.inf)
    for b, length in enumerate(cache_seqlens.tolist()):
        at = torch.arange(q.shape[1])[:, None] + length - q.shape[1]
        place = torch.arange(length)[None]
        hidden = torch.zeros(q.shape[1], length, dtype=torch.bool)
        if window_size[0] >= 0:
            hidden |= place < at - window_size[0]
        if window_size[1] >= 0:
            hidden |= place > at + window_size[1]
        if length == 0 or bool(hidden.all()):
            continue
        scores = torch.einsum("qhd,shd->hqs", q[b].float(), keys[b, :length]) * softmax_scale
        if softcap > 0:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(hidden, -torch.inf)
        lse[b] = scores.logsumexp(dim=-1)
        out[b] = torch.einsum("hqs,shd->qhd", scores.softmax(dim=-1), values[b, :length])
    return out.to(q.dtype), lse


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("flash_attn")
    module.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    found = importlib.metadata.distribution
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: None if name == "flash-attn" else found(name))


EXTRAS: dict[str, dict[str, Any]] = {
    "plain": {}, "window": {"window": 7}, "window of two": {"window": 2}, "window of one": {"window": 1},
    "softcap": {"softcap": 2.0}, "sinks": {"sinks": torch.linspace(-2, 3, 6)},
    "all": {"window": 5, "softcap": 3.0, "sinks": torch.linspace(-2, 3, 6)},
}  # fmt: skip


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("candidates", [1, 3, 8])
def test_equal_to_the_reference(candidates: int, extra: str) -> None:
    store = torch.randn(2, 4, 2, 23, 16)
    lengths = torch.tensor([20, 0, 1, 7])
    for b, length in enumerate(lengths.tolist()):
        store[:, b, :, length:] = torch.nan
    own = [torch.randn(4, candidates, 2, 16).transpose(1, 2) for _ in range(2)]
    q = torch.randn(4, candidates, 6, 16).transpose(1, 2)
    given = (q, store[0], store[1], *own, lengths, 0.3)
    found = flash_decoding.flash_sibling_attention(*given, **EXTRAS[extra])
    assert_close(found, sibling_attention_ref(*given, **EXTRAS[extra]), "attention/float32")


@pytest.mark.usefixtures("package")
def test_decoding_by_it_gives_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's kernels run on CUDA only; the fused layers, which bring their own attention, on CPUs only."""
    llama = copy.deepcopy(build("llama"))  # forwards are kept for a model
    policy = caw.CapacityPolicy(spread_evaluator(llama), theta=0.8, beta=1.5)
    texts = [prompt(9), prompt(1, 2), prompt(4, 1)]
    kernels = flash_decoding.flash_kernels()
    assert kernels.sibling_attention is flash_decoding.flash_sibling_attention
    monkeypatch.setattr(fused_forwards, "fused_forwards", lambda model: [])
    calls = []
    monkeypatch.setattr(sys.modules["flash_attn"], "flash_attn_with_kvcache",
                        lambda *a, **k: (calls.append(1), flash_attn_with_kvcache(*a, **k))[1])  # fmt: skip
    for fixed in (True, False):
        expected = run(llama, texts, caw.KGW(key=3, delta=3.0), policy, fixed=fixed)
        found = run(llama, texts, caw.KGW(key=3, delta=3.0), policy, fixed=fixed, kernels=kernels)
        assert found.tokens == expected.tokens and expected.changed > 0
        assert calls.pop() and not calls.clear()


def test_what_is_needed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "distribution", missing)
        with pytest.raises(ImportError, match="backend='flash-attn' needs the flash-attn package, which is not"):
            generate(build("llama"), tokenizer(), ["x"], backend="flash-attn")
    for device, dtype in (("cpu", torch.bfloat16), ("cuda", torch.float32)):
        with pytest.raises(ValueError, match="needs float16 or bfloat16 on CUDA, got"):
            flash_decoding.check_flash(torch.device(device), dtype)
    flash_decoding.check_flash(torch.device("cuda"), torch.bfloat16)


@pytest.mark.usefixtures("package")
def test_a_model_it_cannot_serve_is_refused() -> None:
    with pytest.raises(ValueError, match="float16 or bfloat16 on CUDA, got float32 on cpu; leave backend out"):
        generate(build("llama"), tokenizer(), ["x"], backend="flash-attn")
