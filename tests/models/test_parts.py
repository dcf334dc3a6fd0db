"""Parts of a model: kept while it is what it was, forgotten at any change that another forward could come from."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tiny import tiny_model as made

from caw.models.parts import ModelParts, looked_at_once


def tiny_model() -> Any:
    return made(64)


def other_parameter(model: Any) -> None:
    old = model.model.norm.weight
    model.model.norm.weight = torch.nn.Parameter(old.detach().clone())


def swapped_data(model: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    weight = model.model.layers[1].self_attn.o_proj.weight
    weight.data = change(weight.data)


def renamed_child(model: Any) -> None:
    held = model.model.layers[0].mlp._modules
    held["renamed"] = held.pop("act_fn")


def other_class(module: Any) -> None:
    module.__class__ = type("Patched", (type(module),), {})


CHANGES = {
    "other data": lambda model: swapped_data(model, torch.clone),
    "a transposed view": lambda model: swapped_data(model, torch.t),
    "other parameter": other_parameter,
    "other buffer": lambda model: setattr(model.model.rotary_emb, "inv_freq", model.model.rotary_emb.inv_freq.clone()),
    "new child": lambda model: setattr(model.model.layers[0].mlp, "extra", torch.nn.Identity()),
    "other child": lambda model: setattr(model.model.layers[0].mlp, "act_fn", torch.nn.GELU()),
    "renamed child": renamed_child,
    "other class": lambda model: other_class(model.model.layers[0]),
    "other class of the model": other_class,
    "fewer layers": lambda model: model.model.layers.__delitem__(-1),
    "parameter gone": lambda model: model.model.norm._parameters.update(weight=None),
    "other dtype": lambda model: model.bfloat16(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_is_seen(change: Callable[[Any], None]) -> None:
    model = tiny_model()
    parts = ModelParts.of(model)
    assert ModelParts.of(model) is parts and list(parts.below) == list(model.modules())[1:]
    change(model)
    assert not parts.hold(model)
    now = ModelParts.of(model)
    assert now is not parts and ModelParts.of(model) is now


def test_numbers_and_modes_are_not_parts() -> None:
    model = tiny_model()
    parts = ModelParts.of(model)
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    model.train()
    model.model.register_forward_hook(lambda *_: None)
    assert ModelParts.of(model) is parts


def test_derived_values_end_with_the_parts() -> None:
    model, made = tiny_model(), []
    for _ in range(2):
        assert ModelParts.of(model).once("x", lambda: made.append(0) or len(made)) == 1
    other_parameter(model)
    assert ModelParts.of(model).once("x", lambda: made.append(0) or len(made)) == 2


def test_what_raises_is_asked_again() -> None:
    parts = ModelParts.of(tiny_model())
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            parts.once("x", lambda: 1 // 0)


def refer_from_below(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda *_: model.config and None)


def test_neither_model_nor_tensors_are_kept_alive() -> None:
    model = tiny_model()
    parts = ModelParts.of(model)
    model_there, weight_there = weakref.ref(model), weakref.ref(model.model.norm.weight)
    other_parameter(model)
    gc.collect()
    assert weight_there() is None
    refer_from_below(model)
    assert ModelParts.of(model) is not parts and parts.below
    del model, parts
    gc.collect()
    assert model_there() is None


def test_a_call_looks_once() -> None:
    """Inside the block the first look holds, for each model; behind it, and for other threads, each look is a look."""
    model, other = tiny_model(), tiny_model()
    before = ModelParts.of(model)
    with looked_at_once():
        assert ModelParts.of(model) is before
        other_parameter(model)
        assert ModelParts.of(model) is before
        with ThreadPoolExecutor(1) as pool:
            elsewhere = pool.submit(ModelParts.of, other).result()
        other_parameter(other)
        assert ModelParts.of(other) is not elsewhere
    assert ModelParts.of(model) is not before
    with looked_at_once():
        found = ModelParts.of(model)
    with looked_at_once():
        other_parameter(model)
        assert ModelParts.of(model) is not found


def test_what_is_kept_belongs_to_what_it_was_made_for() -> None:
    parts = ModelParts.of(tiny_model())
    assert parts.known("x", 1) is None and parts.keep("x", "a", 1) == "a"
    assert parts.known("x", 1) == "a" and parts.known("x", 2) is None and parts.known("y", 1) is None
    parts.keep("x", "b", 2)
    assert parts.known("x", 1) is None and parts.known("x", 2) == "b"


def test_a_hook_between_two_calls_is_seen() -> None:
    model = tiny_model()
    with looked_at_once():
        before = ModelParts.of(model).hooked(model)
        model.model.layers[0].mlp.register_forward_hook(lambda *_: None)
        assert ModelParts.of(model).hooked(model) is before, "asked once a call"
    with looked_at_once():
        assert ModelParts.of(model).hooked(model) != before


def test_copies_and_files_hold_none() -> None:
    model = tiny_model()
    ModelParts.of(model).once("x", lambda: lambda: 0)  # what cannot be pickled
    other, read = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    assert ModelParts.of(other).below[0] is other.model and ModelParts.of(read).below[0] is read.model


def test_a_shared_parameter_is_one_tensor_in_two_places() -> None:
    model = tiny_model()
    model.lm_head.weight = model.model.embed_tokens.weight
    parts = ModelParts.of(model)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    assert not parts.hold(model)
