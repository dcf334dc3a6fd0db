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
from tiny import save_tiny
from transformers import LlamaConfig, LlamaForCausalLM

ENDS = {"<|im_end|>": 1, "<|endoftext|>": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def write_gguf(
    path: Path, kinds: Sequence[str] = ("F32",), architecture: str = "llama", **settings: Any
) -> tuple[Path, Any]:
    """(a GGUF file of a tiny Llama, the model it was made from); only one of its two ends is marked.

    kinds: types of the matrices, in turns. architecture: what the file says it is.
    """
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    tokens = ["<unk>", *ENDS, *map(chr, range(ord("a"), ord("z") + 1)), "ab", "cd"]
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokens), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        **({"num_key_value_heads": 4, "tie_word_embeddings": False} | settings),
    ))  # fmt: skip
    writer = gguf.GGUFWriter(str(path), architecture)
    for name, value in [("context_length", 64), ("embedding_length", 32), ("block_count", 1),
                        ("feed_forward_length", 64), ("head_count", 4),
                        ("head_count_kv", model.config.num_key_value_heads),
                        ("vocab_size", len(tokens)),
                        ("layer_norm_rms_eps", 1e-6), ("rope_dimension_count", 8)]:  # fmt: skip
        getattr(writer, f"add_{name}")(value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(["a b", "c d"])
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
             "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
             "post_attention_layernorm": "ffn_norm"}  # fmt: skip
    matrices = 0
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        short = key.removesuffix(".weight").removeprefix("model.layers.0.")
        values = tensor.numpy().astype(np.float32)
        if short.endswith(("q_proj", "k_proj")):  # GGUF interleaves the halves of the rotary dimensions
            heads = len(values) // 8
            values = values.reshape(heads, 2, 4, 32).swapaxes(1, 2).reshape(len(values), 32)
        prefix = "blk.0." if key.startswith("model.layers") else ""
        kind = gguf.GGMLQuantizationType[kinds[matrices % len(kinds)] if values.ndim > 1 else "F32"]
        matrices += values.ndim > 1
        stored = values if kind.name == "F32" else gguf.quants.quantize(values, kind)
        writer.add_tensor(f"{prefix}{names[short]}.weight", stored, raw_dtype=None if kind.name == "F32" else kind)
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
