"""Models whose weights a GPU reads in 4 and 8 bits, by the references that a CPU has of their operators."""

import copy
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding.architectures import build
from models.packing import packed_pair

import caw
from caw import ops
from caw.models import load, packed
from caw.models.facts import ModelFacts
from caw.models.packed import FEW_ROWS, PackedLinear, pack_model, pack_weight
from caw.models.quantization import check_quantization
from caw.models.rounding import Q4_1, Q8_0, blocks_of
from caw.testing import assert_close
from caw.triton_kernels.packed_weights_ref import FORMATS, INT4, INT8, unpack_weight_ref

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", [Q4_1, Q8_0])
def test_blocks_stay_where_the_numbers_are(kind: int) -> None:
    """They came back to the CPU, and no model of 4- or 8-bit blocks could be loaded on a GPU."""
    assert blocks_of(torch.empty(3, 64, device="meta"), kind).device.type == "meta"


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """load_model(device="cuda") goes its way; what it loads stays on the CPU."""
    monkeypatch.setattr(load, "resolve_device", lambda device: torch.device("cuda"))
    monkeypatch.setattr(packed, "pack_model", lambda model, weights, device: pack_model(model, weights, CPU))


@pytest.mark.parametrize("weights", FORMATS)
def test_loaded_it_gives_the_texts_of_its_dense_numbers(weights: str, folder: Path, as_on_a_gpu: None) -> None:
    model, tokenizer = caw.load_model(folder, device="cuda", dtype="float32", quantization=weights)
    _, dense = packed_pair(model, weights)
    kinds = {type(m) for m in model.modules()}
    assert PackedLinear in kinds
    ids = torch.randint(3, 31, (2, 40))
    with torch.inference_mode():
        assert_close(model(ids).logits, dense(ids).logits, "forward")
    assert ModelFacts.of(model).vocab_size == ModelFacts.of(dense).vocab_size
    prompts, watermark = ["a small text", "another"], caw.KGW(key=3, delta=2.0)
    texts = [
        caw.generate(m, tokenizer, prompts, watermark=watermark, max_new_tokens=6, progress=False).sequences
        for m in (model, dense)
    ]
    assert texts[0] == texts[1]
    with pytest.raises(ValueError, match="expected a model of plain weights to save, found rounded ones"):
        model.save_pretrained(folder)
    for move in (model.half, lambda: model.to("meta"), lambda: copy.deepcopy(model).to(torch.float64)):
        with pytest.raises(ValueError, match=r"expected a model of packed weights to stay in torch.float32 on cpu"):
            move()
    for part in (model.model, model.model.layers, model.model.layers[0], model.model.layers[0].mlp):
        with pytest.raises(ValueError, match="expected a model of packed weights to stay"):
            part.to(torch.float64)
        assert {(p.dtype, p.device) for p in model.parameters()} == {(torch.float32, CPU)}, "no part has moved"
    assert model.to("cpu").float() is model


@pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")
@pytest.mark.parametrize(("form", "kind"), [(INT4, Q4_1), (INT8, Q8_0)])
def test_numbers_are_those_of_the_same_weights_on_a_cpu(form: Any, kind: int) -> None:
    weight = torch.randn(37, 160)
    expected = ops.unpack_rows(ops.pack_blocks(blocks_of(weight, kind), kind), torch.arange(37), 160)
    assert torch.equal(unpack_weight_ref(pack_weight(weight, form), 160, torch.float32), expected)


def test_float8_is_rounded_once_and_exact_in_bfloat16() -> None:
    weight = torch.randn(5, 48) * torch.tensor([[1e-6], [0.02], [3.0], [500.0], [0.0]])
    found = unpack_weight_ref(pack_weight(weight, FORMATS["fp8"]), 48, torch.float32)
    greatest = weight.abs().amax(1, keepdim=True)
    assert ((found - weight).abs() <= weight.abs() / 16 + greatest * 2**-17).all() and not found[4].any()
    assert torch.equal(found.bfloat16().float(), found)


