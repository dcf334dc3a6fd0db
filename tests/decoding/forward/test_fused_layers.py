"""Layers as one operator: which ones, the same logits and tokens as the model's own forward, nothing left behind."""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from decoding.architectures import CONFIGS, GQA, build, from_config, prompt, tokenizer
from decoding.forward.test_branching import CHOICES, compare_with_plain_forwards
from decoding.running import run

import caw
from caw import ops
from caw.decoding.forward import fused_layers, fused_stack
from caw.decoding.forward.fused_forwards import FusedForwards, norm_forwards
from caw.decoding.forward.fused_layers import fused_forwards, fusible
from caw.models.rounding import quantize

pytestmark = pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")
FUSED = ("llama", "mistral", "qwen2", "qwen2-window", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "granite")


@pytest.mark.parametrize("name", CONFIGS)
def test_which_layers_are_fused(name: str) -> None:
    model = build(name)
    layers = model.config.num_hidden_layers if name in FUSED else 0
    assert len(fused_forwards(model)) == layers


PART = ("phi3", {**CONFIGS["phi3"][1], "rope_parameters": {
    "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}})  # fmt: skip


@pytest.mark.parametrize("name", ["gemma", "gemma2", "gemma3", "phi3", "phi3, a part of each head"])
def test_families_of_a_gpu_equal_the_models_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`decoder_layer` by its reference, as each layer describes itself: siblings, windows, caps, norms, activations."""
    model = build(name) if name in CONFIGS else from_config(*PART, seed=1)
    calls, own = [], ops.decoder_layer
    monkeypatch.setattr(fused_layers, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(fused_stack, "runs_as_one", lambda body, layers: False)  # all layers as one are a CPU's
    monkeypatch.setattr(ops, "decoder_layer", lambda *given: calls.append(given[1].shape[2]) or own(*given))
    with FusedForwards(model, enabled=True):
        compare_with_plain_forwards(model, "tree")
    dim = model.model.layers[0].self_attn.head_dim
    rotated = dim if name in CONFIGS else dim // 2
    assert calls == [rotated] * len(CHOICES) * model.config.num_hidden_layers


def test_a_gpu_does_not_know_multipliers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(fused_forwards(build("granite"))) == 2
    monkeypatch.setattr(fused_layers, "on_gpu", lambda tensor: True)
    assert not fused_forwards(build("granite"))
    assert not any(type(forward).__name__ == "_SmallNorm" for _, forward in norm_forwards(build("granite")))


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of each layer of a step that ran fused, whether alone or in a stack; of prompts none."""
    calls: list[str] = []

    def stack(*given: object) -> torch.Tensor:
        windows, places = given[11], given[13]
        if places is None:
            calls.extend(["layer"] if len(windows) == 1 else ["stack"] * len(windows))  # type: ignore[arg-type]
        return original(*given)

    original = ops.decoder_stack
    monkeypatch.setattr(ops, "decoder_stack", stack)
    return calls


@pytest.mark.parametrize("name, branching", [
    *((name, "tree") for name in (*FUSED, "phi3, a part of each head")), ("llama", "sequential"), ("phi3", "batch"),
])  # fmt: skip
def test_steps_run_fused_and_give_the_same_tokens(name: str, branching: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name) if name in CONFIGS else from_config(*PART, seed=1)
    prompts = [prompt(9), prompt(4, seed=1), prompt(17, seed=2)]
    options = {"branching": branching, "max_new_tokens": 16, "do_sample": False}
    watermark, policy = caw.KGW(key=3, delta=3.0), caw.EntropyThreshold(0.5)
    calls = calls_of(monkeypatch)
    fused = run(model, prompts, watermark, policy, **options)
    assert calls and len(calls) % model.config.num_hidden_layers == 0
    monkeypatch.setattr("caw.decoding.forward.fused_forwards.fused_forwards", lambda model: [])
    before = len(calls)
    plain = run(copy.deepcopy(model), prompts, watermark, policy, **options)  # a copy: forwards are kept for a model
    assert len(calls) == before
    assert fused.tokens == plain.tokens and fused.changed > 0


class Doubled(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


TOUCHED = [
    ("llama", lambda layer: layer.train()),
    ("llama", lambda layer: layer.mlp.register_forward_hook(lambda *args: None)),
    ("llama", lambda layer: layer.self_attn.q_proj.register_forward_pre_hook(lambda *args: None)),
    ("llama", lambda layer: setattr(layer.self_attn, "q_proj", Doubled(32, 32))),
    ("llama", lambda layer: setattr(layer.mlp, "act_fn", torch.nn.GELU())),
    ("llama", lambda layer: setattr(layer.input_layernorm, "forward", lambda x: x)),
    ("llama", lambda layer: setattr(layer, "adapter", torch.nn.Linear(32, 32))),
    ("phi3", lambda layer: layer.resid_attn_dropout.register_forward_hook(lambda *args: None)),
    ("phi3", lambda layer: setattr(layer, "resid_mlp_dropout", torch.nn.Identity())),
    ("phi3", lambda layer: layer.self_attn.qkv_proj.register_forward_hook(lambda *args: None)),
    ("phi3", lambda layer: setattr(layer.mlp, "gate_up_proj", Doubled(32, 96))),
    ("phi3", lambda layer: setattr(layer.mlp, "activation_fn", torch.nn.GELU())),
    ("granite", lambda layer: setattr(layer.mlp, "down_proj", Doubled(48, 32))),
]


def test_a_changed_layer_is_left_alone() -> None:
    for number, (name, change) in enumerate(TOUCHED):
        layer = copy.deepcopy(build(name)).model.layers[0]
        assert fusible(layer)
        change(layer)  # type: ignore[no-untyped-call]
        assert not fusible(layer), number


@pytest.mark.parametrize(("weights", "kv_heads", "fused"), [("int8", 2, 2), ("int4", 4, 2), ("int8", 1, 0)])
def test_merged_matrices_of_blocks(weights: str, kv_heads: int, fused: int) -> None:
    """With one head of keys, of 8 rows, values would begin within the 16 rows that are packed together."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 8, "num_key_value_heads": kv_heads}
    model = quantize(from_config("phi3", {**GQA, **sizes}, seed=2), weights)
    assert len(fused_forwards(model)) == fused
    ids = prompt(9)
    out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=12, pad_token_id=0, eos_token_id=None)
    given = {"max_new_tokens": 12, "min_new_tokens": 12, "progress": False}
    assert caw.generate(model, tokenizer(), [ids], **given).sequences == [out[0, len(ids) :].tolist()]


CHANGES: dict[str, tuple[Any, list[str]]] = {  # what is done to a model, and how its layers run from then on
    "weights in place": (lambda model: model.model.layers[2].mlp.up_proj.weight.data.mul_(-1), ["stack"] * 18),
    "load_state_dict": (
        lambda model: model.load_state_dict({name: value.flip(0) for name, value in model.state_dict().items()}),
        ["stack"] * 18,
    ),
    "an adapter": (lambda model: setattr(model.model.layers[1].mlp, "up_proj", Doubled(32, 48)), ["layer"] * 12),
    "a hook": (
        lambda model: model.model.layers[1].mlp.register_forward_hook(lambda *args: 2 * args[2]),
        ["layer"] * 12,
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_two_texts_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made while one decoder is at work: the second text is that of a decoder made after the change."""
    model, (change, fused) = copy.deepcopy(build("llama")), CHANGES[name]
    calls, prompts = calls_of(monkeypatch), [prompt(7), prompt(7, seed=1)]
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "speculate": None}  # so that every token takes a step
    results = caw.iter_generate(model, tokenizer(), prompts, batch_size=1, **options)
    next(results)
    assert calls == ["stack"] * 18
    change(model)
    tokens = next(results).tokens
    assert calls[18:] == fused
    assert tokens == caw.generate(model, tokenizer(), prompts[1:], **options).sequences[0]


@pytest.mark.serial
def test_threads_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads may generate with one model: right texts, and a model that is its own afterwards."""
    for name in ("llama", "gpt2"):
        model = build(name)
        options = {"max_new_tokens": 20, "do_sample": False}

        def text(seed: int, model: object = model, options: dict = options) -> list[list[int]]:
            return run(model, [prompt(9, seed=seed)], caw.KGW(key=3, delta=3.0), None, **options).tokens

        expected, interval = [text(seed) for seed in range(4)], sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        try:
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(text, [0, 1, 2, 3] * 4))
        finally:
            sys.setswitchinterval(interval)
        assert found == expected * 4
        assert model.config._attn_implementation != "caw"
        assert not any("forward" in module.__dict__ for module in model.modules())
