"""Tokenizers of .gguf files: pre-tokenizers by name, whole words, BOS and the space before a text."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from models.gguf_writing import MERGES, TOKENS, add, byte_tokenizer, model_of, write_model
from tokenizers import Tokenizer, pre_tokenizers

import caw
from caw import ops
from caw.models import load_tokenizer
from caw.models.gguf_file import GGUFFile
from caw.models.gguf_tokenizer import SPLITS, byte_level_backend, gguf_tokenizer
from caw.models.tokenizer import PROBES, FastTokenizer

gguf = pytest.importorskip("gguf")
ROOT = Path(__file__).parents[2]
DIGITS = ["total:    42", "1. one\n\n2. two", "x   5", "apples        120\npears          45", "2024-11-25 and 3.14"]


def texts() -> list[str]:
    found = [*DIGITS]
    for file in sorted((ROOT / "docs").glob("*.md")):
        parts = [part for part in re.split(r"\n\n+", file.read_text(encoding="utf-8")) if re.search(r"\d", part)]
        found += parts[:6]
    found += [f"{'n' * i}{' ' * i}{7**i}\t{i / 7:.{i}f}" for i in range(20)]
    return list(itertools.islice(found, 80))


def test_the_demo_models_ids_are_its_own() -> None:
    """Its file names `smollm`, which splits digits one by one; GPT-2's was taken, with other ids of 16 of 80 files."""
    loaded = load_tokenizer("smollm2-135m")
    own = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
    # as SmolLM2's tokenizer.json has it
    own.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    gpt2 = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    given = texts()
    assert len(given) == 80
    wanted = [encoding.ids for encoding in own.encode_batch(given, add_special_tokens=False)]
    assert loaded(given, add_special_tokens=False)["input_ids"] == wanted
    assert [encoding.ids for encoding in gpt2.encode_batch(given, add_special_tokens=False)] != wanted


TEXT = "It's 12345 x=1;  y\n\n\tHelloWorld don'T  1,234"
PIECES = {
    "gpt-2": ["It", "'s", "Ġ12345", "Ġx", "=", "1", ";", "Ġ", "Ġy", "ĊĊ", "ĉ", "HelloWorld", "Ġdon", "'", "T", "Ġ",
              "Ġ1", ",", "234"],
    "smollm": ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġx", "=", "1", ";", "Ġ", "Ġy", "ĊĊ", "ĉ", "HelloWorld",
               "Ġdon", "'", "T", "ĠĠ", "1", ",", "2", "3", "4"],
    "llama-bpe": ["It", "'s", "Ġ", "123", "45", "Ġx", "=", "1", ";", "Ġ", "Ġy", "ĊĊ", "ĉHelloWorld", "Ġdon", "'T",
                  "Ġ", "Ġ", "1", ",", "234"],
    "qwen2": ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġx", "=", "1", ";", "Ġ", "Ġy", "ĊĊ", "ĉHelloWorld", "Ġdon",
              "'T", "Ġ", "Ġ", "1", ",", "2", "3", "4"],
    "tekken": ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġx", "=", "1", ";", "Ġ", "Ġy", "ĊĊ", "ĉHello", "World",
               "Ġdon", "'T", "Ġ", "Ġ", "1", ",", "2", "3", "4"],
    "gpt-4o": ["It's", "Ġ", "123", "45", "Ġx", "=", "1", ";", "Ġ", "Ġy", "ĊĊ", "ĉHello", "World", "Ġdon'T", "Ġ", "Ġ",
               "1", ",", "234"],
}  # fmt: skip


@pytest.fixture(scope="module")
def llama() -> Any:
    return model_of("llama")


def tokenizer_of(path: Path, model: Any, pre: str | None = "gpt-2", write: Any = None) -> Any:
    return gguf_tokenizer(GGUFFile(write_model(path, model, "llama", pre=pre, tokenizer=write)))


@pytest.mark.parametrize("name", PIECES)
def test_a_text_is_split_as_the_name_says(name: str, llama: Any, tmp_path: Path) -> None:
    """Written out by hand from the expressions."""
    backend = tokenizer_of(tmp_path / "a.gguf", llama, name).backend_tokenizer
    assert [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(TEXT)] == PIECES[name]


@pytest.mark.parametrize("name", SPLITS)
def test_every_name_loses_nothing(name: str, llama: Any, tmp_path: Path) -> None:
    """All expressions compile, and pieces put together are the text."""
    backend = tokenizer_of(tmp_path / "a.gguf", llama, name).backend_tokenizer
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(TEXT)[0][0]
    assert "".join(piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(TEXT)) == spelled


