"""What generate does to the model: nothing that stays, and a cast of it is noticed."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from decoding.architectures import build, spread_evaluator, tokenizer
from generating import PROMPTS, generate, stock_greedy

import caw


@pytest.fixture
def model() -> Any:
    return build("llama")


def test_model_is_left_as_it_was(model: Any) -> None:
    before = {k: v.clone() for k, v in model.state_dict().items()}
    config, generation = model.config.to_dict(), model.generation_config.to_dict()
    generate(model, watermark=caw.KGW(key=1), policy=caw.CapacityPolicy(spread_evaluator(model)))
    assert (model.config.to_dict(), model.generation_config.to_dict()) == (config, generation)
    assert model.config._attn_implementation == "sdpa"
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any("forward" in vars(module) for module in model.modules())


def test_model_is_its_own_between_results(model: Any) -> None:
    options: dict[str, Any] = {"max_new_tokens": 6, "batch_size": 1}
    alone = [r.tokens for r in caw.iter_generate(model, tokenizer(), PROMPTS, **options)]
    stock = stock_greedy(model, PROMPTS[0], max_new_tokens=6)
    pairs = zip(*(caw.iter_generate(model, tokenizer(), PROMPTS, **options) for _ in range(2)), strict=True)
    for index, (a, b) in enumerate(pairs):
        assert model.config._attn_implementation == "sdpa"
        assert stock_greedy(model, PROMPTS[0], max_new_tokens=6) == stock
        assert a.tokens == b.tokens == alone[index]


@pytest.mark.parametrize("native", [True, False])
def test_a_model_cast_after_loading_is_read_anew(native: bool) -> None:
    backend = None if native else "reference"
    model = copy.deepcopy(build("llama")).bfloat16()  # what `build` gives is shared by all tests
    rough = generate(model, backend=backend)
    model.float()
    expected = generate(copy.deepcopy(model), backend=backend)
    assert generate(model, backend=backend).sequences == expected.sequences
    assert [stock_greedy(model, ids, max_new_tokens=12) for ids in PROMPTS] == expected.sequences
    model.bfloat16()
    assert generate(model, backend=backend).sequences == rough.sequences


def test_a_model_cast_while_it_decodes_is_said(model: Any) -> None:
    model = copy.deepcopy(model)
    iterator = caw.iter_generate(model, tokenizer(), PROMPTS[:1], max_new_tokens=3)
    model.bfloat16()
    with pytest.raises(RuntimeError, match=r"must stay on its dtype and device .*float32 on cpu\), found torch"):
        next(iterator)


def dropping() -> Any:
    """GPT-2 as its config makes it, in train mode but for its first layer."""
    model = copy.deepcopy(build("gpt2")).train()
    assert model.config.resid_pdrop == 0.1
    model.transformer.h[0].eval()
    return model


def modes(model: Any) -> list[bool]:
    return [module.training for module in model.modules()]


@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True, "seed": 5}, {"branching": "batch"}, {"backend": "reference"}]
)
def test_train_mode_decodes_as_eval_mode(options: dict[str, Any]) -> None:
    model = dropping()
    before = modes(model)
    given: dict[str, Any] = {
        "watermark": caw.KGW(key=1),
        "policy": caw.CapacityPolicy(spread_evaluator(model)),
        **options,
    }
    with pytest.warns(UserWarning, match=r"in train mode and transformer\.drop would apply dropout.*mode is restored"):
        first = generate(model, **given).sequences
    assert modes(model) == before
    with pytest.warns(UserWarning):
        assert generate(model, **given).sequences == first
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert generate(model.eval(), **given).sequences == first


def test_train_mode_without_dropout_is_no_reason_to_warn(model: Any) -> None:
    expected, model = generate(model).sequences, copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert generate(model.train(), PROMPTS).sequences == expected
    assert model.training


@pytest.mark.filterwarnings("ignore:the model is in train mode")
def test_train_mode_is_back_whatever_happens() -> None:
    model = dropping()
    before = modes(model)
    iterator = caw.iter_generate(model, tokenizer(), PROMPTS, max_new_tokens=6, batch_size=1)
    next(iterator)
    assert modes(model) == before
    iterator.close()
    assert modes(model) == before
    seen = []

    def fail(module: Any, given: Any, out: Any) -> None:
        seen.append(module.training)
        if len(seen) == 3:
            raise KeyboardInterrupt

    handle = model.lm_head.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        generate(model)
    handle.remove()
    assert seen == [False] * 3
    assert modes(model) == before
