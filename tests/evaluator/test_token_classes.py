"""Classes of tokens, the table of a tokenizer, and the probability of each class in a record."""

from typing import Any

import pytest
import torch
from decoding import architectures
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import caw
from caw.capacity import MASS_FLOOR, class_mass
from caw.evaluator import Evaluator, FeatureSpec
from caw.evaluator.token_classes import CLASSES, LINE_BREAK, check_tokenizer, class_table, class_table_of, classify
from caw.io.token_texts import token_texts, tokenizer_end_ids
from caw.record import Record
from caw.testing import assert_close


@pytest.mark.parametrize(
    "text, name",
    [
        ("", "space"), ("  ", "space"), ("\n\n", "line break"), (" \n", "line break"), (" 12", "digits"),
        ("7", "digits"), ("\u00b2", "digits"), (" +", "operator"), ("x", "operator"), ("xyz", "continuation"),
        (" x", "operator"), ("=\n", "operator"), ("$", "currency"), (" \u20ac5", "currency"), (".", "punctuation"),
        ("?\n", "punctuation"), ("(", "symbol"), (" \"", "symbol"), (" Tom", "capitalised"), ("A", "capitalised"),
        (" the", "short word"), (" apples", "word"), ("ing", "continuation"), ("\u4e2d", "continuation"),
    ],
)  # fmt: skip
def test_classify(text: str, name: str) -> None:
    assert CLASSES[classify(text)] == name


def test_table_with_line_ends(demo_tokenizer: Any) -> None:
    """End tokens are line breaks too; every other id differs only where its text has a break in it."""
    size = len(demo_tokenizer)
    ends, alone = class_table(demo_tokenizer, size + 5, line_ends=True), class_table(demo_tokenizer, size + 5)
    assert ends[demo_tokenizer.eos_token_id] == LINE_BREAK and alone[demo_tokenizer.eos_token_id] != LINE_BREAK
    texts = token_texts(demo_tokenizer, range(size))
    breaks = {i for i, text in enumerate(texts) if "\n" in text or "\r" in text}
    found = set(torch.nonzero(ends == LINE_BREAK)[:, 0].tolist())
    assert breaks and found == breaks | tokenizer_end_ids(demo_tokenizer)
    other = ends != LINE_BREAK
    assert torch.equal(ends[other], alone[other]) and not ends[size:].any()
    check_tokenizer(ends, demo_tokenizer, line_ends=True)


def test_table_of_a_tokenizer(demo_tokenizer: Any) -> None:
    table = class_table(demo_tokenizer, 50000)
    assert table.dtype == torch.uint8 and table.shape == (50000,)
    for text in (" the", "7", " apples", " Tom", " =", "."):
        (token,) = demo_tokenizer(text, add_special_tokens=False)["input_ids"]
        assert table[token] == classify(text)
    assert set(table.tolist()) == set(range(len(CLASSES)))
    assert not table[len(demo_tokenizer) :].any()  # ids that no text gives


def test_leading_spaces_are_kept() -> None:
    """Tokenizers of the SentencePiece kind drop the space of a token that is decoded alone."""
    vocabulary = {
        "<unk>": 0,
        "\u2581": 1,
        "\u2581the": 2,
        "\u2581number": 3,
        "ing": 4,
        "\u2581Paris": 5,
        "3": 6,
        "a": 7,
    }
    core = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    table = class_table(PreTrainedTokenizerFast(tokenizer_object=core), 8)
    names = [CLASSES[c] for c in table.tolist()]
    assert names[1:7] == ["space", "short word", "word", "continuation", "capitalised", "digits"]


