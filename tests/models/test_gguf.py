"""GGUF files: converted once, into a cache that no broken run damages."""

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

import caw
from caw.models import cache_folders, gguf


def test_gguf_is_converted_once(gguf_file: tuple[Path, Any], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, original = gguf_file
    model, tokenizer = caw.load_model(path, device="cpu", dtype="float32")
    for key, tensor in original.state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor), key
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, original.eval()(ids).logits)
    assert tokenizer("abz")["input_ids"] == [tokenizer.convert_tokens_to_ids(t) for t in ("ab", "z")]
    assert model.generation_config.eos_token_id == [1, 2], "GGUF keeps one end, the tokenizer knows both"
    (made,) = cache.iterdir()
    assert made.name.startswith("tiny.F32-")

    def never(*args: Any) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(gguf, "_convert", never)
    again, _ = caw.load_model(str(path), device="cpu", dtype="float32")
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert not again.training
    assert not any(p.requires_grad for p in again.parameters())


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
    assert leftover.name.startswith(cache_folders.PARTIAL)
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
    original, target = gguf._convert, gguf.cache_folder(gguf_file[0])

    def overtaken(file: Path, work: Path) -> None:
        target.mkdir()
        original(file, target)
        (target / "source.json").write_text(json.dumps("the other's"))
        original(file, work)

    monkeypatch.setattr(gguf, "_convert", overtaken)
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