def changed(tokens: list[str] = TOKENS, **settings: Any) -> Any:
    def write(writer: Any) -> None:
        if tokens is TOKENS:
            byte_tokenizer(writer)
        else:
            writer.add_tokenizer_model("gpt2")
            writer.add_token_list(tokens)
            writer.add_token_merges(MERGES)
            writer.add_bos_token_id(0)
        for name, value in settings.items():
            add(writer, f"tokenizer.ggml.{name}", value)

    return write


@pytest.mark.parametrize(
    ("pre", "said", "begins"),
    [("gpt-2", None, False), ("llama-bpe", None, True), ("tekken", None, True), ("gpt-2", True, True),
     ("llama-bpe", False, False), ("qwen2", None, False)],
)  # fmt: skip
def test_a_text_begins_with_bos_where_the_file_or_the_name_says_so(
    pre: str, said: bool | None, begins: bool, llama: Any, tmp_path: Path
) -> None:
    settings = {} if said is None else {"add_bos_token": said}
    tokenizer = tokenizer_of(tmp_path / "a.gguf", llama, pre, changed(**settings))
    assert (tokenizer(" the")["input_ids"][0] == 0) == begins
    assert tokenizer(" the", add_special_tokens=False)["input_ids"] == [TOKENS.index("Ġthe")]


@pytest.mark.parametrize("name", SPLITS)
def test_without_transformers_the_ids_are_the_same(name: str, llama: Any, tmp_path: Path) -> None:
    written = changed([*TOKENS, "house", "<think>", "<|control|>"], token_type=[1] * len(TOKENS) + [1, 4, 3])
    path = write_model(tmp_path / "a.gguf", llama, "llama", pre=name, tokenizer=written)
    fast, theirs = FastTokenizer(byte_level_backend(GGUFFile(path))), gguf_tokenizer(GGUFFile(path))
    assert fast.get_vocab() == theirs.get_vocab() and len(fast) == len(theirs)
    for text in (*PROBES, *DIGITS, TEXT, "a house<think>house<|control|><|endoftext|>"):
        ours, other = (t(text, add_special_tokens=False, return_offsets_mapping=True) for t in (fast, theirs))
        assert (ours["input_ids"], ours["offset_mapping"]) == (other["input_ids"], other["offset_mapping"]), text


def test_words_that_are_tokens_stay_whole(llama: Any, tmp_path: Path) -> None:
    """Llama 3's tokenizer takes a whole word that is a token, which its merges may not reach."""
    tokens = [*TOKENS, "house"]
    for pre, whole in (("llama-bpe", True), ("gpt-2", False)):
        tokenizer = tokenizer_of(tmp_path / f"{pre}.gguf", llama, pre, changed(tokens))
        assert (tokenizer("house", add_special_tokens=False)["input_ids"] == [len(tokens) - 1]) == whole


def sentencepiece(prefix: bool | None) -> Any:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]

    def write(writer: Any) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * 259 + [-9.0, -8.0, -7.0, -3.0, -2.0, -1.0])
        writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * 6)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        if prefix is not None:
            writer.add_add_space_prefix(prefix)

    return write


@pytest.mark.parametrize(("prefix", "first"), [(None, 264), (True, 264), (False, 263)])
def test_the_space_before_a_text(prefix: bool | None, first: int, llama: Any, tmp_path: Path) -> None:
    """`add_space_prefix` = false was read and forgotten."""
    tokenizer = tokenizer_of(tmp_path / "a.gguf", llama, None, sentencepiece(prefix))
    assert tokenizer("ab")["input_ids"] == [1, first]
    assert tokenizer("ab ab", add_special_tokens=False)["input_ids"] == [first, 264]


@pytest.mark.parametrize("setting", ["add_sep_token", "remove_extra_whitespaces", "normalizer.lowercase"])
def test_settings_of_tokenizers_that_nothing_reads_are_named(setting: str, llama: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"found the setting tokenizer.ggml.{setting}"):
        tokenizer_of(tmp_path / "a.gguf", llama, write=changed(**{setting: True}))


@pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")
def test_all_ways_to_a_tokenizer_give_the_same_ids(llama: Any, tmp_path: Path, cache: Path) -> None:
    """Alone, kept from an earlier start, beside blocks and beside numbers."""
    file = write_model(tmp_path / "a.gguf", llama, "llama", pre="smollm")
    alone = load_tokenizer(file)
    loaded = [caw.load_model(file, device="cpu", **way)[1] for way in ({"quantization": "file"}, {"dtype": "float32"})]
    kept = load_tokenizer(file)
    for text in (*DIGITS, TEXT):
        assert len({tuple(t(text)["input_ids"]) for t in (alone, *loaded, kept)}) == 1, text
    assert alone.backend_tokenizer.to_str() == kept.backend_tokenizer.to_str()
