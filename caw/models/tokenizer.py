"""A model's tokenizer: transformers' own, and for detection one without transformers, whose import takes longer than
detection itself.

The ids are those of transformers' AutoTokenizer. A .gguf file's byte-level BPE is read here. Other files either show
that transformers adds nothing to `tokenizer.json`, or the backend is loaded once, compared on PROBES and cached
(`CAW_CACHE`, default ~/.cache/caw). Tokenizers with Python logic of their own, and hub ids, are loaded by transformers
each time; the caller is told.
"""

import contextlib
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from caw.io.files import cache_root, content_mark, write_whole
from caw.models.gguf import require_gguf_packages
from caw.models.gguf_file import GGUFFile
from caw.models.gguf_tokenizer import byte_level_backend, check_tokenizer, gguf_tokenizer
from caw.models.messages import one_sentence, quiet
from caw.models.sources import TokenizerSource, check_source, tokenizer_source
from caw.requirements import require, there

KEPT_VERSION = 3
GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
# entries of a tokenizer_config.json that do not change the ids of text without special tokens
HARMLESS = {
    *SPECIAL, "tokenizer_class", "backend", "model_max_length", "is_local", "local_files_only", "chat_template",
    "padding_side", "model_input_names", "processor_class",
}  # fmt: skip
TOKENIZER_FILES = (
    "tokenizer",
    "vocab",
    "merges",
    "special_tokens",
    "added_tokens",
    "spiece",
    "sentencepiece",
    "tekken",
)
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".npz")
MISTRAL_FROM = 100_000  # vocabularies larger than this may be given another pre-tokenizer
# methods between the caller and the backend; a class that overrides one is left to transformers
METHODS = (
    "__call__", "_encode_plus", "_convert_encoding", "set_truncation_and_padding", "decode", "_decode", "batch_decode",
    "__len__", "convert_ids_to_tokens",
)  # fmt: skip
PROBES = (
    "The quick brown fox, 12 345.67 times; it's <b>bold</b>\n\n\tand  spaced  out.  ",
    " leading",
    "trailing ",
    "",
    "na\u00efve cafe\u0301 \u2014 \u201cquotes\u201d \u2026 \ufb01ne \u00bd \u212b",
    "\u65e5\u672c\u8a9e \u4e2d\u6587 \ud55c\uad6d\uc5b4 \u0627\u0644\u0639 \u05e2\u05d1 \u0939\u093f \u0e44\u0e17",
    "\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \U0001d56c",
    "def f(x):\n    return x**2  # \u00a0nbsp \u200bzero\u200dwidth \ufeffmark",
    "\x00\x01\x7f control\r\nline\rends\u2028",
    "<s> </s> <unk> <pad> [CLS] [SEP] [MASK] <|endoftext|> <|im_start|>user<|im_end|> <|end|>",
    "a" * 300,
    "0123456789" * 20,
)


class FastTokenizer:
    """The methods of a transformers tokenizer that detection uses, over the same backend."""

    def __init__(self, backend: Tokenizer) -> None:
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = False
        self._backend = backend

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        return_offsets_mapping: bool = False,
        verbose: bool = True,
    ) -> dict[str, Any]:
        """Return lists "input_ids" (and "offset_mapping": characters of each token) of a text, or of several."""
        several = not isinstance(text, str)
        found = self._backend.encode_batch(list(text) if several else [text], add_special_tokens=add_special_tokens)
        encoded: dict[str, list[Any]] = {"input_ids": [encoding.ids for encoding in found]}
        if return_offsets_mapping:
            encoded["offset_mapping"] = [encoding.offsets for encoding in found]
        return dict(encoded) if several else {name: values[0] for name, values in encoded.items()}

    def decode(
        self,
        token_ids: int | Sequence[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        """Return the text of ids, without cleanup, which requires transformers and is rejected."""
        if clean_up_tokenization_spaces:
            raise NotImplementedError("this tokenizer cleans nothing up; use transformers' AutoTokenizer")
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return str(self._backend.decode(ids, skip_special_tokens=skip_special_tokens))

    def batch_decode(self, sequences: Sequence[Sequence[int]], **settings: Any) -> list[str]:
        return [self.decode(ids, **settings) for ids in sequences]

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        """Return the vocabulary entry of each id; None for unused ids."""
        return [self._backend.id_to_token(token) for token in ids]

    def get_vocab(self) -> dict[str, int]:
        return dict(self._backend.get_vocab(with_added_tokens=True))

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=True))


