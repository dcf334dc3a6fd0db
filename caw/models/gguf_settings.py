"""The settings and tokenizer of a .gguf file, converted once, because that takes seconds.

transformers parses a tokenizer.json several times when it loads one. Where a tokenizer is no more than its backend
(`why_not_fast`), the backend's file is read alone, which takes a third of the time and half of the memory.
"""

import json
from pathlib import Path
from typing import Any

from caw.models.cache_folders import filled_once, listed, write_list
from caw.models.gguf import require_gguf_packages, settings_place
from caw.models.gguf_account import Account
from caw.models.gguf_families import config_settings
from caw.models.gguf_file import GGUFFile
from caw.models.gguf_tokenizer import gguf_tokenizer
from caw.models.messages import one_sentence, quiet
from caw.models.tokenizer import why_not_fast

TOKENIZER, ENTRIES, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"


def settings_folder(file: GGUFFile) -> Path:
    """Return a folder with config.json and the tokenizer of a file, created by the first call and repaired if
    damaged.
    """
    place = settings_place(file.path)
    return Path(filled_once(place, lambda work: _write(file, work), lambda made: listed(made) is not None))


def settings_tokenizer(folder: Path) -> Any:
    """Return the tokenizer in such a folder, with the ids and texts of AutoTokenizer's."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not (listed(folder) or {}).get("backend_alone"):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    entries = json.loads((folder / ENTRIES).read_text(encoding="utf-8"))
    del entries["tokenizer_class"]
    if (folder / TEMPLATE).is_file():
        entries["chat_template"] = (folder / TEMPLATE).read_text(encoding="utf-8")
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / TOKENIZER), name_or_path=str(folder), **entries)


def _write(file: GGUFFile, work: Path) -> None:
    """Write config.json and the tokenizer into the folder `work`."""
    require_gguf_packages()
    from transformers import AutoConfig

    settings = config_settings(Account(file))
    with quiet(), one_sentence(file.path):
        AutoConfig.for_model(**settings).save_pretrained(work)
        tokenizer = gguf_tokenizer(file)
        tokenizer.save_pretrained(work)
        alone = not why_not_fast(tokenizer)
    write_list(work, backend_alone=alone)
