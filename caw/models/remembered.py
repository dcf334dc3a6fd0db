"""Folders of models that were loaded before: commands read their weights into modules of our own (`llamas`).

What settings and which tokenizer a folder's files make is known from what transformers made of them the first time.
"""

import contextlib
import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from caw.io.files import cache_root, content_mark
from caw.models.cache_folders import filled_once, listed
from caw.models.gguf_settings import settings_model, settings_tokenizer, write_settings
from caw.models.llamas import has_modules

VERSION = 1
WHOLE, INDEX, HEAD = "model.safetensors", "model.safetensors.index.json", "lm_head.weight"


def remember(folder: Path, dtype: torch.dtype, model: Any, tokenizer: Any) -> None:
    """Write down what transformers made of a folder, if modules of our own can make it.

    A cache that cannot be written costs the next start seconds, and nothing else.
    """
    if has_modules(model.config.to_dict()) and not (folder / "adapter_config.json").exists():
        given = model.config, model.generation_config, tokenizer
        with contextlib.suppress(OSError):
            filled_once(
                _place(folder, dtype), lambda work: write_settings(work, *given), lambda made: bool(listed(made))
            )


def read_again(folder: Path, dtype: torch.dtype) -> tuple[Any, Any] | None:
    """Return model and tokenizer of a folder that was remembered; None if it was not, or has not these weights."""
    with contextlib.suppress(OSError, SafetensorError):  # transformers says what is wrong
        place = _place(folder, dtype)
        if (listed(place) or {}).get("backend_alone"):
            model, weights = settings_model(place), _weights(folder, dtype)
            if model is not None and _fill(model, weights):
                return model, settings_tokenizer(place)
    return None


def _place(folder: Path, dtype: torch.dtype) -> Path:
    """Return the cache folder for these files besides weights, these numbers and these libraries."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix in (".json", ".jinja", ".model", ".txt")]
    versions = [importlib.metadata.version(package) for package in ("transformers", "tokenizers")]
    mark = hashlib.sha256(repr((VERSION, versions, dtype, list(map(content_mark, files)))).encode()).hexdigest()
    return cache_root() / "models" / f"{folder.resolve().name}-{mark[:12]}"


def _weights(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    index, weights = folder / INDEX, dict[str, torch.Tensor]()
    for name in set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {WHOLE}:
        with safe_open(folder / name, "pt") as file:
            weights |= {key: file.get_tensor(key).to(dtype) for key in file.keys()}  # noqa: SIM118
    return weights


def _fill(model: Any, weights: dict[str, torch.Tensor]) -> bool:
    """Put weights into a model; False if they are not exactly its own."""
    tied, table = model.config.tie_word_embeddings, weights.get("model.embed_tokens.weight", torch.empty(0))
    if tied:
        weights = {HEAD: table} | weights
    shapes = {name: value.shape for name, value in model.named_parameters()}
    if shapes != {name: value.shape for name, value in weights.items()} or (tied and weights[HEAD] is not table):
        return False
    model.load_state_dict(weights, assign=True)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    return True
