"""Damage of changed tokens against its definition: whole forwards, transformers' own greedy decoding."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model, tiny_tokenizer

from caw.fitting.damage import DamageSettings, choose_places, final_answer, measure_damage
from caw.testing import assert_close


@pytest.fixture(scope="module")
def tiny():
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


def greedy(model, ids, count):
    """New tokens of transformers' greedy decoding."""
    if count < 1:
        return []
    given = torch.tensor([ids])
    out = model.generate(
        given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=count, pad_token_id=0
    )
    return out[0, len(ids) :].tolist()


def log_probs(model, ids):
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].double().log_softmax(1)


@pytest.mark.parametrize("batch_size, batch_tokens", [(1, 1), (8, 512)])
def test_damage_is_that_of_the_definition(tiny, batch_size, batch_tokens):
    model, tokenizer = tiny
    prompt, budget = tokenizer("the sky is")["input_ids"], 14
    new = greedy(model, prompt, budget)
    places = [0, 3, len(new) - 1]
    settings = DamageSettings(alternatives=2, max_new_tokens=budget, batch_size=batch_size, batch_tokens=batch_tokens)
    found = measure_damage(model, tokenizer, prompt, places, settings)
    assert [d.place for d in found] == [0, 0, 3, 3, len(new) - 1, len(new) - 1]
    plain = log_probs(model, [*prompt, *new])
    for d in found:
        here = len(prompt) + d.place
        row = plain[here - 1]
        assert d.original == new[d.place] != d.candidate
        assert_close(d.gap, float(row[d.original] - row[d.candidate]), "capacity")
        assert int((row > row[d.candidate]).sum()) in (1, 2)  # the second or third of all
        ids = [*prompt, *new]
        ids[here] = d.candidate
        changed = log_probs(model, ids)
        behind = range(here + 1, len(ids))
        expected = sum(float(plain[j - 1, ids[j]] - changed[j - 1, ids[j]]) for j in behind)
        assert_close(d.fall, expected, "capacity") if behind else None
        ended = d.candidate == tokenizer.eos_token_id
        assert list(d.rolled_out) == ([] if ended else greedy(model, ids[: here + 1], budget - d.place - 1))
    assert found[-1].fall == 0.0 and found[-1].rolled_out == ()


def test_answers_are_compared(tiny, monkeypatch):
    from types import SimpleNamespace

    model, tokenizer = tiny
    text = tokenizer(" is 7 and")["input_ids"]
    prompt = tokenizer("the sky")["input_ids"]
    seven = next(i for i, t in enumerate(text) if "7" in tokenizer.decode([t]))
    calls = []

    def fake(model_, tokenizer_, prompts, **options):
        calls.append(options["max_new_tokens"])
        if len(calls) == 1:
            return SimpleNamespace(sequences=[text], texts=[tokenizer.decode(text)])
        return SimpleNamespace(sequences=[text[len(p) - len(prompt) :] for p in prompts])

    monkeypatch.setattr("caw.fitting.damage.generate", fake)
    places, settings = [0, seven, seven + 1], DamageSettings(max_new_tokens=20)
    before, at, behind = measure_damage(model, tokenizer, prompt, places, settings)
    assert before.answer_kept is True and at.answer_kept is False and behind.answer_kept is True
    assert calls == [20, 19]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("so 12 and\n#### 1,234\nmore", "1234"),
        ("he has 12 of 1,250.5.", "1250.5"),
        ("it is -3", "-3"),
        ("no number", None),
        ("#### ", None),
        ("", None),
    ],
)
def test_final_answer(text, expected):
    assert final_answer(text) == expected


def test_places_are_chosen_by_the_seed():
    places = choose_places(50, 5, 1)
    assert places == choose_places(50, 5, 1) != choose_places(50, 5, 2)
    assert places == sorted(set(places)) and len(places) == 5 and max(places) < 49
    assert choose_places(3, 5, 0) == [0, 1] and choose_places(1, 5, 0) == [] == choose_places(0, 5, 0)


def test_bad_places_and_silent_prompts_are_named(tiny):
    model, tokenizer = tiny
    prompt = tokenizer("the sky is")["input_ids"]
    with pytest.raises(ValueError, match="places must be in"):
        measure_damage(model, tokenizer, prompt, [99], DamageSettings(max_new_tokens=5))
    assert measure_damage(model, tokenizer, prompt, [], DamageSettings(max_new_tokens=5)) == []
    drawn = measure_damage(model, tokenizer, prompt, settings=DamageSettings(max_new_tokens=6, count=2, seed=3))
    assert [d.place for d in drawn] == choose_places(6, 2, 3)
