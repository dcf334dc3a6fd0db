"""The contract with models, and the switch of their attention."""

from typing import Any

import pytest
import torch
from decoding.architectures import build, prompt
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config

from caw.decoding.forward.attention import NAME, Layout, attention, caw_attention
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.prefill import prefill


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


@pytest.mark.parametrize(("module", "options", "reason"), [
    (Module(), {"mask": torch.zeros(1, 1, 4, 4)}, "brings an attention mask of its own"),
    (Module(), {"change": True}, "changes keys or values after they are cached"),
    (Module(), {"is_causal": False}, "is not causal"), (Module(sliding_window=5), {}, "its sliding window of 5"),
    (Module(sliding_window=5, layer_types=["sliding_attention"]), {}, "its sliding window of 5"),
])  # fmt: skip
def test_contract_refuses_what_would_be_lost(module: Module, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotImplementedError, match=f"got 'gpt2': .*{reason}"):
        call(module, **options)


def test_contract_refuses_a_lost_layout_and_a_layer_that_never_attends() -> None:
    with pytest.raises(NotImplementedError, match="do not hand their arguments on"):
        attention(Module(), *torch.randn(3, 1, 2, 4, 3), None)
    with torch.inference_mode(), pytest.raises(NotImplementedError, match="3 of its layers do not attend"):
        # the model's own attention, as if it could not be switched
        prefill(build("llama"), SiblingCache(3, 1, 9, 1, torch.device("cpu")), [0], [prompt(4)], 0)


@pytest.mark.parametrize(("kind", "settings", "reason"), [
    ("diffllama", {}, "changes keys or values"), ("doge", {}, "mask of its own"),
    ("nemotron", {}, "do not hand their arguments on"),
    ("phimoe", {"sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2}, "its sliding window of 6"),
])  # fmt: skip
def test_models_that_were_silently_wrong_are_refused(kind: str, settings: dict[str, Any], reason: str) -> None:
    from decoding.running import run

    base = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1,
            "eos_token_id": 2}  # fmt: skip
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**base, **settings})).eval()
    with pytest.raises(NotImplementedError, match=reason):
        run(model, [[3, 4, 5, 6, 7, 8, 9, 10]])
    assert model.config._attn_implementation != NAME
