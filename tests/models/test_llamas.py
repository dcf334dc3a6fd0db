"""Models of commands: modules of our own, which give what transformers' give, bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from models.conftest import write_gguf
from safetensors.torch import load_file, save_file
from tiny import save_tiny, tiny_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

import caw
from caw.models.arithmetic import model_digest
from caw.models.fingerprint import fingerprint
from caw.models.llamas import LanguageModel
from caw.models.load import load_for_command
from caw.models.quantized import QuantizedLinear

pytestmark = pytest.mark.skipif(bool(caw.ops.missing_extension()), reason="without the operators nothing is our own")
LOW = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"original_max_position_embeddings": 64, "factor": 4.0, "rope_theta": 10000.0}
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama biased": {"attention_bias": True, "mlp_bias": True},
    "llama tied": {"tie_word_embeddings": True},
    "llama llama3": {"rope_parameters": LONG | LOW | {"rope_type": "llama3"}},
    "llama yarn": {"rope_parameters": LONG | {"rope_type": "yarn"}},
    "llama linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
}
OTHERS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 32},
    "llama": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
    "gemma": {"head_dim": 8},
}


def saved(folder: Path, kind: str, **settings: Any) -> Path:
    tokenizer = tiny_tokenizer()
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.5,
        **({"tie_word_embeddings": False, "eos_token_id": 0, "pad_token_id": 0, "intermediate_size": 48} | settings),
    ))  # fmt: skip
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):  # which a new model has as zeros
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def again(place: Path, quantization: str | None = None, dtype: str = "auto") -> tuple[Any, Any]:
    assert not isinstance(load_for_command(place, "cpu", dtype, quantization)[0], LanguageModel)
    return load_for_command(place, "cpu", dtype, quantization)


def texts(model: Any, tokenizer: Any, **options: Any) -> list[list[int]]:
    prompts = ["the sky is", "a small model"]
    return caw.generate(
        model, tokenizer, prompts, max_new_tokens=24, watermark=caw.KGW(key=1), seed=2, **options
    ).sequences


@pytest.mark.parametrize("name", CASES)
def test_folder(name: str, tmp_path: Path, cache: Path) -> None:
    folder = saved(tmp_path / "tiny", name.split()[0], **CASES[name])
    (model, tokenizer), (other, its) = (
        again(folder, dtype="float32"),
        caw.load_model(folder, device="cpu", dtype="float32"),
    )
    assert isinstance(model, LanguageModel)
    for options in ({}, {"do_sample": True}, {"prefill_attention": "eager"}, {"branching": "batch"}):
        assert texts(model, tokenizer, **options) == texts(other, its, **options), options
    assert model_digest(model, tokenizer) == model_digest(other, its) and fingerprint(model) == fingerprint(other)
    assert model.generation_config.to_dict() == other.generation_config.to_dict()
    ids = torch.tensor([[1, 5, 9, 200]])
    assert torch.equal(model(ids).logits, other(ids).logits)
    assert torch.equal(model(ids, logits_to_keep=2).logits, other(ids, logits_to_keep=2).logits)


@pytest.mark.parametrize("given", [{"dtype": "float32-sums"}, {"quantization": "int4"}, {"quantization": "int8"}])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_matrices_of_fewer_bits(kind: str, given: dict[str, str], tmp_path: Path, cache: Path) -> None:
    folder = saved(tmp_path / "tiny", kind, tie_word_embeddings=True, dtype="bfloat16", intermediate_size=64)
    (model, tokenizer), (other, its) = again(folder, **given), caw.load_model(folder, device="cpu", **given)
    assert isinstance(model, LanguageModel) and isinstance(model.lm_head, QuantizedLinear)
    assert texts(model, tokenizer) == texts(other, its)
    assert model_digest(model, tokenizer) == model_digest(other, its)


@pytest.mark.parametrize("kinds", [("Q4_0",), ("Q8_0", "F16")])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_file(name: str, kinds: tuple[str, ...], tmp_path: Path, cache: Path) -> None:
    file, _ = write_gguf(tmp_path / "tiny.gguf", kinds, name)
    (model, tokenizer), (other, its) = again(file, "file"), caw.load_model(file, device="cpu", quantization="file")
    assert isinstance(model, LanguageModel)
    assert texts(model, tokenizer) == texts(other, its)
    assert model_digest(model, tokenizer) == model_digest(other, its)
    ids = torch.tensor([[1, 5, 9, 20]])
    assert torch.equal(model(ids).logits, other(ids).logits)


@pytest.mark.parametrize("name", OTHERS)
def test_what_the_modules_do_not_compute_is_left_to_transformers(name: str, tmp_path: Path, cache: Path) -> None:
    model, _ = again(saved(tmp_path / "tiny", name, **OTHERS[name]))
    assert type(model).__module__ == f"transformers.models.{name}.modeling_{name}"


def test_a_folder_that_changed_is_read_anew(tmp_path: Path, cache: Path) -> None:
    folder = save_tiny(tmp_path / "tiny")
    model, _ = again(folder)
    assert isinstance(model, LanguageModel) and model.config.rms_norm_eps == 1e-6
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    model, _ = again(folder)
    assert isinstance(model, LanguageModel) and model.config.rms_norm_eps == 1e-5


def test_several_chat_templates_are_written_down_once(tmp_path: Path, cache: Path) -> None:
    folder = save_tiny(tmp_path / "tiny")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings, templates = folder / "tokenizer_config.json", {"default": "{{ 1 }}", "tool_use": "{{ 2 }}"}
    entries = [{"name": name, "template": text} for name, text in templates.items()]
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": entries}))
    _, tokenizer = load_for_command(folder, "cpu", "float32", None)
    times = [file.stat().st_mtime_ns for file in sorted(cache.rglob("files.json"))]
    assert len(times) == 1 and tokenizer.chat_template == templates
    _, tokenizer = load_for_command(folder, "cpu", "float32", None)
    assert [file.stat().st_mtime_ns for file in cache.rglob("files.json")] == times
    assert tokenizer.chat_template == templates


def test_weights_of_another_model_are_left_to_transformers(tmp_path: Path, cache: Path) -> None:
    folder = save_tiny(tmp_path / "tiny")
    assert isinstance(again(folder)[0], LanguageModel)
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"model.stray": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    assert not isinstance(load_for_command(folder, "cpu", "float32", None)[0], LanguageModel)
    (folder / "model.safetensors").write_bytes(b"none")
    with pytest.raises(ValueError, match="could not load the model"):
        load_for_command(folder, "cpu", "float32", None)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAW_CACHE", str(tmp_path / "file"))
    folder = save_tiny(tmp_path / "tiny")
    assert not isinstance(again(folder)[0], LanguageModel)
