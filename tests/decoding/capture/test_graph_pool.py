"""Graphs and their memory between calls: taken where everything is as it was, never by two, gone with the model."""

import copy
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from decoding.architectures import prompt
from decoding.capturing import Recording, by_replays
from decoding.running import make_decoder, run
from decoding.test_step import WATERMARKS, capacity_policy
from models.packing import packed_pair

import caw
from caw.decoding.capture import graph_pool
from caw.decoding.forward import rotary_table
from caw.decoding.request import requests_for
from caw.decoding.row_settings import RowSettings

PROMPTS, OTHERS = [prompt(9), prompt(3, 2)], [prompt(5, 4), prompt(9, 7)]
SETTINGS: dict[str, Any] = {"slots": 8, "max_new_tokens": 9, "fixed": True, "watched": False}


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    made: list[Any] = []

    class Counting(Recording):
        def __init__(self) -> None:
            super().__init__()
            made.append(weakref.ref(self))

    by_replays(monkeypatch, worth=4)
    monkeypatch.setattr("decoding.capturing.Recording", Counting)
    yield made
    graph_pool.forget()
    assert not len(graph_pool._pool)


@pytest.fixture
def model(llama: Any) -> Any:
    return copy.deepcopy(llama)


@pytest.mark.parametrize("watermark", [None, "lefthash", "top_k"])
def test_a_second_call_goes_on_with_the_graph(model: Any, captures: list[Any], watermark: str | None) -> None:
    """Other prompts, another key, the same shapes: not captured again, and the texts of a call of its own."""
    policy = capacity_policy(model) if watermark else None
    chosen = WATERMARKS[watermark] if watermark else None
    other = chosen.with_key(77) if chosen is not None else None
    plain = {**SETTINGS, "fixed": False}
    expected = [run(model, p, w, policy, **plain).tokens for p, w in ((PROMPTS, chosen), (OTHERS, other))]
    assert run(model, PROMPTS, chosen, policy, **SETTINGS).tokens == expected[0]
    assert len(captures) == 1
    for _ in range(2):
        assert run(model, OTHERS, other, policy, **SETTINGS).tokens == expected[1]
    assert run(model, PROMPTS, chosen, policy, **SETTINGS).tokens == expected[0]
    assert len(captures) == 1
    [kept] = graph_pool._pool[model]
    assert not kept.texts.keys.any() and kept.texts.marks == [None, None], "keys stay no longer than a call"


def test_what_a_graph_holds_for_good_must_be_as_it_was(model: Any, captures: list[Any]) -> None:
    watermark, policy = WATERMARKS["lefthash"], capacity_policy(model)

    def again(policy: Any = policy, **changed: Any) -> int:
        before = len(captures)
        settings = {**SETTINGS, **changed}
        tokens = run(model, PROMPTS, watermark, policy, **settings).tokens
        assert tokens == run(model, PROMPTS, watermark, policy, **{**settings, "fixed": False}).tokens
        return len(captures) - before

    assert [again(), again()] == [1, 0]
    assert again(caw.CapacityPolicy(copy.deepcopy(policy.network), policy.theta, policy.beta)) == 0
    assert again(caw.CapacityPolicy(policy.network, 0.3, policy.beta)) == 1
    assert again(max_new_tokens=10) == 1
    policy.network.layer3.weight.data.mul_(-1)  # the same object, other numbers
    assert again() == 1
    layer = model.model.layers[0].mlp.down_proj
    layer.weight = torch.nn.Parameter(layer.weight.detach() * 0.5)  # lies elsewhere
    assert [again(), again()] == [1, 0]
    handle = layer.register_forward_hook(lambda module, args, output: output * 2)  # no graph would call it
    assert [again(), again()] == [1, 1]
    handle.remove()


@pytest.mark.parametrize("data", [False, True])
def test_a_graph_rotates_as_the_model_does_now(
    model: Any, captures: list[Any], monkeypatch: pytest.MonkeyPatch, data: bool
) -> None:
    """A table of rotations is in the graph; numbers changed through `.data` have the version that they had."""
    module, texts = model.model.rotary_emb, []
    own = module.inv_freq.clone()
    changes: list[Any] = [lambda t: t.mul_(40), lambda t: t.copy_(own)]
    for change in changes:
        change(module.inv_freq)
        texts.append(run(model, PROMPTS, **{**SETTINGS, "fixed": False}).tokens)
    assert texts[0] != texts[1]
    monkeypatch.setattr(rotary_table, "on_gpu", lambda tensor: True)
    assert run(model, PROMPTS, **SETTINGS).tokens == texts[1] and len(captures) == 1
    for change, expected in zip(changes, texts, strict=True):
        change(module.inv_freq.data if data else module.inv_freq)
        assert run(model, PROMPTS, **SETTINGS).tokens == expected
    assert len(captures) == 2, "the first graph is right again"
    module.attention_scaling *= 0.5
    run(model, PROMPTS, **SETTINGS)
    assert len(captures) == 3


def test_calls_at_the_same_time_have_graphs_of_their_own(model: Any, captures: list[Any]) -> None:
    expected = run(model, PROMPTS, **{**SETTINGS, "fixed": False}).tokens
    row = RowSettings.of(make_decoder(model, max_new_tokens=9).plan.settings)

    def started() -> Any:
        decoder = make_decoder(model, None, None, 2, 18, max_new_tokens=9, slots=8, fixed=True)
        return decoder.run(requests_for(PROMPTS, [9, 9], [row, row]))

    for wanted in (2, 2):  # both are left, and taken by the next two
        calls = [started(), started()]
        done = list(zip(*calls, strict=True))
        assert [[s.tokens for s in sorted(found, key=lambda s: s.index)] for found in zip(*done, strict=True)] == [
            expected, expected
        ]  # fmt: skip
        assert len(captures) == wanted
        for call in calls:
            assert not list(call)  # to its end, which leaves the graph
        assert len(graph_pool._pool[model]) == 2


def test_few_are_kept_and_all_go_with_the_model(llama: Any, captures: list[Any]) -> None:
    model = copy.deepcopy(llama)
    for new in (7, 8, 9):
        run(model, PROMPTS, **{**SETTINGS, "max_new_tokens": new})
    gc.collect()
    assert len(graph_pool._pool[model]) == graph_pool.MOST == 2
    stores = [weakref.ref(kept.store) for kept in graph_pool._pool[model]]
    for kept in graph_pool._pool[model]:
        kept.graph.calls.clear()  # a recording names the model's weights, which a graph does not hold
    del model, kept
    gc.collect()
    assert not len(graph_pool._pool) and [store() for store in stores] == [None, None]


def test_models_with_packed_weights_keep_graphs_too(llama: Any) -> None:
    """By where their bytes lie: a graph reads them there."""
    packed, _ = packed_pair(llama, "int8")
    before = graph_pool._weights(packed)
    assert before is not None and before == graph_pool._weights(packed)
    layer = packed.model.layers[0].mlp.up_proj
    layer.packed = layer.packed.clone()
    assert graph_pool._weights(packed) not in (before, None)
