"""Which models are refused, by name and reason."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from decoding.architectures import build
from transformers import AutoConfig

from caw.models.branchable import branchable_config

RECURRENT, INTERFACE = "its recurrent state", "does not go through transformers' attention interface"
REFUSED = {
    "mamba": RECURRENT, "mamba2": RECURRENT, "falcon_mamba": RECURRENT, "rwkv": RECURRENT, "jamba": RECURRENT,
    "recurrent_gemma": RECURRENT, "bamba": RECURRENT, "zamba2": RECURRENT, "falcon_h1": RECURRENT,
    "nemotron_h": RECURRENT, "qwen3_next": r"its recurrent state \(linear_attention layers\)", "lfm2": RECURRENT,
    "minimax": RECURRENT, "granitemoehybrid": RECURRENT, "xlstm": RECURRENT,
    "bloom": INTERFACE, "falcon": INTERFACE, "mpt": INTERFACE, "codegen": INTERFACE, "gptj": INTERFACE,
    "gpt_neo": INTERFACE, "ctrl": INTERFACE, "xlnet": INTERFACE,
    "deepseek_v2": "latent attention", "deepseek_v3": "latent attention", "minicpm3": "latent attention",
    "gemma3n": "layers share keys and values", "llama4": "chunked attention",
    "t5": "encoder-decoder", "bart": "encoder-decoder", "whisper": "encoder-decoder",
    "bert": "it is an encoder", "roberta": "it is an encoder", "electra": "it is an encoder",
}  # fmt: skip


def stub(config: Any, **attributes: Any) -> Any:
    """A model that supports everything, so that only its config can speak against it."""
    forward = attributes.pop("forward", lambda input_ids, position_ids: None)
    return SimpleNamespace(**{"config": config, "_supports_attention_backend": True, "forward": forward, **attributes})


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_by_name_with_the_reason(kind: str) -> None:
    config = AutoConfig.for_model(kind)
    with pytest.raises(NotImplementedError, match=REFUSED[kind]) as caught:
        branchable_config(stub(config))
    assert f"got {config.get_text_config(decoder=True).model_type!r}" in str(caught.value)
    assert "use a model like Llama" in str(caught.value)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "phi3", 
                                  "gpt2", "opt", "smollm3", "gpt_oss"])  # fmt: skip
def test_accepted_by_name(kind: str) -> None:
    config = AutoConfig.for_model(kind)
    assert branchable_config(stub(config)) is config


def test_the_text_part_of_a_larger_model_counts() -> None:
    config = AutoConfig.for_model("gemma3")
    assert branchable_config(stub(config)) is config.text_config


def test_adapters_around_a_model_are_to_be_merged() -> None:
    with pytest.raises(NotImplementedError, match=r"got adapters around one; pass model\.merge_and_unload\(\)"):
        branchable_config(stub(AutoConfig.for_model("llama"), merge_and_unload=None))


def test_what_a_class_cannot_do_is_refused() -> None:
    config = AutoConfig.for_model("llama")
    with pytest.raises(NotImplementedError, match=INTERFACE):
        branchable_config(stub(config, _supports_attention_backend=False))
    with pytest.raises(NotImplementedError, match=r"torch\.compile has wrapped it; pass the model itself"):
        branchable_config(torch.compile(build("llama")))
    with pytest.raises(NotImplementedError, match="does not take position ids"):
        branchable_config(stub(config, forward=lambda input_ids, **kwargs: None))
