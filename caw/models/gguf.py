"""Models in .gguf files, dequantised once into a folder that later runs read."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path

from caw.io.cache import cache_root
from caw.io.show import shown
from caw.models.ends import end_token_ids
from caw.models.made_once import made_once
from caw.models.messages import one_sentence, quiet
from caw.requirements import require

CACHE_VERSION, SETTINGS_VERSION = 1, 2


def cache_folder(file: Path) -> Path:
    """Where the float32 model of a .gguf file lies or would lie; raises for a file that is not GGUF."""
    if not file.is_file():
        raise FileNotFoundError(f"expected a .gguf model file, found nothing at {file}; check the path")
    with open(file, "rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ValueError(f"expected a GGUF file (magic bytes 'GGUF'), {file} is none; download it again")
    stat = file.stat()
    mark = hashlib.sha256(f"{CACHE_VERSION} {file.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()
    return cache_root() / "models" / f"{file.stem}-{mark[:12]}"


def settings_place(file: Path) -> Path:
    """Where the settings and the tokenizer of a .gguf file lie or would lie; other versions make others."""
    whole = cache_folder(file)
    versions = [importlib.metadata.version(package) for package in ("transformers", "tokenizers")]
    mark = hashlib.sha256(repr((SETTINGS_VERSION, versions)).encode()).hexdigest()[:8]
    return whole.with_name(f"{whole.name}-settings-{mark}")


def require_gguf_packages() -> None:
    """Raise ImportError where a package that reads .gguf files is missing."""
    for package in ("gguf", "accelerate"):
        require(package, "reading .gguf files")


def check_file(file: Path, layers: bool) -> None:
    """Raise ValueError for a .gguf file that is cut off or contradicts itself, before another library believes it.

    layers: whether it must hold those that it speaks of; a file of a vocabulary alone holds none.
    """
    # numpy, which the help of a command would wait for
    from caw.models.gguf_file import GGUFFile

    read = GGUFFile(file)
    if layers:
        read.check_layers()


def dequantised(file: Path) -> str:
    """Folder with the float32 model of a .gguf file, made on the first call."""
    return made_once(cache_folder(file), lambda work: _convert(file, work))


def _convert(file: Path, work: Path) -> None:
    """Write the dequantised model, its tokenizer and where it came from into the folder `work`."""
    require_gguf_packages()
    check_file(file, layers=True)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    with quiet(), one_sentence(file):
        folder, name = str(file.parent), file.name
        loaded, report = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
        if report["missing_keys"]:  # which are random numbers now
            missing = shown(", ".join(sorted(report["missing_keys"])))
            raise ValueError(f"the file lacks tensors of the model: {missing}")
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True)
        settings = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
        # transformers does not save a model whose config says it is quantised, so the weights move to a new one
        config = AutoConfig.for_model(**settings)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(loaded.state_dict())
        model.generation_config.eos_token_id = sorted(end_token_ids(loaded, tokenizer))
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
    (work / "source.json").write_text(json.dumps({"file": file.name, "bytes": file.stat().st_size}))
