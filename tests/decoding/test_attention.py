"""Prefill attention against torch's with an explicit mask, the contract with models, and the switch."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from typing import Any

import pytest
import torch
from decoding.architectures import build, prompt
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config

from caw.decoding.forward import prefill_attention as attention_module
from caw.decoding.forward.attention import NAME, Layout, attention, caw_attention
from caw.decoding.forward.prefill_attention import causal_attention, check_prefill_attention
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.prefill import prefill
from caw.testing import assert_close


def expected(q: Any, k: Any, v: Any, scale: float, window: int | None, softcap: float | None, sinks: Any) -> Any:
    """Materialised scores in float64."""
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


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 1, 5, 13, 40])
@pytest.mark.parametrize("tokens", [1, 2, 13, 37])
def test_prefill_attention(
    tokens: int, window: int | None, softcap: float | None, sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every option, one and several blocks of query rows."""
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


# The switch ----------------------------------------------------------------------------------------------------------


def test_switch_comes_back_after_an_error() -> None:
    model = build("gpt2")
    switch = caw_attention(model)
    for _ in range(2):
        with pytest.raises(RuntimeError), switch:
            assert model.config._attn_implementation == NAME
            raise RuntimeError
        assert model.config._attn_implementation == "sdpa"


def test_each_part_of_a_model_gets_its_own_attention_back() -> None:
    """Text and vision parts may differ; only strings are put back, nothing is loaded again."""
    config = AutoConfig.for_model("gemma3")
    config._attn_implementation = {"": "sdpa", "text_config": "eager", "vision_config": "sdpa"}
    model = torch.nn.Module()
    model.config = config
    parts = (config, config.text_config, config.vision_config)
    with caw_attention(model):
        assert [c._attn_implementation for c in parts] == [NAME] * 3
    assert [c._attn_implementation for c in parts] == ["sdpa", "eager", "sdpa"]


# The contract --------------------------------------------------------------------------------------------------------


class Module(torch.nn.Module):
    """An attention layer as transformers hands it over."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.layer_idx = 0
        self.config = GPT2Config(n_layer=1, **config)


def call(module: Module, mask: Any = None, change: bool = False, capacity: int = 9, **kwargs: Any) -> Any:
    cache = SiblingCache(1, 1, capacity, 1, torch.device("cpu"))
    q, (k, v) = torch.randn(1, 2, 4, 3), torch.randn(2, 1, 2, 4, 3)
    cache.begin_prefill(torch.tensor([0]))
    k, v = cache.layers[0].update(k, v)
    return attention(module, q, k, v.clone() if change else v, mask, caw_layout=Layout(cache), **kwargs)


def test_contract_accepts_a_plain_layer() -> None:
    out, weights = call(Module())
    assert out.shape == (1, 4, 2, 3)
    assert out.is_contiguous(), "some models take a view of it"
    assert weights is None
    call(Module(), is_causal=True)
    call(Module(sliding_window=5), sliding_window=5)
    call(Module(sliding_window=9))  # never reached
    call(Module(sliding_window=5, use_sliding_window=False))
    call(Module(sliding_window=5, layer_types=["full_attention"]))


@pytest.mark.parametrize(
    ("module", "options", "reason"),
    [
        (Module(), {"mask": torch.zeros(1, 1, 4, 4)}, "brings an attention mask of its own"),
        (Module(), {"change": True}, "changes keys or values after they are cached"),
        (Module(), {"is_causal": False}, "is not causal"),
        (Module(sliding_window=5), {}, "its sliding window of 5"),
        (Module(sliding_window=5, layer_types=["sliding_attention"]), {}, "its sliding window of 5"),
    ],
)
def test_contract_refuses_what_would_be_lost(module: Module, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotImplementedError, match=f"got 'gpt2': .*{reason}"):
        call(module, **options)


def test_contract_refuses_a_lost_layout_and_a_layer_that_never_attends() -> None:
    with pytest.raises(NotImplementedError, match="do not hand their arguments on"):
        attention(Module(), *torch.randn(3, 1, 2, 4, 3), None)
    with torch.inference_mode(), pytest.raises(NotImplementedError, match="3 of its layers do not attend"):
        # the model's own attention, as if it could not be switched
        prefill(build("llama"), SiblingCache(3, 1, 9, 1, torch.device("cpu")), [0], [prompt(4)], 0)


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("diffllama", {}, "changes keys or values"),
        ("doge", {}, "mask of its own"),
        ("nemotron", {}, "do not hand their arguments on"),
        ("phimoe", {"sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2}, "its sliding window of 6"),
    ],
)
def test_models_that_were_silently_wrong_are_refused(kind: str, settings: dict[str, Any], reason: str) -> None:
    from decoding.running import run

    base = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1,
            "eos_token_id": 2}  # fmt: skip
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**base, **settings})).eval()
    with pytest.raises(NotImplementedError, match=reason):
        run(model, [[3, 4, 5, 6, 7, 8, 9, 10]])
    assert model.config._attn_implementation != NAME


# Choices of prefill ------------------------------------------------------------------------------------------------


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