def gapped(unhashable: bool = False) -> Any:
    """Eleven tokens whose ids end at 21: the end token and a digit are behind the eleventh."""
    words = {"<unk>": 0, "a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "</s>": 6, "g": 7, "h": 8, "</end>": 20, "9": 21}
    core = Tokenizer(models.BPE(words, [], unk_token="<unk>"))
    kind = type("Unhashable", (PreTrainedTokenizerFast,), {"__hash__": None}) if unhashable else PreTrainedTokenizerFast
    return kind(tokenizer_object=core, eos_token="</end>")


@pytest.mark.parametrize("unhashable", [False, True])
def test_ids_with_gaps_have_classes_to_the_last(unhashable: bool) -> None:
    tokenizer = gapped(unhashable)
    assert len(tokenizer) == 11 and tokenizer.eos_token_id == 20
    table = class_table_of(tokenizer, line_ends=True)
    assert len(table) == 22 and table[20] == LINE_BREAK and CLASSES[table[21]] == "digits"
    assert not table[9:20].any()
    assert torch.equal(class_table(tokenizer, 30, line_ends=True)[:22], table)
    check_tokenizer(table, tokenizer, line_ends=True)
    with pytest.raises(ValueError, match="0 of 11 sampled tokens differ, and it has 22 ids, the evaluator's 11; train"):
        check_tokenizer(table[:11].clone(), tokenizer, line_ends=True)


def test_another_end_token_has_another_table() -> None:
    tokenizer = gapped()
    table = class_table_of(tokenizer, line_ends=True)
    check_tokenizer(table, tokenizer, line_ends=True)
    tokenizer.eos_token = "h"
    assert table[8] != LINE_BREAK and class_table_of(tokenizer, line_ends=True)[8] == LINE_BREAK
    with pytest.raises(ValueError, match=r"[1-9] of 22 sampled tokens differ; train"):
        check_tokenizer(table, tokenizer, line_ends=True)


def test_a_table_of_another_tokenizer_is_refused(demo_tokenizer: Any) -> None:
    table = class_table(demo_tokenizer, 49152)
    check_tokenizer(table, demo_tokenizer)
    model = architectures.build("llama")
    policy = caw.CapacityPolicy(Evaluator.load("smollm2-135m"))
    policy.network.vocabulary = None  # as of one made by hand
    with pytest.raises(ValueError, match=r"token classes must match this model's tokenizer, [1-9]"):
        caw.generate(model, architectures.tokenizer(), [[5, 6, 7]], watermark=caw.KGW(key=1), policy=policy)
    moved = policy.network.for_tokenizer(architectures.tokenizer(), architectures.VOCAB)
    out = caw.generate(
        model, architectures.tokenizer(), [[5, 6, 7]], watermark=caw.KGW(key=1), policy=caw.CapacityPolicy(moved),
        max_new_tokens=3,
    )  # fmt: skip
    assert len(out.sequences[0]) == 3


def test_mass_against_a_loop() -> None:
    table = torch.randint(0, 4, (37,), dtype=torch.uint8)
    ids = torch.stack([torch.randperm(40)[:11] for _ in range(5)])  # 37, 38 and 39 are beyond the table
    ids[0, -2:], probs = -1, torch.rand(5, 11)
    probs[0, -2:] = 0
    found = class_mass(ids, probs, table, 4)
    expected = torch.zeros(5, 4)
    for b in range(5):
        for j, token in enumerate(ids[b].tolist()):
            expected[b, int(table[token]) if 0 <= token < 37 else 0] += probs[b, j]
    assert_close(found, expected, "float32")


def test_features_end_with_the_masses_of_all_positions() -> None:
    spec = FeatureSpec(1, 0, k=7, classes=len(CLASSES))
    table = torch.randint(0, len(CLASSES), (50,), dtype=torch.uint8)
    record = Record.from_logits(torch.randn(3, 50), k=9)
    window = [Record.empty(3, torch.device("cpu"), k=9), record]
    features = spec.assemble(window, table)
    assert features.shape == (3, spec.size) and spec.size == 2 * (7 + len(CLASSES))
    assert torch.equal(features[:, :14], FeatureSpec(1, 0, k=7).assemble(window))
    nothing = torch.full((3, len(CLASSES)), MASS_FLOOR).log()
    assert torch.equal(features[:, 14 : 14 + len(CLASSES)], nothing)
    expected = class_mass(record.ids[:, :7], record.probs[:, :7], table, len(CLASSES)).clamp_min(MASS_FLOOR).log()
    assert torch.equal(features[:, 14 + len(CLASSES) :], expected)


def test_a_table_is_asked_for() -> None:
    spec = FeatureSpec(classes=len(CLASSES))
    with pytest.raises(ValueError, match="require a class table"):
        spec.assemble([Record.empty(1, torch.device("cpu"))] * 3)
    with pytest.raises(ValueError, match="needs a table"):
        Evaluator(spec)
    with pytest.raises(ValueError, match="needs no table"):
        Evaluator(FeatureSpec(), token_class=torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="line_ends requires token classes"):
        FeatureSpec(line_ends=True)
    with pytest.raises(ValueError, match="classes must be 0 or"):
        FeatureSpec(classes=3)


def test_the_table_travels_with_the_weights(tmp_path: Any) -> None:
    table = torch.randint(0, len(CLASSES), (architectures.VOCAB,), dtype=torch.uint8)
    spec = FeatureSpec(0, 1, k=5, classes=len(CLASSES))
    evaluator = Evaluator(spec, 4, {"model": "m"}, table).eval()
    evaluator.save(tmp_path / "e.safetensors")
    again = Evaluator.load(tmp_path / "e.safetensors")
    assert again.spec == spec and again.token_class is not None and again.token_class.dtype == torch.uint8
    assert torch.equal(again.token_class, table)
    other = again.for_tokenizer(architectures.tokenizer(), architectures.VOCAB)
    assert other.token_class is not None and not torch.equal(other.token_class, table)
    for a, b in zip(other.weights(), evaluator.weights(), strict=True):
        assert torch.equal(a, b)
