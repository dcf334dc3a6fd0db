"""Detection's tokenizer gives what transformers' gives: ids, characters, texts; and says when it needs transformers."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tiny import save_tiny, tiny_tokenizer
from transformers import PreTrainedTokenizerFast

import caw
from caw.models import load_tokenizer
from caw.models.tokenizer import PROBES, FastTokenizer, detection_tokenizer, why_not_fast

PLANES = [(0x20, 0x7F), (0xA0, 0x24F), (0x370, 0x5FF), (0x900, 0xE7F), (0x1E00, 0x2BFF), (0x3040, 0x9FFF),
          (0xAC00, 0xD7A3), (0xFB00, 0xFFFD), (0x1F300, 0x1FAFF), (0, 0x10FFFF)]  # fmt: skip


def random_texts(count: int) -> list[str]:
    rng, texts = random.Random(5), []
    for _ in range(count):
        pieces = []
        for _ in range(rng.randrange(1, 12)):
            low, high = rng.choice(PLANES)
            letters = [chr(c) for c in (rng.randint(low, high) for _ in range(rng.randrange(1, 9)))]
            pieces.append("".join(c for c in letters if not 0xD800 <= ord(c) < 0xE000))
        texts.append(rng.choice([" ", "", "\n", "  ", "\t", ". ", "<|im_end|>"]).join(pieces))
    return texts


def refuse(message: str) -> None:
    raise AssertionError(message)


def assert_same(ours: Any, theirs: Any, texts: list[str]) -> None:
    got, expected = (t(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
                     for t in (ours, theirs))  # fmt: skip
    assert got["input_ids"] == expected["input_ids"] and got["offset_mapping"] == expected["offset_mapping"]
    for text, ids in zip(texts, got["input_ids"], strict=True):
        alone = ours(text, add_special_tokens=False)["input_ids"]
        assert alone == theirs(text, add_special_tokens=False)["input_ids"] == ids
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)
        if ids:  # of no texts transformers makes one
            assert ours.batch_decode([[i] for i in ids]) == theirs.batch_decode([[i] for i in ids])
        assert [ours.decode(i) for i in ids[:5]] == [theirs.decode(i) for i in ids[:5]]
    assert len(ours) == len(theirs)
    # a table of weights is refused or taken by what the ids stand for
    assert ours.convert_ids_to_tokens(range(len(ours))) == theirs.convert_ids_to_tokens(list(range(len(theirs))))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenizers"


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    return save_tiny(tmp_path / "tiny")


def configure(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_demo_model(demo_model: Any, demo_tokenizer: Any) -> None:
    """Its cached folder is there once the model was loaded, and read without transformers."""
    ours = detection_tokenizer("smollm2-135m", refuse)
    assert isinstance(ours, FastTokenizer)
    assert_same(ours, demo_tokenizer, [*PROBES, *random_texts(60)])


def test_a_folder_is_read_as_it_is(folder: Path, cache: Path) -> None:
    ours = detection_tokenizer(folder, refuse)
    assert isinstance(ours, FastTokenizer) and not cache.exists()
    assert_same(ours, load_tokenizer(folder), [*PROBES, *random_texts(60)])
    mark = caw.KGW(key=1)
    text = "the sky is blue because the air scatters blue light"
    assert caw.detect(text, ours, mark) == caw.detect(text, load_tokenizer(folder), mark)


@pytest.mark.parametrize(
    "change",
    [
        {"add_prefix_space": True}, {"tokenizer_class": "GPT2Tokenizer"}, {"extra_special_tokens": ["light"]},
        {"unk_token": "sky"}, {"eos_token": {"content": "<|end|>", "__type": "AddedToken"}},
        {"added_tokens_decoder": {"5": {"content": "blue", "special": False}}},
    ],
)  # fmt: skip
def test_what_python_adds_is_kept_once(change: dict[str, Any], folder: Path, cache: Path) -> None:
    """Whatever a configuration changes, the ids are those of transformers, the first time and later."""
    configure(folder, **change)
    said: list[str] = []
    first = detection_tokenizer(folder, said.append)
    assert len(said) == 1 and "with transformers, which takes seconds" in said[0]
    [kept] = cache.iterdir()
    again = detection_tokenizer(folder, refuse)
    assert not isinstance(first, FastTokenizer) and isinstance(again, FastTokenizer)
    assert_same(again, load_tokenizer(folder), [*PROBES, "the sky is blue light", *random_texts(60)])

    kept.write_bytes(kept.read_bytes()[:100])  # damaged: made anew
    assert not isinstance(detection_tokenizer(folder, said.append), FastTokenizer) and len(said) == 2
    assert isinstance(detection_tokenizer(folder, refuse), FastTokenizer)


def test_a_changed_file_is_read_anew(folder: Path, cache: Path) -> None:
    sizes = set()
    for prefix, side in ((True, "right"), (False, "left")):
        configure(folder, add_prefix_space=prefix, padding_side=side)
        os.utime(folder / "tokenizer_config.json", (1, 1))
        sizes.add((folder / "tokenizer_config.json").stat().st_size)
        if prefix:
            detection_tokenizer(folder, [].append)
    assert len(sizes) == 1, "size and time do not tell them apart"
    said: list[str] = []
    assert not isinstance(detection_tokenizer(folder, said.append), FastTokenizer)
    assert len(said) == 1 and len(list(cache.iterdir())) == 2


class OwnDecode(PreTrainedTokenizerFast):
    def _decode(self, *args: Any, **kwargs: Any) -> str:
        return super()._decode(*args, **kwargs).upper()


def test_tokenizers_that_do_more_are_left_to_transformers(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = OwnDecode(tokenizer_object=tiny_tokenizer().backend_tokenizer)
    assert why_not_fast(tokenizer) == "OwnDecode has its own _decode"
    splitting = tiny_tokenizer()
    splitting.split_special_tokens = True
    assert "splits" in why_not_fast(splitting)
    assert "no backend" in why_not_fast(object())
    assert why_not_fast(tiny_tokenizer()) == ""

    configure(folder, add_prefix_space=True)
    monkeypatch.setattr("caw.models.tokenizer.load_tokenizer", lambda name: tokenizer)
    for _ in range(2):  # each time, and said each time
        said: list[str] = []
        assert detection_tokenizer(folder, said.append) is tokenizer
        assert len(said) == 2 and "requires transformers each time: OwnDecode has its own _decode" in said[1]
    assert not cache.exists()


def test_a_hub_id_is_left_to_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caw.models.tokenizer.load_tokenizer", lambda name: name)
    said: list[str] = []
    assert detection_tokenizer("owner/name", said.append) == "owner/name"
    assert said == ["reading the tokenizer of owner/name with transformers, which takes seconds; "
                    "a local folder starts faster"]  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs a file in the way of a folder")
def test_a_cache_that_cannot_be_written_is_said(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAW_CACHE", str(tmp_path / "file"))
    configure(folder, add_prefix_space=True)
    said: list[str] = []
    assert detection_tokenizer(folder, said.append) is not None
    assert len(said) == 2 and "CAW_CACHE" in said[1]


@pytest.mark.parametrize("name", ["no-such-model", "/no/such/folder", "none.gguf"])
def test_bad_names_raise_as_loading_does(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such|does not exist|nothing at"):
        detection_tokenizer(name, refuse)


def test_cleaning_up_is_refused(folder: Path) -> None:
    with pytest.raises(NotImplementedError, match="AutoTokenizer"):
        detection_tokenizer(folder, refuse).decode([5], clean_up_tokenization_spaces=True)


@pytest.mark.slow
def test_a_gguf_file_before_its_model_was_loaded(cache: Path, demo_tokenizer: Any) -> None:
    """The demo model's: read without transformers, at once."""
    found = detection_tokenizer("smollm2-135m", refuse)
    assert isinstance(found, FastTokenizer)
    assert_same(found, demo_tokenizer, [*PROBES, *random_texts(100)])
