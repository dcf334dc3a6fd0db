"""Models on disk: a folder, a .gguf file and the cache of what is made of it."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import build
from quantized import dequantized, random_blocks
from tiny import save_tiny
from transformers import AutoConfig, AutoModelForCausalLM

ENDS = {"<|im_end|>": 1, "<|endoftext|>": 2}
TURNED = ("llama",)  # architectures whose rows of Q and K a file holds in turns


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}  # fmt: skip
TOKENS = ["<unk>", *ENDS, *map(chr, range(ord("a"), ord("z") + 1)), "ab", "cd"]


def stored_as(values: np.ndarray, kind: Any) -> np.ndarray:
    """A matrix as the file holds it; random blocks of their size where the gguf package cannot make any."""
    gguf = pytest.importorskip("gguf")
    if kind.name == "F32":
        return values
    if not kind.name.endswith("_K"):
        return np.asarray(gguf.quants.quantize(values, kind))
    shape = kind.value, len(values), values.shape[1] // 256, len(values)
    size = 0.02 * float(values.std() / dequantized(kind.value, random_blocks(*shape)).std())
    return random_blocks(*shape, size=size).numpy()


def write_gguf(
    path: Path, kinds: Sequence[str] = ("F32",), architecture: str = "llama", hidden: int = 32, **settings: Any
) -> tuple[Path, Any]:
    """(a GGUF file of a tiny model, the model it was made from); only one of its two ends is marked.

    kinds: types of the matrices, in turns; those of 256 numbers a block hold random numbers instead of the model's.
    """
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    path.parent.mkdir(exist_ok=True)
    dim = 128 if architecture == "qwen3" else hidden // 4  # as of real ones: transformers reads none from the file
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(
        architecture, vocab_size=len(TOKENS), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=1,
        num_attention_heads=4, head_dim=dim, max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        **({"num_key_value_heads": 4, "tie_word_embeddings": False} | settings),
    ))  # fmt: skip
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):  # which a new model has as zeros
            torch.nn.init.normal_(parameter, std=0.2)
    writer = gguf.GGUFWriter(str(path), architecture)
    for name, value in [("context_length", 64), ("embedding_length", hidden), ("block_count", 1),
                        ("feed_forward_length", 2 * hidden), ("head_count", 4),
                        ("head_count_kv", model.config.num_key_value_heads),
                        ("vocab_size", len(TOKENS)),
                        ("layer_norm_rms_eps", 1e-6), ("rope_dimension_count", dim)]:  # fmt: skip
        getattr(writer, f"add_{name}")(value)
    if architecture == "qwen3":
        writer.add_key_length(dim)
        writer.add_value_length(dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if architecture.startswith("qwen") else "gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b", "c d"])
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    matrices = 0
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        stem, _, suffix = key.rpartition(".")
        values = tensor.numpy().astype(np.float32)
        # GGUF interleaves the halves of the rotary dimensions
        if architecture in TURNED and stem.endswith(("q_proj", "k_proj")) and suffix == "weight":
            values = values.reshape(-1, 2, dim // 2, hidden).swapaxes(1, 2).reshape(len(values), hidden)
        prefix = "blk.0." if key.startswith("model.layers") else ""
        kind = gguf.GGMLQuantizationType[kinds[matrices % len(kinds)] if values.ndim > 1 else "F32"]
        matrices += values.ndim > 1
        stored = stored_as(values, kind)
        name = f"{prefix}{NAMES[stem.removeprefix('model.layers.0.')]}.{suffix}"
        writer.add_tensor(name, stored, raw_dtype=None if kind.name == "F32" else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, model


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A float32 GGUF file and its model."""
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.F32.gguf")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every attempt to reach another machine is kept and refused."""
    attempts: list[Any] = []

    def refuse(*args: Any, **kwargs: Any) -> None:
        attempts.append(args)
        raise OSError("no network")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "create_connection", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the hub's retries
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return attempts


@pytest.fixture(scope="session")
def llama() -> Any:
    return build("llama")
