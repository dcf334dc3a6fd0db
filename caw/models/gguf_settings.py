"""The settings and the tokenizer of a .gguf file, made out of it once, because that takes seconds."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from caw.models.gguf import PARTIAL, cache_folder, require_gguf_packages
from caw.models.gguf_file import GGUFFile
from caw.models.messages import one_sentence, quiet


def settings_folder(file: Path) -> str:
    """A folder with config.json and the tokenizer of a .gguf file: of its dequantised model if there is one."""
    whole = cache_folder(file)
    target = whole.with_name(f"{whole.name}-settings")
    for folder in (whole, target):
        if (folder / "config.json").is_file():
            return str(folder)
    GGUFFile(file)  # refuses what is broken before another library reads it
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(file, target)
    except PermissionError as error:
        raise PermissionError(
            f"cannot write the model cache {target.parent}; set CAW_CACHE to a folder you can write"
        ) from error
    return str(target)


def _write(file: Path, target: Path) -> None:
    require_gguf_packages()
    from transformers import AutoConfig, AutoTokenizer

    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=PARTIAL))
    try:
        with quiet(), one_sentence(file):
            folder, name = str(file.parent), file.name
            AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True).save_pretrained(work)
            AutoConfig.from_pretrained(folder, gguf_file=name, local_files_only=True).save_pretrained(work)
        try:
            work.rename(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
            # another process was faster; its copy is just as good
    finally:
        shutil.rmtree(work, ignore_errors=True)
