"""Rotations out of a table: the module's own bits, made once, and only where the angles cannot change."""

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from decoding.architectures import build
from decoding.test_memory import allocated

from caw.decoding.forward import rotary_table
from caw.decoding.forward.fused_forwards import FusedForwards
from caw.decoding.forward.fused_layers import GPU_ROWS
from caw.decoding.forward.rotary_table import TabledRotary, rotary_forwards, rows_of_table
from caw.decoding.memory import decoding_needs
from caw.models.facts import ModelFacts


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotary_table, "on_gpu", lambda tensor: True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_has_the_modules_bits(as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    model = copy.deepcopy(build("qwen2")).to(dtype)
    module, lengths = model.model.rotary_emb, torch.tensor([[0], [37], [290]])
    hidden = torch.zeros(3, 2, 8, dtype=dtype)
    monkeypatch.setattr(rotary_table, "PIECE", 100)  # the last one is smaller
    ((_, table),) = rotary_forwards(model, 256)
    assert table.table.shape[0] == 512 and table.table.dtype == dtype
    for positions in (lengths, lengths.expand(3, 2)):
        for made, own in zip(table(hidden, positions), module(hidden, positions), strict=True):
            assert torch.equal(made, own)
    for fewer in (300, 20):
        ((_, again),) = rotary_forwards(model, fewer)
        assert again.table is table.table, "one table for as many places and for fewer"
    for frequencies in (module.inv_freq, module.inv_freq.data):  # `.data` has a version of its own
        frequencies.mul_(0.5)
        ((_, other),) = rotary_forwards(model, 300)
        assert torch.equal(other(hidden, lengths)[0], module(hidden, lengths)[0])
    long = torch.arange(600)[None]  # a prompt, which the module rotates
    assert torch.equal(other(hidden, long)[1], module(hidden, long)[1])


def test_its_rows_are_as_many_as_positions_at_most() -> None:
    """Without a limit a power of two, so that all tables of a growing text are less than twice the last."""
    rows = {(131_072, 131_072): 135_168, (5000, 131_072): 8192, (100, 2048): 4096, (5000, None): 8192,
            (9000, 2048): 16_384, (8192 - GPU_ROWS, None): 8192, (8193 - GPU_ROWS, None): 16_384}  # fmt: skip
    for (places, limit), expected in rows.items():
        assert rows_of_table(SimpleNamespace(max_position_embeddings=limit), places) == expected, (places, limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_plan_of_memory_has_it(as_on_a_gpu: None, dtype: torch.dtype, tmp_path: Path) -> None:
    """The table, and what making it takes on top, from one end to the other."""
    model, places = copy.deepcopy(build("llama")).to(dtype), 30_000
    model.config.max_position_embeddings = 32_000
    facts = ModelFacts.of(model)
    there = replace(facts, device=torch.device("cuda"))
    planned = decoding_needs(there, places, 1, 0).fixed - decoding_needs(facts, places, 1, 0).fixed
    made: list[Any] = [None]

    def make() -> None:
        made[0] = torch.empty(1)  # what comes first is not counted
        made.extend(rotary_forwards(model, places))

    peak, table = allocated(make, tmp_path / "trace.json"), made[1][1].table
    assert table.shape[0] == 32_768 and table.nbytes < peak <= planned < 1.25 * peak


def test_where_angles_may_change_the_module_is_asked(as_on_a_gpu: None) -> None:
    model: Any = copy.deepcopy(build("qwen2"))  # which other tests use
    assert len(rotary_forwards(model, 256)) == 1
    model.model.rotary_emb.rope_type = "dynamic"
    assert not rotary_forwards(model, 256)
    assert not rotary_forwards(build("gemma3"), 256), "another kind of model"


def test_a_decoder_uses_it_on_a_gpu_alone(as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    linears = FusedForwards(model, enabled=True, places=64)
    own = [forward for attributes, forward in linears.forwards if attributes is model.model.rotary_emb.__dict__]
    assert [type(forward) for forward in own] == [TabledRotary]
    with linears:
        assert model.model.rotary_emb.forward is own[0]
    assert "forward" not in model.model.rotary_emb.__dict__
    monkeypatch.undo()
    assert len(FusedForwards(model, enabled=True, places=64).forwards) == len(linears.forwards) - 1
