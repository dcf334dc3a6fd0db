"""Healing against its definition: whole forwards of the model behind every change."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import tiny_model, tiny_tokenizer

from caw.detectable.splicing import rejoined
from caw.record import Record
from caw.testing import assert_close
from caw_lab.training.healing import TAIL, HealSettings, loop_begins, measure_healing

SETTINGS = HealSettings(gamma=0.5, most_lost=6.0, places=6, horizon=12, rejoin=2, max_new_tokens=48, batch=5, ahead=3)
PROMPTS = [[5, 77, 200], [9, 10], [300, 301, 12, 40], [8], [77, 78]]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_model(len(tokenizer))


@pytest.fixture(scope="module")
def texts(model, tokenizer):
    return sorted(measure_healing(model, tokenizer, PROMPTS, SETTINGS), key=lambda text: text.number)


@torch.inference_mode()
def greedy(model, ids, count):
    for _ in range(count):
        ids = [*ids, int(model(torch.tensor([ids])).logits[0, -1].argmax())]
    return ids


def test_texts_are_the_models_own_and_records_are_of_their_tokens(model, texts):
    assert [text.number for text in texts] == list(range(len(PROMPTS)))
    for text, prompt in zip(texts, PROMPTS, strict=True):
        assert list(text.prompt) == prompt
        assert [*prompt, *text.tokens] == greedy(model, prompt, len(text.tokens))
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *text.tokens]])).logits[0, len(prompt) - 1 :]
        expected = Record.from_logits(logits)
        assert_close(text.records.values, expected.values, "forward")


def test_changes_are_other_likely_tokens_before_a_loop(texts):
    changes = [(text, change) for text in texts for change in text.changes]
    assert len(changes) >= 10
    for text, change in changes:
        record = text.records.take(torch.tensor([change.place]))
        own, other = (record.values[0][(record.ids[0] == token).nonzero()[0, 0]] for token in
                      (text.tokens[change.place], change.token))  # fmt: skip
        assert change.token != text.tokens[change.place] and own - other <= SETTINGS.most_lost
        assert 1 <= change.place < loop_begins(text.tokens) - TAIL
    assert all(len(text.changes) <= SETTINGS.places for text in texts)
    assert all(sorted(c.place for c in text.changes) == [c.place for c in text.changes] for text in texts)


def test_rollouts_are_the_models_own_and_rejoin_by_definition(model, texts):
    found = []
    for text in texts:
        for number, change in enumerate(text.changes):
            begun = [*text.prompt, *text.tokens[: change.place], change.token]
            with torch.inference_mode():
                expected = Record.from_logits(model(torch.tensor([begun])).logits[0, -1:])
            assert_close(text.after.take(torch.tensor([number])).values, expected.values, "forward")
            rolled = greedy(model, begun, SETTINGS.horizon)[len(text.prompt) :]
            ends = [
                length for length in range(change.place + 2, change.place + change.length + 1)
                if rejoined(text.tokens, rolled[:length], change.place, SETTINGS.rejoin) is not None
            ]  # fmt: skip
            assert change.rejoined == bool(ends)
            assert change.same <= change.rejoined
            if ends:
                assert change.length == ends[0] - change.place
            ahead, first = text.ahead[number], change.place + 1
            assert ahead.ids[:, 0].tolist() == rolled[first : first + min(SETTINGS.ahead, change.length)]
            found.append(change.rejoined)
    assert any(found) and not all(found)


def test_the_batch_changes_no_label(model, tokenizer, texts):
    again = sorted(measure_healing(model, tokenizer, PROMPTS, replace(SETTINGS, batch=2)), key=lambda t: t.number)
    assert [text.changes for text in again] == [text.changes for text in texts]


def test_a_loop_begins_where_its_first_run_does():
    assert loop_begins([1, 2, 3, 4], 2) == 4
    assert loop_begins([9, 1, 2, 7, 1, 2, 5], 2) == 1
    assert loop_begins([1] * 9, 8) == 0


@pytest.mark.parametrize(("name", "value", "said"), [
    ("gamma", 0.0, "gamma must be"), ("most_lost", -1.0, "most_lost must be"), ("places", 0, "places must be"),
    ("horizon", 1.5, "horizon must be"), ("seed", -1, "seed must be"), ("ahead", 0, "ahead must be"),
])  # fmt: skip
def test_settings_are_checked(name, value, said):
    with pytest.raises((TypeError, ValueError), match=said):
        HealSettings(**{name: value})
