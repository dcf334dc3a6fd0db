"""The tokenizer of a .gguf file: transformers builds it; pre-tokenizers that it does not know are added here."""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from caw.io.show import shown
from caw.models.gguf_file import GGUFFile
from caw.models.gguf_kinds import require_tokenizer

SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS = r" ?[^\s\p{L}\p{N}]+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{SHORT}|{LETTERS}|\p{{N}}{{1,3}}|{SIGNS}[\r\n]*|{BLANKS}"
QWEN2 = rf"{SHORT}|{LETTERS}|\p{{N}}|{SIGNS}[\r\n]*|{BLANKS}"
QWEN35 = rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{BLANKS}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = [rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"]
TEKKEN = rf"{CASED[0]}|{CASED[1]}|\p{{N}}|{SIGNS}[\r\n/]*|{BLANKS}"
GPT4O = rf"{CASED[0]}{SHORT}?|{CASED[1]}{SHORT}?|\p{{N}}{{1,3}}|{SIGNS}[\r\n/]*|{BLANKS}"
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{BLANKS}",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")
BLOOM = (r" ?[^(\s|.,!?…。，、।۔،)]+",)
BAILING = (rf"'(?i:[sdmt]|ll|ve|re)|{LETTERS}|\p{{N}}|{SIGNS}[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",)
SEED_CODER = (rf"{SHORT}|{LETTERS}|\p{{N}}|{SIGNS[:-2]}\r\n]+|{BLANKS}",)
EXAONE_MOE = (
    rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|{SIGNS}[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
)
# expressions by name, each splitting what the one before left
SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum",
         "modern-bert", "exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling"),
        (GPT2,),
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), (r"\p{N}", GPT2)
    ),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
         "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
        (LLAMA3,),
    ),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
        (QWEN2,),
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), (GPT4O,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), DEEPSEEK3),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), BLOOM),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), BAILING),
    "qwen35": (QWEN35,), "tekken": (TEKKEN,), "default": DEFAULT, "falcon": FALCON, "viking": (*BLOOM, r"\p{N}"),
    "deepseek-coder": DEEPSEEK_CODER, "seed-coder": SEED_CODER, "exaone-moe": EXAONE_MOE,
    "ufakzeka": (QWEN2.removeprefix(f"{SHORT}|"),), "laguna": (r"[^\n]+|[\n]+", QWEN2),
    "minicpm5": (r"\p{N}{1,3}", QWEN2.replace(r"|\p{N}|", r"|\p{N}+|")),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
}  # fmt: skip
# whole words that are tokens stay whole, whatever the merges say; a text begins with BOS unless the file says otherwise
WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
               "jina-v5-nano", "tekken")  # fmt: skip
NORMALISED = ("qwen2", "deepseek-r1-qwen", "qwen35")  # Qwen's tokenizers compose characters first
BYTES, PIECES = "gpt2", "llama"  # how a file calls byte-level BPE and SentencePiece
# settings of a tokenizer that are read, by transformers or here, or that change no id
KNOWN = {
    "model", "pre", "tokens", "token_type", "scores", "merges", "add_bos_token", "add_eos_token", "add_space_prefix",
    "bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id", "padding_token_id",
    "seperator_token_id", "mask_token_id", "cls_token_id", "fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id",
    "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id", "prefix_token_id", "suffix_token_id", "middle_token_id",
    "token_type_count",
}  # fmt: skip
OFF = ("add_sep_token", "remove_extra_whitespaces")  # would change ids where they hold
GGML = "tokenizer.ggml."
CONTROL, USER_DEFINED = 3, 4  # types of tokens


