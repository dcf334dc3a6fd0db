"""Models on disk: a folder, a .gguf file and the cache of what is made of it."""

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding.architectures import build
from models.gguf_writing import write_model
from tiny import save_tiny
from transformers import AutoConfig, AutoModelForCausalLM

ENDS = {"<|im_end|>": 1, "<|endoftext|>": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


TOKENS = ["<unk>", *ENDS, *map(chr, range(ord("a"), ord("z") + 1)), "ab", "cd"]


def letters(writer: Any) -> None:
    gguf = pytest.importorskip("gguf")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b", "c d"])
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)


def write_gguf(
    path: Path, kinds: Sequence[str] = ("F32",), architecture: str = "llama", hidden: int = 32, **settings: Any
) -> tuple[Path, Any]:
    """(a GGUF file of a tiny model, that model). kinds: of matrices, in turns; those of 256 numbers are random."""
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
    pre = "qwen2" if architecture.startswith("qwen") else "gpt-2"
    return write_model(path, model, architecture, pre=pre, tokenizer=letters, kinds=kinds), model


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.F32.gguf")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
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
