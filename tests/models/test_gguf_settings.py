"""The settings and the tokenizer of a .gguf file: kept whole or made anew, and those of transformers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from models.conftest import write_gguf
from models.test_tokenizer import assert_same
from transformers import AutoTokenizer

from caw.models import gguf, gguf_settings
from caw.models.cache_folders import LIST, listed
from caw.models.gguf_file import GGUFFile
from caw.models.gguf_settings import settings_folder, settings_tokenizer
from caw.models.gguf_tokenizer import gguf_tokenizer
from caw.models.sources import tokenizer_source
from caw.models.tokenizer import PROBES


@pytest.fixture
def made(gguf_file: tuple[Path, Any], cache: Path) -> Path:
    return settings_folder(GGUFFile(gguf_file[0]))


def test_the_tokenizer_is_that_of_transformers(made: Path) -> None:
    ours, theirs = settings_tokenizer(made), AutoTokenizer.from_pretrained(made)
    assert listed(made) == {"backend_alone": True}
    assert_same(ours, theirs, [*PROBES, "abz<|im_end|>cd"])
    assert ours.special_tokens_map == theirs.special_tokens_map and ours.chat_template == theirs.chat_template
    assert (ours.padding_side, ours.model_input_names) == (theirs.padding_side, theirs.model_input_names)
    assert ours.added_tokens_decoder == theirs.added_tokens_decoder


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_tokenizer_beside_the_file_is_not_taken(architecture: str, tmp_path: Path) -> None:
    file, _ = write_gguf(tmp_path / "alone" / "a.gguf", architecture=architecture)
    other = tmp_path / "beside" / "a.gguf"
    other.parent.mkdir()
    other.write_bytes(file.read_bytes())
    (other.parent / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    alone, beside = (gguf_tokenizer(GGUFFile(path)) for path in (file, other))
    assert type(alone) is type(beside)
    assert alone.backend_tokenizer.to_str() == beside.backend_tokenizer.to_str()


def test_a_tokenizer_that_is_more_than_its_backend_is_left_to_transformers(
    gguf_file: tuple[Path, Any], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_settings, "why_not_fast", lambda tokenizer: "it splits special tokens")
    made = settings_folder(GGUFFile(gguf_file[0]))
    assert listed(made) == {"backend_alone": False}
    calls, original = [], AutoTokenizer.from_pretrained
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *a, **k: calls.append(a) or original(*a, **k))
    assert settings_tokenizer(made)("ab")["input_ids"] and calls == [(made,)]


DAMAGE = {
    "truncated": lambda made: os.truncate(made / "tokenizer.json", 100),
    "changed": lambda made: (made / "config.json").write_text(
        (made / "config.json").read_text().replace('"vocab_size"', '"vocab_sise"')
    ),
    "missing": lambda made: (made / "tokenizer_config.json").unlink(),
    "another file": lambda made: (made / "vocab.json").write_text("{}"),
    "no list": lambda made: (made / LIST).unlink(),
    "no sense": lambda made: (made / LIST).write_text("[1]"),
    "no numbers": lambda made: (made / LIST).write_bytes(b"\xff\x00"),
    "empty": lambda made: [path.unlink() for path in made.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_made_anew(damage: str, made: Path, gguf_file: tuple[Path, Any]) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    DAMAGE[damage](made)
    assert listed(made) is None
    assert settings_folder(GGUFFile(gguf_file[0])) == made
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before
    assert list(made.parent.iterdir()) == [made]


def test_another_file_or_version_has_another_folder(
    made: Path, gguf_file: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy = tmp_path / gguf_file[0].name
    copy.write_bytes(gguf_file[0].read_bytes())
    first = settings_folder(GGUFFile(copy))
    os.utime(copy, ns=(1, 1))
    names = {made, first, settings_folder(GGUFFile(copy))}
    monkeypatch.setattr(gguf.importlib.metadata, "version", lambda package: "99.0")
    assert len({*names, settings_folder(GGUFFile(copy))}) == 4


def test_detection_finds_the_folder_unless_it_is_damaged(made: Path, gguf_file: tuple[Path, Any]) -> None:
    assert tokenizer_source(gguf_file[0]).folder == str(made)
    (made / LIST).write_text(json.dumps({}))
    assert tokenizer_source(gguf_file[0]).gguf == gguf_file[0].name
