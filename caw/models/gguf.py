"""Models in .gguf files, dequantized once into a cache folder."""

import hashlib
import importlib.metadata
import json
from pathlib import Path

from caw.io.files import cache_root, content_mark
from caw.models.cache_folders import filled_once
from caw.models.ends import end_token_ids
from caw.models.messages import one_sentence, quiet
from caw.requirements import require, there

CACHE_VERSION, SETTINGS_VERSION = 3, 5


def is_gguf(place: Path) -> bool:
    """Return whether this is a .gguf file: by its ending, or by its first bytes where the name has none (Ollama's)."""
    return place.suffix == ".gguf" or (place.is_file() and begins_gguf(place))


def begins_gguf(file: Path) -> bool:
    """Return whether a file begins as the format does."""
    with open(file, "rb") as stream:
        return stream.read(4) == b"GGUF"


def cache_folder(file: Path) -> Path:
    """Return the cache folder of a .gguf file's float32 model; raises for a file that is not GGUF."""
    if not file.is_file():
        raise FileNotFoundError(f"expected a .gguf model file, found nothing at {file}; check the path")
    if not begins_gguf(file):
        raise ValueError(f"expected a GGUF file (magic bytes 'GGUF'), {file} is none; download it again")
    mark = hashlib.sha256(f"{CACHE_VERSION} {content_mark(file)}".encode()).hexdigest()
    return cache_root() / "models" / f"{file.stem}-{mark[:12]}"


def settings_place(file: Path) -> Path:
    """Return the cache folder of a .gguf file's settings and tokenizer; each version has its own."""
    whole = cache_folder(file)
    versions = [importlib.metadata.version(package) for package in ("transformers", "tokenizers") if there(package)]
    mark = hashlib.sha256(repr((SETTINGS_VERSION, versions)).encode()).hexdigest()[:8]
    return whole.with_name(f"{whole.name}-settings-{mark}")


def require_gguf_packages() -> None:
    """Raise ImportError if a package that reads .gguf files is missing."""
    for package in ("gguf", "accelerate"):
        require(package, "reading .gguf files")


def dequantized(file: Path) -> str:
    """Return the folder with the float32 model of a .gguf file, created by the first call."""
    return filled_once(cache_folder(file), lambda work: _convert(file, work))


def _convert(file: Path, work: Path) -> None:
    """Write the dequantized model, its tokenizer and its source into the folder `work`."""
    require_gguf_packages()
    # these import torch and numpy, which the help of a command would wait for
    from caw.models.gguf_file import GGUFFile
    from caw.models.gguf_kinds import require_model
    from caw.models.gguf_tokenizer import check_tokenizer, gguf_tokenizer
    from caw.models.quantized_gguf import dequantized_model

    source = GGUFFile(file)
    require_model(source)
    check_tokenizer(source)
    model = dequantized_model(source)
    with quiet(), one_sentence(file):
        tokenizer = gguf_tokenizer(source)
        model.generation_config.eos_token_id = sorted(end_token_ids(model, tokenizer))
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
    (work / "source.json").write_text(json.dumps({"file": file.name, "bytes": file.stat().st_size}))
