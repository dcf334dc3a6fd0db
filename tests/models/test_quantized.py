"""Models on the blocks of their own file: the numbers and texts of the dequantized float32 model."""

import copy
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding.architectures import build
from models.conftest import write_gguf
from tiny import tiny_tokenizer

import caw
from caw import ops
from caw.decoding.forward import layer_kinds
from caw.models import device, gguf_file, rounding
from caw.models.facts import ModelFacts
from caw.models.load import give_back
from caw.models.quantized import HalfLinear, QuantizedEmbedding, QuantizedLinear
from caw.testing import assert_close

gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")

FILES = {
    "llama": (("Q4_1", "Q5_0", "Q8_0"), {}),
    "tied": (("Q8_0", "Q4_0", "Q5_1"), {"tie_word_embeddings": True, "num_key_value_heads": 2}),
    "plain": (("F32", "F16", "BF16"), {}),  # no blocks at all
    "half": (("F16",), {"num_key_value_heads": 2}),
    "qwen2": (("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"), {"architecture": "qwen2", "hidden": 256}),
    "qwen3": (("Q6_K", "Q8_0", "Q3_K"), {"architecture": "qwen3", "hidden": 256, "num_key_value_heads": 2}),
    # files call Mistral's "llama" as well
    "mistral": (("Q4_K", "F16"), {"hidden": 256, "num_key_value_heads": 2}),
}


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest, tmp_path: Path, cache: Path) -> Path:
    kinds, settings = FILES[request.param]
    return write_gguf(tmp_path / "tiny.gguf", kinds, **settings)[0]


