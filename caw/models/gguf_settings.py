"""The settings and the tokenizer of a .gguf file, made out of it once, because that takes seconds.

transformers parses a tokenizer.json several times when it loads one. Where a tokenizer is no more than its backend
(`why_not_fast`), the backend's file is read alone, which takes a third of the time and half of the memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from caw.models.gguf import require_gguf_packages, settings_place
from caw.models.made_once import listed, made_once, write_list
from caw.models.messages import one_sentence, quiet
from caw.models.tokenizer import why_not_fast

ONE_CLASS = ("llama", "qwen2", "qwen3")  # architectures whose config alone says which class reads their tokenizers
TOKENIZER, ENTRIES, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"


def settings_folder(file: Path) -> Path:
    """A folder with config.json and the tokenizer of a .gguf file, made by the first call, and again if it was damaged.

    GGUFFile must have read the file: it refuses what is broken before another library reads it or a folder is made.
    """
    return Path(made_once(settings_place(file), lambda work: _write(file, work), lambda made: listed(made) is not None))


def settings_tokenizer(folder: Path) -> Any:
    """The tokenizer in such a folder: the ids and texts of AutoTokenizer's."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not (listed(folder) or {}).get("backend_alone"):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    entries = json.loads((folder / ENTRIES).read_text(encoding="utf-8"))
    del entries["tokenizer_class"]
    if (folder / TEMPLATE).is_file():
        entries["chat_template"] = (folder / TEMPLATE).read_text(encoding="utf-8")
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / TOKENIZER), name_or_path=str(folder), **entries)


def tokenizer_class(config: Any, folder: Path) -> Any:
    """What AutoTokenizer would make of a .gguf file with this config in this folder; itself where that is not known.

    AutoTokenizer reads the whole file for its config once more, which was nearly half of the first start.
    """
    from transformers import TOKENIZER_MAPPING, AutoTokenizer, PreTrainedTokenizerFast

    if config.model_type not in ONE_CLASS or (folder / ENTRIES).exists():  # settings beside the file may name a class
        return AutoTokenizer
    return TOKENIZER_MAPPING.get(type(config), PreTrainedTokenizerFast)


def _write(file: Path, work: Path) -> None:
    """Write config.json and the tokenizer into the folder `work`."""
    require_gguf_packages()
    from transformers import AutoConfig, AutoTokenizer

    with quiet(), one_sentence(file):
        folder, name = str(file.parent), file.name
        config = AutoConfig.from_pretrained(folder, gguf_file=name, local_files_only=True)
        kind = tokenizer_class(config, file.parent)
        kind.from_pretrained(folder, gguf_file=name, local_files_only=True).save_pretrained(work)
        config.save_pretrained(work)
        # its class may add to what the file has: Qwen's adds a normalisation of characters
        tokenizer = AutoTokenizer.from_pretrained(work, local_files_only=True)
        alone = not why_not_fast(tokenizer)
        if alone:
            (work / TOKENIZER).write_text(tokenizer.backend_tokenizer.to_str(), encoding="utf-8")
    write_list(work, backend_alone=alone)
