"""Where texts of generate end: end tokens, the minimum, stop strings."""

from __future__ import annotations

from typing import Any

import pytest
from decoding.architectures import VOCAB, build
from generating import PROMPTS, generate, stock_greedy, text_of


@pytest.fixture
def model() -> Any:
    return build("llama")


def ends_of(model: Any, *ends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.generation_config, "eos_token_id", list(ends))


def test_minimum_is_transformers_minimum(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = stock_greedy(model, PROMPTS[0], max_new_tokens=12)
    ends_of(model, first[2], first[4], monkeypatch=monkeypatch)
    for ids, tokens in zip(PROMPTS, generate(model, min_new_tokens=4).sequences, strict=True):
        assert tokens == stock_greedy(model, ids, max_new_tokens=12, min_new_tokens=4)


def test_any_end_token_ends_a_text(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    free = generate(model).sequences
    ends_of(model, free[0][3], free[2][5], monkeypatch=monkeypatch)
    ends = {free[0][3], free[2][5], 2}
    out = generate(model)
    for tokens, whole, text, reason in zip(out.sequences, free, out.texts, out.finish_reasons, strict=True):
        at = next((i for i, t in enumerate(whole) if t in ends), len(whole) - 1)
        assert tokens == whole[: at + 1]
        assert reason == ("eos" if whole[at] in ends else "length")
        assert text == text_of([t for t in (tokens[:-1] if reason == "eos" else tokens) if t > 2])
    assert out.finish_reasons[0] == out.finish_reasons[2] == "eos"


def test_end_ids_beyond_the_vocabulary_are_ignored(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer may know end tokens that the model's logits do not have."""
    expected = generate(model).sequences
    ends_of(model, 2, VOCAB + 5, monkeypatch=monkeypatch)
    assert generate(model).sequences == expected
    generate(model, min_new_tokens=3)


def test_stop_string_over_several_tokens(model: Any) -> None:
    free = generate(model)
    tokens = free.sequences[0]
    stop = text_of(tokens[4:7])
    first = text_of(tokens).find(stop)
    out = generate(model, stop=stop)
    assert out.finish_reasons[0] == "stop"
    assert out.sequences[0] == tokens[: first + 3]
    assert out.texts[0] == text_of(tokens[:first])
    assert out.sequences[1:] == [s for s in free.sequences[1:] if stop not in text_of(s)]
