"""All layers as one operator: the bits of its layers one by one, and left aside where a model is not what it takes."""

import copy
from typing import Any

import pytest
import torch
from decoding.architectures import build, prompt, tokenizer
from decoding.forward.test_fused_layers import FUSED

import caw
from caw import ops
from caw.decoding.forward import fused_forwards
from caw.decoding.forward.fused_forwards import FusedForwards

pytestmark = pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")


def stacks_of(model: Any) -> list[Any]:
    return [forward for _, forward in FusedForwards(model, enabled=True).forwards if type(forward).__name__ == "_Stack"]


def decoded(model: Any, **options: Any) -> tuple[list[list[int]], list[torch.Tensor]]:
    logits: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda *given: logits.append(given[2].clone()))
    try:
        prompts = [prompt(9), prompt(4, seed=1), [5, 6, 7, 8] * 4]
        given = {"watermark": caw.KGW(key=3, delta=3.0), "policy": caw.EntropyThreshold(0.5), "max_new_tokens": 12}
        texts = caw.generate(model, tokenizer(), prompts, progress=False, **{**given, **options}).sequences
    finally:
        hook.remove()
    return texts, logits


def assert_same(model: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    calls: list[bool] = []
    original = ops.decoder_stack
    with monkeypatch.context() as patch:
        patch.setattr(ops, "decoder_stack", lambda *given: calls.append(given[13] is None) or original(*given))
        texts, found = decoded(model, **options)
    assert True in calls and False in calls, "steps and prompts"
    with monkeypatch.context() as patch:
        patch.setattr(fused_forwards, "with_stacks", lambda model, forwards: forwards)
        patch.setattr(
            ops, "decoder_stack", lambda *given: original(*given) if len(given[11]) == 1 else pytest.fail("all")
        )
        alone, expected = decoded(copy.deepcopy(model), **options)  # a copy: forwards are kept for a model
    assert texts == alone and len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("name", FUSED)
def test_the_same_bits_as_layer_by_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = copy.deepcopy(build(name)).to(dtype)
        assert len(stacks_of(model)) == 1
        assert_same(model, monkeypatch, batch_size=2, speculate=None if name == "mistral" else 4)
    assert_same(build(name), monkeypatch, branching="batch", speculate=None)


LAYERS: dict[str, Any] = {
    "another function": lambda model: setattr(model.model.layers[1].mlp, "act_fn", torch.nn.GELU()),
    "another forward": lambda model: setattr(model.model, "forward", lambda *given: None),
    "one more": lambda model: model.model.layers.append(copy.deepcopy(model.model.layers[0])),
    "another scaling": lambda model: setattr(model.model.layers[1].self_attn, "scaling", 0.3),
}


@pytest.mark.parametrize("name", LAYERS)
def test_models_that_are_not_taken(name: str) -> None:
    model = copy.deepcopy(build("llama"))
    assert len(stacks_of(model)) == 1
    LAYERS[name](model)
    assert not stacks_of(model)


def test_multipliers_are_those_that_the_model_has() -> None:
    """Of one layer: not all in one. Of all: other texts, as if they had been so from the start."""
    model = copy.deepcopy(build("granite"))
    before, _ = decoded(model)
    for layer in model.model.layers:
        layer.residual_multiplier = 0.9
    after, _ = decoded(model)
    assert len(stacks_of(model)) == 1 and after == decoded(copy.deepcopy(model))[0] != before
    model.model.embedding_multiplier = 0.5
    assert decoded(model)[0] == decoded(copy.deepcopy(model))[0] != after
    model.model.layers[1].residual_multiplier = 0.5
    assert not stacks_of(model)


@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_a_narrower_layer_runs_by_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pruned model: its second layer has a narrower MLP, of merged matrices too."""
    model, calls, original = copy.deepcopy(build(name)), [], ops.decoder_stack
    mlp = model.model.layers[1].mlp
    wide = {"gate_up_proj": 40} if name == "phi3" else {"gate_proj": 20, "up_proj": 20}
    for part, width in wide.items():
        setattr(mlp, part, torch.nn.Linear(32, width, bias=False))
    mlp.down_proj = torch.nn.Linear(20, 32, bias=False)
    ids, given = torch.tensor([prompt(9)]), {"max_new_tokens": 8, "min_new_tokens": 8}
    expected = model.generate(ids, do_sample=False, pad_token_id=0, eos_token_id=None, max_new_tokens=8)[0, 9:].tolist()
    monkeypatch.setattr(ops, "decoder_stack", lambda *given: calls.append(len(given[11])) or original(*given))
    assert caw.generate(model, tokenizer(), [prompt(9)], progress=False, **given).sequences == [expected]
    assert set(calls) == {1}


def test_what_changes_between_two_steps_is_seen() -> None:
    model = copy.deepcopy(build("llama"))
    [stack], layer = stacks_of(model), model.model.layers[2]

    def seen(*, first: bool = False) -> bool:
        return not stack._unchanged(first=first)

    assert not seen() and not seen(first=True)
    hook = layer.mlp.register_forward_pre_hook(lambda *given: None)
    assert seen()
    hook.remove()
    assert not seen(first=True)
    layer.train()
    assert seen()
    layer.eval()
    before = layer.self_attn.k_proj.weight
    layer.self_attn.k_proj.weight = torch.nn.Parameter(before.double())
    assert seen()
    layer.self_attn.k_proj.weight = before
    assert not seen()
    layer.self_attn.k_proj = torch.nn.Linear(32, 16)
    assert seen(first=True)
