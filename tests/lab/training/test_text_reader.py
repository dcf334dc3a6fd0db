"""Readers against the plain model: whole forwards of the text and of each changed text."""

from __future__ import annotations

import pytest
import torch
from decoding.architectures import CONFIGS, POSITIONS, VOCAB, build, prompt

from caw import ops
from caw.decoding.reading import chunk_logits
from caw.testing import assert_close
from caw_lab.training.text_reader import MOST_ROWS, BranchReader, TeacherReader, TextReader, reader_for

TEXT = prompt(40, 3)


def changes_of(count: int, last: int = len(TEXT) - 1) -> list[tuple[int, int]]:
    """By ascending place, several at some; the last token among them, behind which nothing follows."""
    places = sorted([3 + (7 * number) % (last - 3) for number in range(count - 1)] + [last])
    return [(place, (TEXT[place] + 1 + number) % VOCAB) for number, place in enumerate(places)]


def read(reader: TextReader, first: int, changes: list[tuple[int, int]], horizon: int, tokens: int = 64):
    with torch.inference_mode():
        logits = reader.read(TEXT, first)
        found = {index: after.clone() for index, after in reader.changed(changes, horizon, tokens)}
    assert sorted(found) == list(range(len(changes)))
    return logits, [found[index] for index in range(len(changes))]


def as_defined(model, ids, first, last):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0, first:last].float()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture(name: str) -> None:
    model, changes = build(name), changes_of(9)
    for reader in (reader_for(model), TeacherReader(model)):
        logits, behind = read(reader, 5, changes, 6)
        assert_close(logits.float(), as_defined(model, TEXT, 4, None), "forward")
        for (place, token), after in zip(changes, behind, strict=True):
            changed, many = [*TEXT[:place], token, *TEXT[place + 1 :]], min(6, len(TEXT) - place - 1)
            assert after.shape[0] == many
            assert_close(after.float(), as_defined(model, changed, place, place + many), "forward")


@pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")
def test_many_changes_and_texts_of_other_lengths() -> None:
    """More than a forward has rows; the cache grows, and holds nothing of the text before."""
    model = build("llama")
    reader, changes = reader_for(model), changes_of(MOST_ROWS + 9)
    assert isinstance(reader, BranchReader)
    with torch.inference_mode():
        reader.read(prompt(20, 8), 2)
        list(reader.changed([(4, 7), (15, 9)], 5))
    first = read(reader, 1, changes, 4, 10_000)
    with torch.inference_mode():
        reader.read(prompt(POSITIONS, 9), 2)
    again = read(reader, 1, changes, 4, 1)
    assert torch.equal(first[0], again[0])
    assert all(torch.equal(one, other) for one, other in zip(first[1], again[1], strict=True)), "row by row"
    for (place, token), after in zip(changes, again[1], strict=True):
        changed = [*TEXT[:place], token, *TEXT[place + 1 :]]
        assert_close(after, as_defined(model, changed, place, place + len(after)), "forward")


@pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")
def test_what_two_texts_share_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def seen(model, cache, rows, ids, begin, kept):
        begun.append(begin)
        return chunk_logits(model, cache, rows, ids, begin, kept)

    monkeypatch.setattr("caw_lab.training.text_reader.chunk_logits", seen)
    monkeypatch.setattr("caw_lab.training.text_reader.MIN_SHARED", 4)
    reader, changes = reader_for(build("llama")), changes_of(5)
    new = read(reader, 9, changes, 4)
    with torch.inference_mode():
        reader.read([*TEXT[:20], *prompt(9, 5)], 15)
    again = read(reader, 9, changes, 4)
    assert begun == [0, 14, 8], "but for the places that are asked for"
    for one, other in zip((new[0], *new[1]), (again[0], *again[1]), strict=True):
        assert_close(one, other, "forward")


@pytest.mark.parametrize("kind", [reader_for, TeacherReader])
def test_what_cannot_be_read(kind) -> None:
    model = build("llama")
    with pytest.raises(ValueError, match=f"{POSITIONS} positions, long has"):
        kind(model).read([1] * (POSITIONS + 1), 1, "long")
    broken = build("qwen3")
    broken = type(broken)(broken.config).eval()
    with torch.no_grad():
        broken.get_output_embeddings().weight[3] = torch.nan
    with pytest.raises(ValueError, match="the model gives others on text"):
        kind(broken).read(TEXT, 1, "text")


def test_a_model_that_cannot_branch_is_read_by_its_own_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(model):
        raise NotImplementedError

    model = build("llama")
    monkeypatch.setattr("caw_lab.training.text_reader.ModelFacts.of", refused)
    assert isinstance(reader_for(model), TeacherReader)