def test_logits_and_texts_are_those_of_the_dequantized_model(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = caw.load_model(file, device="cpu", quantization="file")
    wide, other = caw.load_model(file, device="cpu", dtype="float32")
    ids = torch.randint(3, 31, (2, 9))
    with torch.inference_mode():
        assert_close(model(ids).logits, wide(ids).logits, "forward")
    assert model.generation_config.eos_token_id == wide.generation_config.eos_token_id == [1, 2]
    assert tokenizer("abz")["input_ids"] == other("abz")["input_ids"]
    assert ModelFacts.of(model).vocab_size == ModelFacts.of(wide).vocab_size == 31
    calls, original = [], ops.decoder_stack
    monkeypatch.setattr(ops, "decoder_stack", lambda *a: calls.append(a[7][1].dtype) or original(*a))
    prompts, policy = ["abcd", "xyz", "cdcdcdcd"], caw.EntropyThreshold(1.0)
    for watermark in (None, caw.KGW(key=3, delta=2.0)):
        options = {"watermark": watermark, "policy": policy if watermark else None, "max_new_tokens": 12}
        texts = [caw.generate(m, tokenizer, prompts, progress=False, **options).sequences for m in (model, wide)]
        assert texts[0] == texts[1]
    kinds = {type(model.get_submodule(f"model.layers.0.{part}")) for part in layer_kinds.PROJECTIONS}
    own = (
        {QuantizedLinear: {torch.uint8}, HalfLinear: {torch.float16}}.get(kinds.pop(), set())
        if len(kinds) == 1
        else set()
    )
    assert set(calls) == own | {torch.float32}, "all layers run as one operator"


@pytest.mark.parametrize(("kind", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_numbers_of_16_bits_stay_as_the_file_has_them(kind: str, dtype: Any, tmp_path: Path, cache: Path) -> None:
    path, _ = write_gguf(tmp_path / "tiny.gguf", (kind,))
    model, _ = caw.load_model(path, device="cpu", quantization="file")
    wide, _ = caw.load_model(path, device="cpu", dtype="float32")
    parts = dict(model.named_modules())
    for name, module in wide.named_modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
            assert parts[name].packed.dtype == dtype and torch.equal(parts[name].packed.float(), module.weight), name
    x = torch.randn(3, 5, 32)
    projection = parts["model.layers.0.mlp.up_proj"]
    expected = ops.small_linear(x.view(15, 32), wide.model.layers[0].mlp.up_proj.weight)
    assert torch.equal(projection(x).view(15, -1), expected)
    with pytest.raises(ValueError, match="to stay in float32 on the CPU"):
        model.bfloat16()


def test_fast_weights_are_near_and_asked_for(tmp_path: Path, cache: Path) -> None:
    path, _ = write_gguf(tmp_path / "tiny.gguf", ("Q8_0",))
    exact, _ = caw.load_model(path, device="cpu", quantization="file")
    fast, _ = caw.load_model(path, device="cpu", quantization="file-fast")
    ids = torch.tensor([[5, 6, 7, 8]])
    a, b = exact(ids).logits, fast(ids).logits
    assert not torch.equal(a, b)
    assert_close(b, a, "int8")


def test_a_packed_model_neither_moves_nor_saves(tmp_path: Path, cache: Path) -> None:
    model, _ = caw.load_model(write_gguf(tmp_path / "tiny.gguf", ("Q4_1",))[0], device="cpu", quantization="file")
    before = copy.deepcopy(model.state_dict())
    for move in (model.half, model.bfloat16, lambda: model.to(torch.float64), lambda: model.to("meta")):
        with pytest.raises(ValueError, match="expected a model of quantized or 16-bit weights to stay in float32 on"):
            move()
    with pytest.raises(ValueError, match=r"plain weights to save, .* or load it with quantization=None and a dtype"):
        model.save_pretrained(tmp_path / "saved")
    after = model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    assert model.to("cpu").float() is model
    assert not any(p.requires_grad or p.is_meta for p in model.parameters())
    assert not any(b.is_meta for b in model.buffers())


def test_ids_outside_the_vocabulary_are_refused() -> None:
    table = QuantizedEmbedding(ops.pack_blocks(torch.zeros(3, 18, dtype=torch.uint8), 2), 3, 32)
    with pytest.raises(RuntimeError, match="rows must be in"):
        table(torch.tensor([[3]]))


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_other_models_are_rounded_while_they_load(weights: str, folder: Path) -> None:
    model, tokenizer = caw.load_model(folder, device="cpu", quantization=weights)
    wide, _ = caw.load_model(folder, device="cpu", dtype="float32")
    parts = dict(model.named_modules())
    for name, module in wide.named_modules():
        if isinstance(module, torch.nn.Linear):
            made = parts[name]
            if module.in_features % 32:
                assert type(made) is torch.nn.Linear, "rows of 48 numbers are no whole blocks"
                continue
            found = ops.unpack_rows(made.packed, torch.arange(made.outputs), made.inputs)
            worst = (found - module.weight).abs().unflatten(1, (-1, 32)).amax(-1)
            blocks = module.weight.unflatten(1, (-1, 32))
            step = blocks.abs().amax(-1) / 127 if weights == "int8" else (blocks.amax(-1) - blocks.amin(-1)) / 15
            assert (worst <= 0.52 * step + 2e-3 * blocks.abs().amax(-1)).all()
    text = caw.generate(model, tokenizer, ["a small text"], max_new_tokens=5, progress=False)
    assert len(text.sequences[0]) > 0


def test_a_matrix_is_let_go_before_the_next_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that two layers share is one, and goes with the first."""
    model = copy.deepcopy(build("llama"))
    model.lm_head.weight = model.model.embed_tokens.weight
    tables = [m.weight for m in model.modules() if type(m) in (torch.nn.Linear, torch.nn.Embedding)]
    tables = [weight for weight in tables if weight.shape[1] % 32 == 0]
    dense, alive = [weakref.ref(weight) for weight in set(tables)], []
    assert len(dense) == len(tables) - 1 > 10
    del tables
    blocks_of = rounding.blocks_of

    def counted(weight: torch.Tensor, kind: int) -> torch.Tensor:
        alive.append(sum(each() is not None for each in dense))
        return blocks_of(weight, kind)

    monkeypatch.setattr(rounding, "blocks_of", counted)
    rounding.quantize(model, "int4")
    assert alive == list(range(len(dense), 0, -1)) and not any(each() is not None for each in dense)
    assert model.lm_head.packed.data_ptr() == model.model.embed_tokens.packed.data_ptr()


@pytest.mark.parametrize("kind", ["qwen2", "gemma3"])
def test_a_model_is_rounded_from_its_own_precision(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In that its files stay mapped; Gemma, which makes a number in it, is loaded in float32 after all."""
    copy.deepcopy(build(kind)).bfloat16().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    wide, _ = caw.load_model(tmp_path, device="cpu", dtype="float32")
    given: list[Any] = []
    original = rounding.quantize

    def quantize(model: Any, weights: str) -> Any:
        given.append(model.lm_head.weight.dtype)
        return original(model, weights)

    monkeypatch.setattr(rounding, "quantize", quantize)
    model, _ = caw.load_model(tmp_path, device="cpu", quantization="int8")
    assert given == [torch.bfloat16 if kind == "qwen2" else torch.float32]
    assert model.dtype == model.config.dtype == torch.float32
    expected, ids = original(wide, "int8"), torch.tensor([[5, 6, 7]])
    assert torch.equal(model(ids).logits, expected(ids).logits)


@pytest.fixture
def without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_fast_bfloat16", lambda: False)


def test_blocks_are_usual_where_numbers_would_be_float32(
    tmp_path: Path, cache: Path, without_bfloat16: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processors with bfloat16 read long prompts sooner in that, and who names a dtype gets numbers of it."""
    path, _ = write_gguf(tmp_path / "tiny.gguf", ("Q4_1",))
    head = caw.load_model(path, device="cpu")[0].lm_head
    assert type(head) is QuantizedLinear
    for options in ({"dtype": "float32"}, {"dtype": torch.bfloat16}):
        assert type(caw.load_model(path, device="cpu", **options)[0].lm_head) is torch.nn.Linear
    monkeypatch.setattr(device, "_fast_bfloat16", lambda: True)
    model, _ = caw.load_model(path, device="cpu")
    assert type(model.lm_head) is torch.nn.Linear and model.dtype == torch.bfloat16


@pytest.mark.parametrize("why", ["architecture", "extension"])
def test_what_cannot_be_usual_is_dequantized_with_the_reason(
    why: str, tmp_path: Path, cache: Path, without_bfloat16: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = write_gguf(tmp_path / "tiny.gguf", ("Q4_1",))
    if why == "architecture":
        monkeypatch.setattr(gguf_file, "FAMILIES", ("qwen2",))
    else:
        monkeypatch.setattr(ops, "missing_extension", lambda: "no compiler")
    reason = {"architecture": "its architecture is 'llama', known are qwen2", "extension": "no compiler"}[why]
    with pytest.warns(UserWarning, match=f"^tiny.gguf is dequantized, .*: .*{reason}"):
        model, _ = caw.load_model(path, device="cpu")
    assert type(model.lm_head) is torch.nn.Linear and model.dtype == torch.float32


@pytest.mark.parametrize("kind", ["TQ1_0", "TQ2_0", "MXFP4"])
def test_types_without_a_product_are_dequantized_or_refused(
    kind: str, tmp_path: Path, cache: Path, without_bfloat16: None
) -> None:
    if kind not in gguf.GGMLQuantizationType.__members__:
        pytest.skip("needs a newer gguf package")
    path, original = write_gguf(tmp_path / "tiny.gguf", (kind,), hidden=256)
    number = gguf.GGMLQuantizationType[kind]
    with pytest.raises(
        ValueError, match=f"^quantization='file' knows .*, found ggml's type {number.value} for "
    ) as caught:
        caw.load_model(path, device="cpu", quantization="file")
    assert "\n" not in str(caught.value)
    with pytest.warns(UserWarning, match=f"^tiny.gguf is dequantized, .*type {number.value} of "):
        model, _ = caw.load_model(path, device="cpu")
    wanted = original.lm_head.weight.detach().numpy()
    wanted = gguf.quants.dequantize(gguf.quants.quantize(wanted, number), number)
    assert torch.equal(model.lm_head.weight, torch.from_numpy(wanted))


@pytest.mark.serial
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").is_file(), reason="needs Linux, which counts memory")
def test_loading_adds_little_more_than_the_file(tmp_path: Path, cache: Path) -> None:
    path, _ = write_gguf(tmp_path / "tiny.gguf", ("Q8_0",), hidden=1280)
    caw.load_model(path, device="cpu", quantization="file")  # what is made once
    gc.collect()
    give_back()
    before = own_memory()
    kept = caw.load_model(path, device="cpu", quantization="file")
    added = own_memory() - before
    assert kept and added <= 1.15 * path.stat().st_size, added / path.stat().st_size


def own_memory() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_", "Swap:")))
