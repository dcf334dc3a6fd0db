"""The settings and tokenizer of a model, of a .gguf file or remembered of a folder: to convert them takes seconds.

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
from caw.models.tokenizer import PROBES, why_not_fast

TOKENIZER, ENTRIES, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
MODEL = "model.json"  # every entry of both configs, with what transformers' classes add


def settings_folder(file: GGUFFile) -> Path:
    """Return a folder with a file's config.json and tokenizer, created by the first call, repaired if damaged."""
    place = settings_place(file.path)
    return Path(filled_once(place, lambda work: _write(file, work), listed))


def settings_model(folder: Path) -> Any:
    """Return the model in such a folder, without weights, of our own modules; None if they do not compute it."""
    if not listed(folder):
        return None
    from caw.models.llamas import LanguageModel, has_modules

    entries = json.loads((folder / MODEL).read_text(encoding="utf-8"))
    return LanguageModel(**entries) if has_modules(entries["entries"]) else None


def settings_tokenizer(folder: Path) -> Any:
    """Return the tokenizer in such a folder, with the ids and texts of AutoTokenizer's."""
    if not (listed(folder) or {}).get("backend_alone"):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return _backend_alone(folder)


def _backend_alone(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    entries = json.loads((folder / ENTRIES).read_text(encoding="utf-8"))
    del entries["tokenizer_class"]
    if (folder / TEMPLATE).is_file():
        entries["chat_template"] = (folder / TEMPLATE).read_text(encoding="utf-8")
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / TOKENIZER), name_or_path=str(folder), **entries)


def _write(file: GGUFFile, work: Path) -> None:
    """Write config.json and the tokenizer into the folder `work`."""
    require_gguf_packages()
    from transformers import AutoConfig, GenerationConfig

    settings = config_settings(Account(file))
    with quiet(), one_sentence(file.path):
        config = AutoConfig.for_model(**settings, dtype="float32")
        write_settings(work, config, GenerationConfig.from_model_config(config), gguf_tokenizer(file))


def write_settings(work: Path, config: Any, generation: Any, tokenizer: Any) -> None:
    """Write what `settings_tokenizer` and `settings_model` read into a folder."""
    config.save_pretrained(work)
    tokenizer.save_pretrained(work)
    entries, generation = (json.loads(one.to_json_string(use_diff=False)) for one in (config, generation))
    (work / MODEL).write_text(json.dumps({"entries": entries, "generation": generation}), encoding="utf-8")
    write_list(work, backend_alone=not why_not_fast(tokenizer) and _alike(_backend_alone(work), tokenizer))


def _alike(one: Any, other: Any) -> bool:
    """Tell whether prompts have the same ids by both: the tokens around a text, the names of the special ones."""
    facts = [(t.special_tokens_map, t.chat_template, t.padding_side) for t in (one, other)]
    return facts[0] == facts[1] and one(list(PROBES))["input_ids"] == other(list(PROBES))["input_ids"]