def check_tokenizer(file: GGUFFile) -> None:
    """Raise ValueError, naming the unsupported part, for a file whose tokenizer is not fully supported."""
    require_tokenizer(file)
    kind, name = file.settings.get(f"{GGML}model"), file.settings.get(f"{GGML}pre")
    if kind not in (BYTES, PIECES):
        raise _refused(file, f"a tokenizer.ggml.model {shown(kind)}", f"{BYTES!r} or {PIECES!r}")
    if kind == BYTES and name is None and not file.architecture.startswith("qwen"):
        raise _refused(file, "no tokenizer.ggml.pre", "the name of its pre-tokenizer")
    if kind == BYTES and name is not None and name not in SPLITS:
        raise _refused(file, f"the pre-tokenizer {shown(name)}", "a pre-tokenizer that is known here")
    for setting, value in file.settings.items():
        if not setting.startswith(GGML):
            continue
        short = setting.removeprefix(GGML)
        if short not in KNOWN and not (short in OFF and value is False):
            raise _refused(file, f"the setting {setting}", "settings of its tokenizer that are all known here")


def gguf_tokenizer(file: GGUFFile) -> Any:
    """Return the tokenizer of a .gguf file, all of it in its backend. Raises as `check_tokenizer`."""
    from transformers import PreTrainedTokenizerFast

    check_tokenizer(file)
    path: Path = file.path
    # class and settings of a folder around the file are another tokenizer's
    loaded = PreTrainedTokenizerFast.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
    kind, name = file.settings[f"{GGML}model"], file.settings.get(f"{GGML}pre", "qwen2")
    if kind == BYTES:
        _split(loaded.backend_tokenizer, str(name))
        if name in WHOLE_WORDS and f"{GGML}add_bos_token" not in file.settings and loaded.bos_token is not None:
            loaded.add_bos_token = True
    elif file.settings.get(f"{GGML}add_space_prefix") is False:
        _without_prefix(loaded.backend_tokenizer)
    return loaded


def byte_level_backend(file: GGUFFile) -> Tokenizer | None:
    """Return `gguf_tokenizer`'s backend without transformers, for texts without special tokens, or None."""
    if file.settings[f"{GGML}model"] != BYTES:
        return None
    tokens = file.texts(f"{GGML}tokens")
    merges = [(one, other) for one, other in (text.split(" ") for text in file.texts(f"{GGML}merges"))]
    spelled = _byte_letters()
    alphabet = set(spelled)
    vocabulary = {
        token if set(token) <= alphabet else "".join(spelled[byte] for byte in token.encode()): place
        for place, token in enumerate(tokens)
    }
    # GPT-2's own settings, which transformers takes for every such file
    backend = Tokenizer(models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix=""))
    backend.decoder = decoders.ByteLevel()
    kinds = file.settings.get(f"{GGML}token_type", ())
    control = [token for token, kind in zip(tokens, kinds, strict=False) if kind == CONTROL and set(token) <= alphabet]
    places = (file.settings.get(f"{GGML}{name}_token_id") for name in ("bos", "eos", "unknown", "padding"))
    own = [token for token, kind in zip(tokens, kinds, strict=False) if kind == USER_DEFINED and token in vocabulary]
    special = ["<|endoftext|>", *control, *(tokens[place] for place in places if place is not None)]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in own])
    _split(backend, str(file.settings.get(f"{GGML}pre", "qwen2")))
    return backend


def _byte_letters() -> str:
    """The letter that stands for each byte in vocabularies of byte-level BPE (Radford et al. 2019)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return "".join(chr(byte if byte in plain else next(others)) for byte in range(256))


def _split(backend: Any, name: str) -> None:
    splits: list[Any] = [pre_tokenizers.Split(Regex(expression), behavior="isolated") for expression in SPLITS[name]]
    if SPLITS[name][-1] == GPT2:  # its own form, which is the fastest
        splits[-1:] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    else:
        splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    if name in NORMALISED:
        backend.normalizer = normalizers.NFC()
    backend.model.ignore_merges = name in WHOLE_WORDS


def _without_prefix(backend: Any) -> None:
    """Return SentencePiece without a space before the text."""
    if isinstance(backend.pre_tokenizer, pre_tokenizers.Metaspace):
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=False)
    elif isinstance(backend.normalizer, normalizers.Sequence):
        backend.normalizer = normalizers.Replace(" ", "▁")


def _refused(file: GGUFFile, found: str, wanted: str) -> ValueError:
    return ValueError(
        f"expected {wanted} in {file.path.name}, found {found}, with which texts would have other ids; use another "
        "file, or the model that it was converted from"
    )
