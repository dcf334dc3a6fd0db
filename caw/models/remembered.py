"""Folders of models that were loaded before: commands read their weights into modules of our own (`llamas`).

What settings and which tokenizer a folder's files make is known from what transformers made of them the first time.
"""

import contextlib
import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from caw.io.files import cache_root, content_mark
from caw.models.cache_folders import filled_once, listed
from caw.models.gguf_settings import settings_model, settings_tokenizer, write_settings
from caw.models.huge_pages import forget
from caw.models.llamas import has_modules

VERSION = 1


def remember(folder: Path, dtype: Any, model: Any, tokenizer: Any) -> None:
    """Write down what transformers made of a folder that `llamas` can make; an unwritable cache costs seconds."""
    if has_modules(model.config.to_dict()) and not (folder / "adapter_config.json").exists():
        given = model.config, model.generation_config, tokenizer
        with contextlib.suppress(OSError):
            filled_once(_place(folder, dtype), lambda work: write_settings(work, *given), listed)


def read_again(folder: Path, dtype: Any) -> tuple[Any, Any] | None:
    """Return model and tokenizer of a remembered folder; None for others and for several files, which take longer."""
    with contextlib.suppress(OSError, SafetensorError):  # transformers says what is wrong
        place = _place(folder, dtype)
        if (listed(place) or {}).get("backend_alone"):
            model = settings_model(place)
            if model is not None and _fill(model, load_file(folder / "model.safetensors"), dtype):
                return model, settings_tokenizer(place)
    return None


def _place(folder: Path, dtype: Any) -> Path:
    """Return the cache folder for these files besides weights, these numbers and these libraries."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix in (".json", ".jinja", ".model", ".txt")]
    versions = [importlib.metadata.version(package) for package in ("transformers", "tokenizers")]
    mark = hashlib.sha256(repr((VERSION, versions, dtype, list(map(content_mark, files)))).encode()).hexdigest()
    return cache_root() / "models" / f"{folder.resolve().name}-{mark[:12]}"


def _fill(model: Any, weights: dict[str, torch.Tensor], dtype: Any) -> bool:
    """Put weights into a model; False if they are not exactly its own."""
    head, tied = model.lm_head, model.config.tie_word_embeddings
    dtype = getattr(torch, model.config.dtype) if dtype == "auto" else dtype
    expected = {name: value.shape for name, value in model.named_parameters() if not (tied and value is head.weight)}
    if expected != {name: value.shape for name, value in weights.items()}:
        return False
    model.load_state_dict({name: _cast(value, dtype) for name, value in weights.items()}, strict=False, assign=True)
    if tied:
        head.weight = model.model.embed_tokens.weight
    return True


def _cast(read: torch.Tensor, dtype: Any) -> torch.Tensor:
    """Return numbers in a dtype; what they were read as takes no memory any more if it is another one."""
    numbers = read.to(dtype)
    if numbers is not read:
        forget(read)
    return numbers