def load_tokenizer(name: str | Path, revision: str | None = None) -> Any:
    """Load only the tokenizer, which is enough for detection; `name` as in `load_model`, nothing is dequantized.

    revision: branch, tag or commit of a hub id, None = its main branch; files and folders have none. Raises as
    `load_model`.
    """
    found = tokenizer_source(name)
    require("transformers", f"the tokenizer of {name}")
    if found.gguf is not None:
        require_gguf_packages()
        file = GGUFFile(Path(found.folder) / found.gguf)
        check_tokenizer(file)
        with quiet(), one_sentence(name):
            return gguf_tokenizer(file)
    from transformers import AutoTokenizer

    with quiet(), one_sentence(name):
        return AutoTokenizer.from_pretrained(
            found.folder, local_files_only=found.local, revision="main" if revision is None else revision
        )


def detection_tokenizer(name: str | Path, report: Callable[[str], None]) -> Any:
    """Return a model's tokenizer for detection; `name` as in `load_model`.

    report: called with one sentence saying why, if transformers must be imported, which takes seconds.

    Raises as `load_model` does.
    """
    source = tokenizer_source(name)
    if not source.local:
        report(f"reading the tokenizer of {name} with transformers, which takes seconds; a local folder starts faster")
        return load_tokenizer(name)
    if source.gguf is None:
        backend = _plain(Path(source.folder))
    else:
        check_tokenizer(file := GGUFFile(Path(source.folder) / source.gguf))
        with one_sentence(name):
            backend = byte_level_backend(file)
    if backend is not None:
        return FastTokenizer(backend)
    kept = _kept_file(source)
    if kept.is_file():
        with contextlib.suppress(Exception):  # tokenizers has no errors of its own; a bad file is written again
            return FastTokenizer(Tokenizer.from_file(str(kept)))
    if source.gguf is None and not there("transformers") and (Path(source.folder) / "tokenizer.json").is_file():
        report(f"reading the tokenizer.json of {name} alone; 'caw-watermark[generate]' reads what its class adds")
        return FastTokenizer(Tokenizer.from_file(str(Path(source.folder) / "tokenizer.json")))
    check_source(name)
    report(f"reading the tokenizer of {name} with transformers, which takes seconds")
    loaded = load_tokenizer(name)
    reason = why_not_fast(loaded)
    if reason:
        report(f"the tokenizer of {name} requires transformers each time: {reason}")
        return loaded
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, loaded.backend_tokenizer.to_str().encode())
    except OSError as error:
        report(f"cannot keep it for later starts ({error.strerror or error}); set CAW_CACHE to a folder you can write")
    return loaded


def why_not_fast(tokenizer: Any) -> str:
    """Return why a transformers tokenizer is more than its backend; empty if it is not."""
    from transformers import PreTrainedTokenizerFast as Fast

    if not isinstance(tokenizer, Fast):
        return f"{type(tokenizer).__name__} has no backend of the tokenizers library"
    for method in METHODS:
        if getattr(type(tokenizer), method) is not getattr(Fast, method):
            return f"{type(tokenizer).__name__} has its own {method}"
    if tokenizer.split_special_tokens:
        return "it splits special tokens"
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    fast = FastTokenizer(backend)
    for text in PROBES:
        ours, theirs = (t(text, add_special_tokens=False, return_offsets_mapping=True) for t in (fast, tokenizer))
        ids = ours["input_ids"]
        if ids != theirs["input_ids"] or ours["offset_mapping"] != theirs["offset_mapping"]:
            return "its backend alone gives other ids"
        if any(fast.decode(part) != tokenizer.decode(part) for part in (ids, *([i] for i in ids))):
            return "its backend alone gives other texts"
    return "" if len(fast) == len(tokenizer) else "its backend alone has another size"


def _plain(folder: Path) -> Tokenizer | None:
    """Return the backend in a folder whose files show that transformers adds nothing to it; otherwise None."""
    files = {path.name for path in folder.iterdir() if path.name.startswith(TOKENIZER_FILES)}
    if files != {"tokenizer.json", "tokenizer_config.json"}:
        return None
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        if config.get("tokenizer_class") not in GENERIC or not config.keys() <= HARMLESS:
            return None
        backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception:  # transformers gives a better message about bad files
        return None
    added = {token.content: token.special for token in backend.get_added_tokens_decoder().values()}
    named = [config[name] for name in SPECIAL if config.get(name) is not None]
    if any(not isinstance(token, str) or not added.get(token) for token in named):
        return None
    return backend if backend.get_vocab_size() <= MISTRAL_FROM else None


def _kept_file(source: TokenizerSource) -> Path:
    """Return the cache file of a local tokenizer's backend; it changes with the tokenizer's files and the libraries."""
    folder = Path(source.folder)
    files = [folder / source.gguf] if source.gguf else [f for f in sorted(folder.iterdir()) if f.suffix not in WEIGHTS]
    marks, packages = [content_mark(f) for f in files if f.is_file()], ("transformers", "tokenizers")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages if there(name)]
    mark = hashlib.sha256("\n".join([str(KEPT_VERSION), *versions, *marks]).encode()).hexdigest()
    return cache_root() / "tokenizers" / f"{Path(source.gguf or folder).stem}-{mark[:16]}.json"
