"""Where texts of generate end: end tokens, the minimum, stop strings."""

from __future__ import annotations

from typing import Any

import pytest
from decoding.architectures import VOCAB, build
from generating import PROMPTS, generate, stock_greedy, text_of

import caw


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


MARKS = {  # and whether the mark decides about ends by itself
    "native": (caw.KGW(key=1, delta=20.0), False),
    "exp": (caw.EXP(key=1, top_k=50), False),
    "foreign": (caw.KGW(key=1, delta=20.0, format="transformers"), True),
    "synthid": (caw.SynthID((3, 14, 15, 92, 65, 35)), True),
}


@pytest.mark.parametrize("name", MARKS)
def test_marks_decide_about_ends_only_in_foreign_formats(
    model: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends are the tokens that a strong mark drives out or brings in; with them kept no mark is at the end."""
    mark, as_default = MARKS[name]
    free = generate(model, watermark=mark)
    changed = [row.candidates for trace in free.trace or [] for row in trace if row.choice]
    ends_of(model, changed[0][1], changed[-1][0], monkeypatch=monkeypatch)
    made = {asked: generate(model, watermark=mark, mark_eos=asked).sequences for asked in (None, True, False)}
    assert made[True] != made[False]
    assert made[None] == made[as_default]
    for trace in generate(model, watermark=mark, mark_eos=False).trace or []:
        ends = {2, changed[0][1], changed[-1][0]}
        assert all(row.choice == 0 for row in trace if row.candidates[0] in ends or row.token in ends)


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


def test_the_earliest_of_several_stops_counts(model: Any) -> None:
    tokens = generate(model).sequences[0]
    stops = [text_of(tokens[6:8]), text_of(tokens[3:5]), "not in any text"]
    ends = [text_of(tokens).find(s) + len(s) for s in stops[:2]]
    out = generate(model, stop=stops)
    assert out.sequences[0] == tokens[: min(ends)]
    assert out.texts[0] == text_of(tokens[: min(text_of(tokens).find(s) for s in stops[:2])])


def test_stop_counts_only_new_text(model: Any) -> None:
    stop = text_of(PROMPTS[0][-2:])
    assert stop not in generate(model).texts[0]
    assert generate(model, PROMPTS[:1], stop=stop).finish_reasons == ["length"]