def test_many_rows_are_multiplied_by_dense_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from caw.triton_kernels.small_linear import MAX_ROWS

    layer = packed.packed_layer(torch.nn.Linear(64, 7).bfloat16(), INT8, CPU)
    calls: list[str] = []
    for name in ("packed_linear", "unpack_weight"):
        original = getattr(ops, name)
        monkeypatch.setattr(ops, name, lambda *a, name=name, of=original: calls.append(name) or of(*a))
    x = torch.randn(FEW_ROWS + 1, 64).bfloat16()
    few, many = layer(x[:-1]), layer(x)
    assert FEW_ROWS == MAX_ROWS and calls == ["packed_linear", "unpack_weight"]
    assert_close(many[:-1], few, "attention/bfloat16")
    assert layer(x[:6].view(2, 3, 64)).shape == (2, 3, 7)
    monkeypatch.setattr(packed, "AT_ONCE", 3 * 64)
    assert_close(layer(x), many, "attention/bfloat16")
    assert calls[3:] == ["unpack_weight"] * 3, "three rows of the matrix at once"


def test_vocabularies_and_odd_rows() -> None:
    """A table that is the vocabulary too stays for look-ups, and is multiplied by in 8 bits; 48 are no blocks."""
    model = copy.deepcopy(build("llama"))
    model.lm_head.weight = model.model.embed_tokens.weight
    model = pack_model(model, "int4", CPU)
    assert model.lm_head.form is INT8 and type(model.model.embed_tokens) is torch.nn.Embedding
    layer = model.model.layers[0]
    assert layer.self_attn.q_proj.form is INT4 and type(layer.mlp.down_proj) is torch.nn.Linear


@pytest.mark.parametrize(
    ("weights", "source", "device", "words"), [
        ("fp8", "m", "cpu", "is for a GPU, found cpu; load with device='cuda', or use 'int8' or 'int4'"),
        ("fp8", "m.gguf", "cpu", "load with device='cuda', or use 'file'"), ("int8", "m.gguf", "cpu", "use 'file'"),
        ("file", "m", "cpu", "use 'int8' or 'int4'"), ("file", "m.gguf", "meta", "computes in float32 on a CPU"),
        ("file", "m.gguf", "cuda", "computes in float32 on a CPU"),
        ("fp4", "m", "cuda", "quantization must be one of file, file-fast, fp8, int8, int4, got 'fp4'"),
        ("int8", "m", "meta", "computes in float32 on a CPU, found auto on meta"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(weights: str, source: str, device: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        check_quantization(weights, Path(source), torch.device(device), "auto")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="computes in float32 on a CPU"):
        check_quantization("file", Path("m.gguf"), CPU, "bfloat16")


@pytest.mark.parametrize("weights", ["int8", "int4", "fp8"])
def test_on_a_gpu_any_model_takes_them(weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in ("m", "m.gguf"):
        check_quantization(weights, Path(source), torch.device("cuda"), "bfloat16")
    for version in ("3.5.1", "2.10.0", "none"):
        monkeypatch.setattr("importlib.metadata.version", lambda name, version=version: triton(version))
        with pytest.raises(ImportError, match=rf"requires Triton 3\.6 or newer, found {version}; run"):
            check_quantization(weights, Path("m"), torch.device("cuda"), "auto")
    for version in ("3.6.0", "3.10.1+git1a2b", "4.0.0"):
        monkeypatch.setattr("importlib.metadata.version", lambda name, version=version: triton(version))
        check_quantization(weights, Path("m"), torch.device("cuda"), "auto")


def triton(version: str) -> str:
    if version == "none":
        raise PackageNotFoundError("triton")
    return version


def test_a_part_with_dense_layers_ahead_refuses_whole() -> None:
    """Whatever a move comes to first: the layer that stays dense has not moved when the packed one refuses."""
    dense, whole = torch.nn.Linear(48, 64), torch.nn.Linear(64, 5)
    body = torch.nn.Sequential(torch.nn.Sequential(dense, whole), torch.nn.LayerNorm(5))
    body.dtype = torch.float32  # type: ignore[assignment]
    found = pack_model(body, "int4", CPU)
    expected = found(torch.ones(2, 48))
    for part in (found, found[0]):
        with pytest.raises(ValueError, match="expected a model of packed weights to stay"):
            part.to(torch.float64)
        assert {p.dtype for p in found.parameters()} == {torch.float32}
    assert type(found[0][1]) is PackedLinear and torch.equal(found(torch.ones(2, 48)), expected)
