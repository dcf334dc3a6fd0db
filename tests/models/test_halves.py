"""`dtype="float32-sums"`: matrices in a checkpoint's 16 bits, texts of the float32 model."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding.architectures import build, tokenizer
from safetensors.torch import load_file, save_file
from tiny import save_tiny

import caw
from caw.models import device, halves
from caw.models.arithmetic import model_digest
from caw.models.device import resolve_dtype
from caw.models.llamas import LanguageModel
from caw.models.load import load_for_command
from caw.models.quantized import HalfEmbedding, HalfLinear
from caw.policies import FixedStrength

KINDS = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3", "phi3", "granite")


def saved(name: str, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    copy.deepcopy(build(name)).to(dtype).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def halved(model: Any) -> bool:
    return any(isinstance(part, HalfLinear) for part in model.modules())


@pytest.mark.parametrize("name", KINDS)
def test_texts_and_logits_are_those_of_float32_in_half_the_bytes(name: str, tmp_path: Path) -> None:
    source = saved(name, tmp_path)
    model, words = caw.load_model(source, device="cpu", dtype="float32-sums")
    wide, _ = caw.load_model(source, device="cpu", dtype="float32")
    parts = dict(model.named_modules())
    for where, module in wide.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            assert isinstance(parts[where], HalfLinear | HalfEmbedding) and parts[where].packed.dtype == torch.bfloat16
            assert torch.equal(parts[where].packed.float(), module.weight)
    assert model_digest(model, words) == model_digest(wide, words)
    assert model.dtype == torch.float32 and all(p.dtype == torch.float32 for p in model.parameters())
    prompts = [[5, 6, 7, 8, 9], [11], list(range(20, 60))]
    for watermark, policy in ((None, None), (caw.KGW(key=3), FixedStrength(0.5)), (caw.EXP(key=3), FixedStrength(0.5))):
        texts = [
            caw.generate(m, words, prompts, watermark=watermark, policy=policy, max_new_tokens=24, progress=False)
            for m in (model, wide)
        ]
        assert texts[0].sequences == texts[1].sequences


def test_a_product_has_the_bits_of_the_float32_one_at_any_number_of_rows(tmp_path: Path) -> None:
    weight = torch.randn(130, 200).bfloat16()
    for rows in (1, 2, 3, 8, 9, 33, 100):
        x = torch.randn(rows, 200)
        assert torch.equal(caw.ops.small_linear(x, weight), caw.ops.small_linear(x, weight.float())), rows


def test_shared_tables_stay_shared_and_the_model_neither_moves_nor_saves(tmp_path: Path) -> None:
    model, _ = caw.load_model(saved("qwen2", tmp_path, torch.float16), device="cpu", dtype="float32-sums")
    assert model.lm_head.packed.dtype == torch.float16
    tied = halves.keep_halves(_tied())
    assert tied.lm_head.packed is tied.model.embed_tokens.packed
    with pytest.raises(ValueError, match="to stay in float32 on the CPU"):
        model.bfloat16()
    with pytest.raises(ValueError, match=r"plain weights to save, .* 16 bits beside float32; .* and dtype='float32'$"):
        model.save_pretrained(tmp_path / "again")


def test_training_is_refused_rather_than_without_gradients(tmp_path: Path) -> None:
    model, _ = caw.load_model(saved("llama", tmp_path), device="cpu", dtype="float32-sums")
    ids = torch.tensor([[5, 6, 7]])
    model.requires_grad_(True)
    with pytest.raises(ValueError, match=r"which quantized or 16-bit weights do not pass on, .* to train$"):
        model(ids)
    with torch.no_grad():
        assert model(ids).logits.shape[1] == 3


def _tied() -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("llama", vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                                  num_attention_heads=2, tie_word_embeddings=True)  # fmt: skip
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


@pytest.mark.parametrize("name", ["gpt2", "mixtral"])
def test_other_models_and_checkpoints_of_more_bits_are_plain_float32(name: str, tmp_path: Path) -> None:
    model, _ = caw.load_model(saved(name, tmp_path), device="cpu", dtype="float32-sums")
    assert not halved(model) and model.dtype == torch.float32
    mixed = saved("llama", tmp_path / "mixed")
    tensors = load_file(mixed / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float() + 1e-5  # which 16 bits would lose
    save_file(tensors, mixed / "model.safetensors", {"format": "pt"})
    model, _ = caw.load_model(mixed, device="cpu", dtype="float32-sums")
    assert not halved(model) and torch.equal(model.model.norm.weight, tensors["model.norm.weight"])
    adapted = saved("llama", tmp_path / "adapted")
    (adapted / "adapter_config.json").write_text("{}")
    assert halves.stored_half(str(mixed)) is None and halves.stored_half(str(adapted)) is None


@pytest.mark.parametrize("fast", [True, False])
def test_auto_takes_it_where_it_would_be_float32(fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_fast_bfloat16", lambda: fast)
    model, _ = caw.load_model(saved("llama", tmp_path), device="cpu")
    assert halved(model) != fast and model.dtype == (torch.bfloat16 if fast else torch.float32)
    assert not halved(caw.load_model(tmp_path, device="cpu", dtype="float32")[0])
    assert resolve_dtype("float32-sums", torch.device("cpu")) == torch.float32
    with pytest.raises(ValueError, match=r"^dtype='float32-sums' is for a CPU, found cuda; use 'bfloat16'$"):
        device.keeps_halves("float32-sums", torch.device("cuda"))


def test_a_command_reads_it_into_modules_of_our_own(tmp_path: Path, cache: Path) -> None:
    wide, words = caw.load_model(save_tiny(tmp_path / "wide"), device="cpu", dtype="float32")
    wide.bfloat16().save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    first, second = (load_for_command(tmp_path, "cpu", "float32-sums", None)[0] for _ in range(2))
    assert not isinstance(first, LanguageModel) and isinstance(second, LanguageModel) and halved(second)
    given: dict[str, Any] = {"max_new_tokens": 20, "watermark": caw.KGW(key=3), "progress": False}
    texts = [caw.generate(model, words, "the sky is blue", **given).sequences for model in (first, second)]
    assert texts[0] == texts[1]
