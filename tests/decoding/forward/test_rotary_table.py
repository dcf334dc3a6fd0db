"""Rotations out of a table: the module's own bits, made once, and only where the angles cannot change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoding.architectures import build

from caw.decoding.forward import rotary_table
from caw.decoding.forward.rotary_table import TabledRotary, rotary_forwards
from caw.decoding.forward.small_linears import SmallLinears


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotary_table, "on_gpu", lambda tensor: True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_has_the_modules_bits(as_on_a_gpu: None, dtype: torch.dtype) -> None:
    model = build("qwen2").to(dtype)
    module, lengths = model.model.rotary_emb, torch.tensor([[0], [37], [290]])
    hidden = torch.zeros(3, 2, 8, dtype=dtype)
    ((_, table),) = rotary_forwards(model, 256)
    assert table.table.shape[0] == 512 and table.table.dtype == dtype
    for positions in (lengths, lengths.expand(3, 2)):
        for made, own in zip(table(hidden, positions), module(hidden, positions), strict=True):
            assert torch.equal(made, own)
    ((_, again),) = rotary_forwards(model, 300)
    assert again.table is table.table, "one table for about as many places"
    module.inv_freq.mul_(0.5)
    ((_, other),) = rotary_forwards(model, 300)
    assert torch.equal(other(hidden, lengths)[0], module(hidden, lengths)[0])
    long = torch.arange(600)[None]  # a prompt, which the module rotates
    assert torch.equal(other(hidden, long)[1], module(hidden, long)[1])


def test_where_angles_may_change_the_module_is_asked(as_on_a_gpu: None) -> None:
    model: Any = build("qwen2")
    assert len(rotary_forwards(model, 256)) == 1
    model.model.rotary_emb.rope_type = "dynamic"
    assert not rotary_forwards(model, 256)
    assert not rotary_forwards(build("gemma2"), 256), "another kind of model"


def test_a_decoder_uses_it_on_a_gpu_alone(as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    linears = SmallLinears(model, enabled=True, places=64)
    own = [forward for attributes, forward in linears.forwards if attributes is model.model.rotary_emb.__dict__]
    assert [type(forward) for forward in own] == [TabledRotary]
    with linears:
        assert model.model.rotary_emb.forward is own[0]
    assert "forward" not in model.model.rotary_emb.__dict__
    monkeypatch.undo()
    assert len(SmallLinears(model, enabled=True, places=64).forwards) == len(linears.forwards) - 1
