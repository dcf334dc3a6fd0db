"""Files as an attacker would write them: refused in one sentence, or every tensor lies within the file."""

import struct
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models.conftest import write_gguf
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import caw
from caw.models import DEMO_MODEL, load_tokenizer
from caw.models.gguf_file import GGUFFile
from caw.models.sources import file_or_folder

gguf = pytest.importorskip("gguf")
UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 6, 7, 8, 9, 10
F32, Q4_0, IQ2_XXS = 0, 2, 16


def text(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if length is None else length) + content


def setting(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int = F32, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def file_of(*parts: bytes, tensors: int = 0, data: int = 256, version: int = 3, count: int | None = None) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, len(parts) - tensors if count is None else count)
    whole = head + b"".join(parts)
    return whole + bytes(-len(whole) % 32 + data)


def numbers(kind: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + values


SETTINGS = {
    "block_count": "num_hidden_layers", "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "context_length": "max_position_embeddings", "tokenizer.ggml.eos_token_id": "eos_token_id",
}  # fmt: skip
MOST = 2**64 - 1
ALIGNMENT = b"general.alignment"
HOSTILE = {
    "other endianness": (file_of(version=3 << 24), "version"),
    "old": (file_of(version=1), "version 1"),
    "more settings than bytes": (file_of(count=MOST), "settings|bytes too early|name"),
    "more tensors than bytes": (file_of(data=0)[:8] + struct.pack("<QQ", MOST, 0), "too early"),
    "endless key": (file_of(text(b"", MOST)), "a name of 18446744073709551615 bytes"),
    "endless text": (file_of(setting(b"a", STRING, text(b"", MOST))), "too early"),
    "text that wraps around": (file_of(setting(b"a", STRING, text(b"", 2**64 - 8))), "too early"),
    "endless list": (file_of(setting(b"a", ARRAY, numbers(UINT64, 2**61))), "too early"),
    "endless list of texts": (file_of(setting(b"a", ARRAY, numbers(STRING, MOST))), "inside a list of texts"),
    "text in a list that wraps around": (
        file_of(setting(b"a", ARRAY, numbers(STRING, 2, text(b"", 2**64 - 8)))),
        "inside a list of texts",
    ),
    "lists in lists": (file_of(setting(b"a", ARRAY, numbers(ARRAY, 1) * 9)), "lists in lists"),
    "unknown type": (file_of(setting(b"a", 13, bytes(8))), "unknown type 13"),
    "list of unknown type": (file_of(setting(b"a", ARRAY, numbers(99, 1, bytes(8)))), "unknown type 99"),
    "one key twice": (file_of(*[setting(b"a", BOOL, b"\0")] * 2), "two settings 'a'"),
    "no UTF-8 in a key": (file_of(setting(b"\xff", BOOL, b"\0")), "not UTF-8"),
    "no UTF-8 in a text": (file_of(setting(b"a", STRING, text(b"\xc3"))), "not UTF-8"),
    "alignment 0": (file_of(setting(ALIGNMENT, UINT32, bytes(4))), "an alignment of 0"),
    "alignment 12": (file_of(setting(ALIGNMENT, UINT32, b"\x0c\0\0\0")), "an alignment of 12"),
    "alignment true": (file_of(setting(ALIGNMENT, BOOL, b"\1")), "an alignment of True"),
    "alignment 8.0": (file_of(setting(ALIGNMENT, FLOAT32, struct.pack("<f", 8))), "an alignment of 8.0"),
    "alignment in text": (file_of(setting(ALIGNMENT, STRING, text(b"32"))), "an alignment of '32'"),
    "alignment in a list": (file_of(setting(ALIGNMENT, ARRAY, numbers(UINT32, 1, bytes(4)))), "an alignment of array"),
    "alignment beyond the file": (
        file_of(setting(ALIGNMENT, UINT64, struct.pack("<Q", 2**63)), tensor(b"t", (4,)), tensors=1),
        "its end inside 't'",
    ),
    "no dimensions": (file_of(tensor(b"t", ()), tensors=1), "0 dimensions"),
    "five dimensions": (file_of(tensor(b"t", (1,) * 5), tensors=1), "5 dimensions"),
    "endless dimensions": (file_of(text(b"t") + b"\xff" * 4, tensors=1), "4294967295 dimensions"),
    "dimension of 0": (file_of(tensor(b"t", (4, 0)), tensors=1), "a shape"),
    "product of 2^64": (file_of(tensor(b"t", (2**32, 2**32)), tensors=1), "its end inside 't'"),
    "product of 2^256": (file_of(tensor(b"t", (MOST,) * 4), tensors=1), "its end inside 't'"),
    "product that is small modulo 2^64": (file_of(tensor(b"t", (2**63 + 2, 2)), tensors=1), "its end inside 't'"),
    "rows of half a block": (file_of(tensor(b"t", (16, 2), Q4_0), tensors=1), "no whole blocks of Q4_0"),
    "offset beyond the file": (file_of(tensor(b"t", (4,), offset=2**20), tensors=1), "its end inside 't'"),
    "offset that wraps around": (file_of(tensor(b"t", (4,), offset=2**64 - 32), tensors=1), "its end inside 't'"),
    "offset beside the grid": (file_of(tensor(b"t", (4,), offset=8), tensors=1), "place 8"),
    "unknown blocks beyond the file": (file_of(tensor(b"t", (256,), IQ2_XXS, 2**20), tensors=1), "its end inside 't'"),
    "one name twice": (
        file_of(tensor(b"t", (4,)), tensor(b"t", (4,), offset=32), tensors=2),
        "two tensors of one name",
    ),
    "one place twice": (file_of(tensor(b"a", (4,)), tensor(b"b", (4,)), tensors=2), "in the same place"),
    "places that overlap": (
        file_of(tensor(b"b", (4,), offset=64), tensor(b"a", (40,), offset=0), tensors=2),
        "'a' and 'b' in the same place",
    ),
    "name of 65 bytes": (file_of(tensor(b"t" * 65, (4,)), tensors=1), "a name of 65 bytes"),
    "no UTF-8 in a name": (file_of(tensor(b"\xff", (4,)), tensors=1), "not UTF-8"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_that_lies_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    content, said = HOSTILE[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"the GGUF file must be complete, found .*({said})") as caught:
        GGUFFile(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400 + len(str(path))


def test_a_sound_file_of_the_same_parts_is_read(tmp_path: Path) -> None:
    parts = [
        setting(b"a", STRING, text("\u00e9".encode())),
        setting(b"b", ARRAY, numbers(UINT32, 0)),
        setting(b"c", ARRAY, numbers(STRING, 1, text(b"x"))),
        setting(ALIGNMENT, UINT32, b"\x40\0\0\0"),
    ]
    whole = file_of(*parts, tensor(b"t" * 64, (4, 2)), tensor(b"u", (32, 1), Q4_0, 64), tensors=2)
    path = tmp_path / "sound.gguf"
    path.write_bytes(whole)
    file = GGUFFile(path)
    assert file.settings["a"] == "\u00e9" and len(file.settings["b"]) == 0 and file.settings["c"] is None
    first, second = file.tensors.values()
    assert (first.shape, first.bytes, second.shape, second.bytes) == ((2, 4), 32, (1, 32), 18)
    assert second.offset - first.offset == 64 and first.offset % 64 == 0
    assert file.array(second).shape == (1, 18) and file.architecture == ""
    assert file.why_not_blocks().startswith("its architecture is ''")


def test_settings_of_a_real_file_are_those_that_transformers_reads(demo_model: Any) -> None:
    file, config = GGUFFile(file_or_folder(DEMO_MODEL)), demo_model.config
    read = {name.removeprefix("llama."): value for name, value in file.settings.items()}
    assert file.architecture == config.model_type == "llama"
    assert read["attention.layer_norm_rms_epsilon"] == pytest.approx(config.rms_norm_eps, rel=1e-7)
    assert read["rope.freq_base"] == config.rope_parameters["rope_theta"]
    assert read["rope.dimension_count"] == config.hidden_size // config.num_attention_heads
    for ours, theirs in SETTINGS.items():
        assert read[ours] == getattr(config, theirs), ours
    assert ("output.weight" not in file.tensors) == config.tie_word_embeddings
    assert file.tensors["token_embd.weight"].shape == (config.vocab_size, config.hidden_size)
    assert read["tokenizer.ggml.eos_token_id"] in demo_model.generation_config.eos_token_id


def test_a_file_of_a_vocabulary_alone_gives_its_tokenizer(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["<unk>", "a", "b", "ab"])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert load_tokenizer(path)("ab", add_special_tokens=False)["input_ids"] == [3]
    with pytest.raises(
        ValueError, match="GGUF file must be complete, found a block count of 32 and tensors of layers 'none'"
    ):
        caw.load_model(path, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", ("Q4_1", "Q8_0"))[0]
    return path.read_bytes(), min(info.offset for info in GGUFFile(path).tensors.values())


CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3)
QUIETLY = settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def changed(sound: tuple[bytes, int], changes: list[tuple[float, int]], path: Path) -> Path:
    content = bytearray(sound[0])
    for place, value in changes:
        content[int(place * sound[1])] ^= value
    path.write_bytes(content)
    return path


@QUIETLY
@given(CHANGES)
def test_changed_bytes_never_lead_outside_the_file(
    sound: tuple[bytes, int], tmp_path: Path, changes: list[tuple[float, int]]
) -> None:
    try:
        file = GGUFFile(changed(sound, changes, tmp_path / "changed.gguf"))
    except ValueError as error:
        assert "\n" not in str(error)
        return
    for info in file.tensors.values():
        assert 0 < info.offset <= info.offset + info.bytes <= len(sound[0])
        if info.bytes:
            assert file.array(info).size == info.bytes
    file.why_not_blocks()


@settings(QUIETLY, max_examples=30)
@given(CHANGES)
def test_loading_a_changed_file_gives_a_model_or_one_sentence(
    sound: tuple[bytes, int], tmp_path: Path, cache: Path, changes: list[tuple[float, int]]
) -> None:
    path = changed(sound, changes, tmp_path / "changed.gguf")
    try:
        model, _ = caw.load_model(path, device="cpu", quantization="file")
    except (ValueError, OSError) as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
    else:
        assert all(not p.is_meta for p in model.parameters())


LIES = {
    "layers": (b"llama.block_count", struct.pack("<II", UINT32, 2**31 - 1)),
    "two layers more": (b"llama.block_count", struct.pack("<II", UINT32, 3)),
    "heads": (b"llama.attention.head_count", struct.pack("<II", UINT32, 0)),
    "width": (b"llama.embedding_length", struct.pack("<II", UINT32, 2**32 - 1)),
}


@pytest.mark.parametrize("options", [{"quantization": "file"}, {"dtype": "float32"}], ids=["blocks", "numbers"])
@pytest.mark.parametrize("lie", LIES)
def test_settings_that_do_not_fit_the_tensors_are_refused_soon(
    lie: str, options: dict[str, str], sound: tuple[bytes, int], tmp_path: Path, cache: Path
) -> None:
    """Two thousand million layers would be made one by one; two would be made, of random numbers."""
    key, value = LIES[lie]
    whole, path = sound[0], tmp_path / "lie.gguf"
    place = whole.index(text(key)) + 8 + len(key)
    path.write_bytes(whole[:place] + value + whole[place + 8 :])
    with pytest.raises(ValueError) as caught:
        caw.load_model(path, device="cpu", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "count,held,fits",
    [(2, (0, 1), True), (1, (0, 1), False), (3, (0, 1), False), (2, (0, 2), False), (2, ("0", "00"), False),
     (0, (), False), (None, (0,), False)],
)  # fmt: skip
def test_layers_are_those_that_the_tensors_have(
    count: int | None, held: tuple[int | str, ...], fits: bool, tmp_path: Path
) -> None:
    says = [] if count is None else [setting(b"llama.block_count", UINT32, struct.pack("<I", count))]
    tensors = [tensor(f"blk.{number}.t".encode(), (4,), offset=32 * at) for at, number in enumerate(held)]
    path = tmp_path / "layers.gguf"
    path.write_bytes(
        file_of(setting(b"general.architecture", STRING, text(b"llama")), *says, *tensors, tensors=len(tensors))
    )
    with (
        nullcontext() if fits else pytest.raises(ValueError, match=f"a block count of {count} and tensors of layers '")
    ):
        GGUFFile(path).check_layers()


@pytest.mark.parametrize("case", ["endless list of texts", "product of 2^64", "one place twice"])
def test_other_libraries_never_see_a_file_that_lies(
    case: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its blocks are not computed with, transformers and the gguf package read it."""

    def never(*args: object, **options: object) -> None:
        raise AssertionError("read by transformers")

    for auto in (AutoConfig, AutoTokenizer, AutoModelForCausalLM):
        monkeypatch.setattr(auto, "from_pretrained", never)
    path = tmp_path / "hostile.gguf"
    path.write_bytes(HOSTILE[case][0])
    for load in (partial(caw.load_model, device="cpu", dtype="float32"), load_tokenizer):
        with pytest.raises(ValueError, match=f"the GGUF file must be complete, found .*({HOSTILE[case][1]})"):
            load(path)
