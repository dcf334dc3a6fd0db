"""What a .gguf file holds beyond what is read is named, and files that are no whole model are told what they are."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.gguf_writing import add, byte_tokenizer, model_of, write_model

import caw
from caw import ops
from caw.models import load_tokenizer

gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")
WAYS = {"blocks": {"quantization": "file"}, "numbers": {"dtype": "float32"}, "usual": {}}
ONE = {"x": np.ones(8, np.float32)}
# (architecture, settings, tensors, what the refusal must say)
LEFT: dict[str, tuple[str, dict[str, Any], dict[str, np.ndarray], str]] = {
    "attention's scale": ("llama", {"attention.scale": 0.5}, {}, "the setting llama.attention.scale"),
    "window": ("llama", {"attention.sliding_window": 64}, {}, "the setting llama.attention.sliding_window"),
    "cap": ("qwen2", {"final_logit_softcapping": 30.0}, {}, "the setting qwen2.final_logit_softcapping"),
    "scale": ("qwen3", {"logit_scale": 2.0}, {}, "the setting qwen3.logit_scale"),
    "clamp": ("llama", {"attention.clamp_kqv": 8.0}, {}, "the setting llama.attention.clamp_kqv"),
    "bias": ("llama", {}, {"output.bias": ONE["x"]}, "the tensor output.bias"),
    "mlp's bias": ("qwen3", {}, {"blk.0.ffn_up.bias": ONE["x"]}, "the tensor blk.0.ffn_up.bias"),
    "norm": ("llama", {}, {"blk.1.attn_q_norm.weight": ONE["x"]}, "the tensor blk.1.attn_q_norm.weight"),
    "other": ("llama", {}, {"classifier.weight": ONE["x"]}, "the tensor classifier.weight"),
    "factors": ("llama", {}, {"rope_freqs.weight": 1 + ONE["x"] * np.arange(8, dtype=np.float32) % 3}, "rope_freqs"),
    "half of them": ("llama", {}, {"rope_factors_long.weight": ONE["x"]}, "rope_factors_long.weight"),
    "partial": ("llama", {"rope.dimension_count": 8}, {}, "a rope.dimension_count of 8 with heads of 16"),
    "dynamic": ("llama", {"rope.scaling.type": "ntk"}, {}, "a rope.scaling.type of 'ntk'"),
    "yarn's part": (
        "llama", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_ext_factor": 0.5}, {},
        "yarn_ext_factor",
    ),
    "factor alone": ("llama", {"rope.scaling.attn_factor": 2.0}, {}, "a rope.scaling.attn_factor of 2"),
    "values": ("llama", {"attention.value_length": 8}, {}, "an attention.value_length"),
    "not causal": ("llama", {"attention.causal": False}, {}, "attention.causal = false"),
    "layers apart": ("llama", {"attention.head_count_kv": [1, 2]}, {}, "head_count_kv, which differs between layers"),
}  # fmt: skip


@pytest.mark.parametrize("case, way", zip(LEFT, itertools.cycle(["blocks", "numbers"]), strict=False))
def test_what_nothing_reads_is_named(case: str, way: str, tmp_path: Path, cache: Path) -> None:
    architecture, extra, tensors, said = LEFT[case]
    file = write_model(tmp_path / "a.gguf", model_of(architecture, head_dim=16), architecture, extra, tensors)
    with pytest.raises(ValueError) as caught:
        caw.load_model(file, device="cpu", **WAYS[way])
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not [made for made in cache.glob("*") if (made / "config.json").exists()]


@pytest.mark.parametrize("name", ["rope.freq_base", "attention.scale", "diffusion.shift_logits", "xielu.beta"])
def test_settings_without_an_architecture_are_named(name: str, tmp_path: Path, cache: Path) -> None:
    def tokenizer(writer: Any) -> None:
        byte_tokenizer(writer)
        add(writer, name, 1.0)

    file = write_model(tmp_path / "a.gguf", model_of("llama"), "llama", tokenizer=tokenizer)
    with pytest.raises(ValueError, match=f"the setting {name}"):
        caw.load_model(file, device="cpu", quantization="file")


def test_notes_of_other_programs_change_nothing(tmp_path: Path, cache: Path) -> None:
    def tokenizer(writer: Any) -> None:
        byte_tokenizer(writer)
        for name in ("someone.quantized_at", "quantize.imatrix.file", "general.url", "imatrix.datasets"):
            add(writer, name, "noted")
        add(writer, "llama.rope.scaling.finetuned", False)

    file = write_model(tmp_path / "a.gguf", model_of("llama"), "llama", tokenizer=tokenizer)
    caw.load_model(file, device="cpu", quantization="file")


def test_a_part_that_was_cut_by_bytes_is_told_from_its_name(tmp_path: Path, cache: Path) -> None:
    whole = write_model(tmp_path / "a.gguf", model_of("llama"), "llama").read_bytes()
    part = tmp_path / "a-00001-of-00002.gguf"
    part.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="it is named as part 1 of 2: join the parts"):
        caw.load_model(part, device="cpu", quantization="file")


@pytest.mark.parametrize("name", ["attention.layer_norm_rms_epsilon", "blk.1.attn_norm.weight", "embedding_length"])
def test_what_is_missing_is_named(name: str, tmp_path: Path, cache: Path) -> None:
    file = write_model(tmp_path / "a.gguf", model_of("llama"), "llama", without=(name,))
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        caw.load_model(file, device="cpu", dtype="float32")


def kind(settings: dict[str, Any], architecture: str = "llama", tensors: Any = None) -> Any:
    def write(path: Path) -> Path:
        writer = gguf.GGUFWriter(str(path), architecture)
        for name, value in settings.items():
            add(writer, name, value)
        byte_tokenizer(writer)
        for name, values in (tensors or {"token_embd.weight": np.ones((4, 4), np.float32)}).items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


LORA = {"blk.0.attn_q.weight.lora_a": np.ones((4, 4), np.float32)}
KINDS = {
    "part": (kind({"split.no": 1, "split.count": 3}), "part 2 of 3 of a split file"),
    "adapter": (kind({"general.type": "adapter", "adapter.type": "lora"}), "an adapter"),
    "adapter's tensors": (kind({}, tensors=LORA), "an adapter"),
    "projector": (kind({"general.type": "mmproj"}, "clip"), "a projector of images or sound"),
    "old projector": (kind({"clip.has_vision_encoder": True}, "clip"), "a projector of images or sound"),
    "mixture": (kind({"llama.expert_count": 8, "llama.expert_used_count": 2}), "a mixture of 8 experts"),
    "qwen2moe": (kind({"qwen2moe.expert_count": 60}, "qwen2moe"), "a mixture of 60 experts"),
    "imatrix": (kind({"general.type": "imatrix"}), "an importance matrix"),
    "other type": (kind({"general.type": "vocoder"}), "a file of type 'vocoder'"),
}


@pytest.mark.parametrize("case, way", zip(KINDS, itertools.cycle(WAYS), strict=False))
def test_a_file_is_told_what_it_is(case: str, way: str, tmp_path: Path, cache: Path) -> None:
    """The first part of a file in parts was told to be downloaded again."""
    write, said = KINDS[case]
    with pytest.raises(ValueError) as caught:
        caw.load_model(write(tmp_path / "a.gguf"), device="cpu", **WAYS[way])
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert "download it again" not in str(caught.value)


@pytest.mark.parametrize("architecture", [
    "gpt2", "falcon", "bloom", "stablelm", "nemotron", "mamba", "deci", "mistral", "gemma4", "lfm2", "phi2",
])  # fmt: skip
def test_architectures_that_were_not_compared_are_refused_by_name(
    architecture: str, tmp_path: Path, cache: Path
) -> None:
    settings = {f"{architecture}.block_count": 1}
    write = kind(settings, architecture, {"blk.0.attn_q.weight": np.ones((4, 4), np.float32)})
    with pytest.raises(ValueError, match=f"found '{architecture}' in a.gguf"):
        caw.load_model(write(tmp_path / "a.gguf"), device="cpu", dtype="float32")


def ends(**ids: int) -> Any:
    def write(writer: Any) -> None:
        byte_tokenizer(writer)
        for name, i in ids.items():
            add(writer, f"tokenizer.ggml.{name}_token_id", i)

    return write


@pytest.mark.parametrize("way", ["blocks", "numbers"])
def test_a_text_ends_where_a_turn_or_a_message_ends(way: str, tmp_path: Path, cache: Path) -> None:
    """Ids that no list of well-known tokens has: texts ran past the end of their turn."""
    file = write_model(tmp_path / "a.gguf", model_of("llama"), "llama", tokenizer=ends(eot=40, eom=41))
    model, _ = caw.load_model(file, device="cpu", **WAYS[way])
    assert {0, 40, 41} <= set(model.generation_config.eos_token_id)


def test_an_end_beyond_the_vocabulary_is_refused(tmp_path: Path, cache: Path) -> None:
    file = write_model(tmp_path / "a.gguf", model_of("llama"), "llama", tokenizer=ends(eot=4000))
    with pytest.raises(ValueError, match=r"eot_token_id in \[0, 265\]"):
        caw.load_model(file, device="cpu", dtype="float32")


@pytest.mark.parametrize(
    ("pre", "said"), [
        ("kimi-k2", "the pre-tokenizer 'kimi-k2'"), ("gtp-2", "the pre-tokenizer 'gtp-2'"),
        (None, "no tokenizer.ggml.pre"),
    ],
)  # fmt: skip
def test_pre_tokenizers_that_are_not_known_are_refused(pre: str | None, said: str, tmp_path: Path, cache: Path) -> None:
    """GPT-2's was taken for them, with other ids."""
    file = write_model(tmp_path / "a.gguf", model_of("llama"), "llama", pre=pre)
    for load in (load_tokenizer, lambda file: caw.load_model(file, device="cpu", dtype="float32")):
        with pytest.raises(ValueError, match=said):
            load(file)
