"""What texts begin with is read once, and what is stored of them is what it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoding import architectures
from tiny import tiny_model, tiny_tokenizer

from caw.testing import assert_close
from caw_lab.training.labels import EncodedText, LabelledText, encode
from caw_lab.training.recording import record_encoded

SOLUTIONS = ["5", "She has 7 * 6 = 42.\n#### 42", "Yes", "the sky is blue " * 6 + "1", "a 2"]
PREFIX = "".join(f"Question: what is {i} + {i}?\nAnswer: {i} + {i} = {2 * i}\n#### {2 * i}\n\n" for i in (2, 3))


@pytest.fixture(scope="module")
def tiny():
    tokenizer = tiny_tokenizer()
    return tiny_model(len(tokenizer)), tokenizer


def stores(model, coded, folder, monkeypatch, **options):
    """(positions with a shared prefix, positions without, shapes of every forward with)."""
    lengths = []
    hook = model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    shared = record_encoded(model, coded, folder / "shared", progress=False, **options)
    hook.remove()
    monkeypatch.setattr("caw.models.shared_prefix.MIN_SHARED", 10**6)
    return shared, record_encoded(model, coded, folder / "whole", progress=False, **options), lengths


def assert_equal_records(shared, whole):
    for name in ("values", "logsumexp", "entropy"):
        actual, expected = (torch.from_numpy(np.array(store.arrays[name])) for store in (shared, whole))
        assert_close(actual, expected, "forward")


@pytest.mark.parametrize("batch_tokens", [1, 200, 4096], ids=["one-by-one", "few", "all-at-once"])
def test_a_shared_prefix_is_read_once_and_changes_nothing(tiny, tmp_path, monkeypatch, batch_tokens):
    model, tokenizer = tiny
    texts = [LabelledText("toy", "train", i, "Q" * (3 * i), s, ((0, 1),)) for i, s in enumerate(SOLUTIONS)]
    coded = [encode(tokenizer, text, prefix=PREFIX) for text in texts]
    shared, whole, lengths = stores(model, coded, tmp_path, monkeypatch, batch_tokens=batch_tokens)
    assert lengths[0].numel() > 32 and sum(shape.numel() for shape in lengths) < sum(len(c.ids) for c in coded)
    for name in ("token", "key", "row", "document"):
        assert np.array_equal(shared.arrays[name], whole.arrays[name])
    assert_equal_records(shared, whole)
    assert torch.equal(torch.from_numpy(shared.agree), torch.from_numpy(whole.agree))


def test_texts_that_differ_in_their_last_token_only_share_no_row_that_is_kept(tiny, tmp_path, monkeypatch):
    """The longest prefix there can be: three records before the reference are still kept of each text."""
    model, tokenizer = tiny
    coded = [encode(tokenizer, LabelledText("toy", "train", 0, "Q" * 60, s, ((0, 1),))) for s in ("12345", "12346")]
    shared, whole, lengths = stores(model, coded, tmp_path, monkeypatch)
    assert lengths[0][1] == coded[0].first - 4  # p_j needs the logits of place j - 1, and p of first - 3 is kept
    assert_equal_records(shared, whole)


def test_copies_of_the_prefix_are_bounded(tiny, tmp_path, monkeypatch):
    model, tokenizer = tiny
    coded = [encode(tokenizer, LabelledText("toy", "train", i, "Q" * 60, f"{i}", ((0, 1),))) for i in range(9)]
    shared, whole, lengths = stores(model, coded, tmp_path, monkeypatch, batch_tokens=40)
    rows = max(1, 4 * 40 // lengths[0][1])
    assert 1 < rows < 9 and max(shape[0] for shape in lengths) == rows
    assert_equal_records(shared, whole)


@pytest.mark.parametrize("name", ["qwen2-window", "mistral", "gemma2", "longrope", "no cache"])
def test_models_whose_prefix_cannot_be_shared_read_every_text_whole(name, tmp_path, monkeypatch):
    model = architectures.build("llama" if name in ("longrope", "no cache") else name)
    if name == "longrope":
        monkeypatch.setattr(model.config, "rope_parameters", {"rope_type": "longrope"})
    if name == "no cache":
        monkeypatch.setattr("caw.models.shared_prefix.DynamicCache", type(None))
    text = LabelledText("toy", "train", 0, "", "", ())
    coded = [EncodedText(text, (*range(3, 50), last, 7), 47, (True, False)) for last in (5, 6)]
    shared, whole, lengths = stores(model, coded, tmp_path, monkeypatch)
    assert lengths[-1] == (2, 49)  # whole texts
    assert_equal_records(shared, whole)
