"""Folders of models that were loaded before: commands read their weights into modules of our own (`llamas`).

What settings and which tokenizer a folder's files make is known from what transformers made of them the first time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from caw.io.files import cache_root, content_mark
from caw.models.cache_folders import listed, filled_once
from caw.models.gguf_settings import settings_model, settings_tokenizer, write_settings
from caw.models.llamas import LanguageModel, has_modules

VERSION = 1
WHOLE, INDEX, HEAD = "model.safetensors", "model.safetensors.index.json", "lm_head.weight"


def remember(folder: Path, dtype: Any, model: Any, tokenizer: Any) -> None:
    """Write down what transformers made of a folder, if modules of our own can make it.

    A cache that cannot be written costs the next start seconds, and nothing else.
    """
    entries = model.config.to_dict()
    if has_modules(entries) and not (folder / "adapter_config.json").exists():
        with contextlib.suppress(OSError):
            filled_once(
                _place(folder, dtype),
                lambda work: write_settings(work, model.config, model.generation_config, tokenizer),
                lambda made: listed(made) is not None,
            )


def read_again(folder: Path, dtype: Any) -> tuple[Any, Any] | None:
    """Return model and tokenizer of a folder that was remembered; None if it was not, or has not these weights."""
    with contextlib.suppress(OSError):
        place = _place(folder, dtype)
        model = settings_model(place) if (listed(place) or {}).get("backend_alone") else None
        if model is not None and _fill(model, folder, dtype):
            return model, settings_tokenizer(place)
    return None


def _place(folder: Path, dtype: Any) -> Path:
    """Return the cache folder for these files besides weights, these numbers and these libraries."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix in (".json", ".jinja", ".model", ".txt")]
    versions = [importlib.metadata.version(package) for package in ("transformers", "tokenizers")]
    mark = hashlib.sha256(repr((VERSION, versions, str(dtype), list(map(content_mark, files)))).encode()).hexdigest()
    return cache_root() / "models" / f"{folder.resolve().name}-{mark[:12]}"


def _fill(model: LanguageModel, folder: Path, dtype: torch.dtype) -> bool:
    """Put a folder's weights into a model; False if they are not exactly its own."""
    index = folder / INDEX
    files = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {WHOLE}
    weights: dict[str, torch.Tensor] = {}
    for name in files:
        try:
            with safe_open(folder / name, "pt") as file:
                weights |= {key: file.get_tensor(key).to(dtype) for key in file.keys()}  # noqa: SIM118
        except SafetensorError:
            return False  # transformers says what is wrong with it
    tied, table = model.config.to_dict()["tie_word_embeddings"], model.model.embed_tokens
    if tied and HEAD not in weights:
        weights[HEAD] = weights.get("model.embed_tokens.weight", torch.empty(0))
    shapes = {name: value.shape for name, value in model.named_parameters()}
    if shapes != {name: value.shape for name, value in weights.items()}:
        return False
    model.load_state_dict(weights, assign=True)
    if tied:
        model.lm_head.weight = table.weight
    return True
