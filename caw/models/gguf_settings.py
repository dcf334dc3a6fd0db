"""The settings and the tokenizer of a .gguf file, made out of it once, because that takes seconds."""

from __future__ import annotations

from pathlib import Path

from caw.models.gguf import cache_folder, require_gguf_packages
from caw.models.gguf_file import GGUFFile
from caw.models.made_once import made_once
from caw.models.messages import one_sentence, quiet


def settings_folder(file: Path) -> str:
    """A folder with config.json and the tokenizer of a .gguf file: of its dequantised model if there is one."""
    whole = cache_folder(file)
    if (whole / "config.json").is_file():
        return str(whole)
    GGUFFile(file)  # refuses what is broken before another library reads it or a folder is made
    return made_once(whole.with_name(f"{whole.name}-settings"), lambda work: _write(file, work))


def _write(file: Path, work: Path) -> None:
    """Write config.json and the tokenizer into the folder `work`."""
    require_gguf_packages()
    from transformers import AutoConfig, AutoTokenizer

    with quiet(), one_sentence(file):
        folder, name = str(file.parent), file.name
        AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True).save_pretrained(work)
        AutoConfig.from_pretrained(folder, gguf_file=name, local_files_only=True).save_pretrained(work)
