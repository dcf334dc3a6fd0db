"""Forwards kept from one call to the next: the same object while nothing changed, made anew at any change."""

import copy
from typing import Any

import pytest
import torch
from decoding.architectures import build, prompt, tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

import caw
from caw import ops
from caw.decoding.forward.fused_forwards import FusedForwards
from caw.decoding.plan_defaults import exact_rows

pytestmark = pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")


def llama() -> Any:
    return copy.deepcopy(build("llama"))


def again(model: Any, *, enabled: bool = True) -> Any:
    return FusedForwards.of(model, enabled=enabled)


def names(forwards: Any) -> list[str]:
    return sorted(type(forward).__name__ for _, forward in forwards.forwards)


def test_the_same_while_nothing_changed() -> None:
    model = llama()
    assert again(model) is again(model) and names(again(model)) == ["_Forward", "_Stack"]
    assert exact_rows(model)
    assert not names(again(model, enabled=False)) and names(again(model)) == ["_Forward", "_Stack"]
    handle = model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert "_Stack" not in names(again(model))
    handle.remove()
    assert "_Stack" in names(again(model)) and exact_rows(model)


TOUCHES = {
    "a hook": lambda layer: layer.mlp.register_forward_hook(lambda *_: None),
    "another forward": lambda layer: setattr(layer, "forward", type(layer).forward.__get__(layer)),
    "training": lambda layer: layer.train(),
}


@pytest.mark.parametrize("name", TOUCHES)
def test_a_touched_layer_runs_by_itself(name: str) -> None:
    model = llama()
    before, exact = again(model), exact_rows(model)
    TOUCHES[name](model.model.layers[0])
    now = again(model)
    assert now is not before and "_Stack" not in names(now) and names(now).count("FusedLayer") == 2
    assert exact and not exact_rows(model)


SETTINGS = {
    "scaling": lambda layer: setattr(layer.self_attn, "scaling", 0.5),
    "eps": lambda layer: setattr(layer.input_layernorm, "variance_epsilon", 0.1),
    "eps of the other norm": lambda layer: setattr(layer.post_attention_layernorm, "variance_epsilon", 0.1),
    "window": lambda layer: setattr(layer.self_attn.config, "sliding_window", 3),
    "index": lambda layer: setattr(layer.self_attn, "layer_idx", 1),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_other_settings_of_a_layer(name: str) -> None:
    model = llama()
    before = again(model)
    SETTINGS[name](model.model.layers[0])
    assert again(model) is not before and again(model).as_made()
    if name not in ("window", "index"):  # which are not the layer's alone
        ours = caw.generate(model, tokenizer(), [prompt(7)], max_new_tokens=12, progress=False).sequences[0]
        theirs = model.generate(torch.tensor([prompt(7)]), do_sample=False, max_new_tokens=12)
        assert ours == theirs[0, 7:].tolist()


def test_copies_of_weights_are_not_kept() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=32)).eval()
    assert "_Transposed" in names(again(model)) and again(model) is not again(model)
