"""Swaps and their harm against their definitions: whole forwards, a biased argmax over the vocabulary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from tiny import tiny_model, tiny_tokenizer

from caw.models.teacher import log_probs
from caw.testing import assert_close
from caw.watermarks import KGW
from caw_lab.training import swaps as module
from caw_lab.training.labels import EncodedText
from caw_lab.training.swaps import Swaps, SwapSettings
from caw_lab.training.text_reader import TeacherReader, reader_for

HORIZON = 6
SETTINGS = SwapSettings(KGW(key=0, gamma=0.4, delta=3.0), strength=1.5, keys=3, horizon=HORIZON)
PROMPT = [5, 77, 200]


@pytest.fixture(scope="module")
def model():
    return tiny_model(len(tiny_tokenizer()))


@pytest.fixture(scope="module")
def text(model):
    """A greedy continuation."""
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        for _ in range(30):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return EncodedText.unlabelled("text", PROMPT, ids[0, len(PROMPT) :].tolist())


@pytest.fixture(params=["own", "teacher"])
def reader(request, model):
    return reader_for(model) if request.param == "own" else TeacherReader(model)


def measure_swaps(reader, text, settings, *more, **options):
    logits = reader.read(text.ids, text.first)
    return module.measure_swaps(reader, text, logits, settings, *more, **options)


def keys_drawn(monkeypatch):
    """The keys that watermarks get from now on."""
    drawn, with_key = [], KGW.with_key

    def noting(self, key):
        drawn.append(key)
        return with_key(self, key)

    monkeypatch.setattr(KGW, "with_key", noting)
    return drawn


@torch.inference_mode()
def by_definition(model, text, keys, settings):
    """(place, token, harm) of every key's swaps, by place."""
    first, ids = text.first, list(text.ids)
    logits = model(torch.tensor([ids])).logits[0]
    plain, found = log_probs(model, [(ids, 1)])[0], []
    context = settings.watermark.contexts(torch.tensor(ids[first:]))
    for place in range(len(ids) - first - settings.horizon):
        row = logits[first + place - 1]
        for key in keys:
            green = settings.watermark.with_key(key).green_vocabulary(context[place : place + 1], len(row))[0]
            token = int((row + green * settings.watermark.delta * settings.strength).argmax())
            if token != ids[first + place] == int(row.argmax()):
                changed = [*ids[: first + place], token, *ids[first + place + 1 :]]
                after = slice(first + place, first + place + settings.horizon)
                found.append((place, token, (plain - log_probs(model, [(changed, 1)])[0])[after].sum()))
    return found


@pytest.mark.parametrize("batch_tokens", [1, 60, 512])
def test_swaps_of_a_greedy_text_are_those_of_the_definition(model, reader, text, batch_tokens, monkeypatch):
    drawn = keys_drawn(monkeypatch)
    settings = replace(SETTINGS, batch_tokens=batch_tokens)
    found = measure_swaps(reader, text, settings)
    assert len(set(drawn)) == 3
    expected = by_definition(model, text, list(drawn), settings)
    assert len(expected) > 20 and len({token for _, token, _ in expected}) > 5
    assert list(zip(found.place.tolist(), found.token.tolist(), strict=True)) == [(p, t) for p, t, _ in expected]
    assert_close(found.harm, np.array([harm for _, _, harm in expected]), "capacity")
    again = measure_swaps(reader, text, settings)
    assert np.array_equal(found.token, again.token) and np.array_equal(found.harm, again.harm)


def test_where_there_is_no_swap(reader, text):
    """The last tokens, tokens that the model would not have chosen, and those that end a text or would."""
    found = measure_swaps(reader, text, SETTINGS)
    assert found.place.max() < len(text.ids) - text.first - HORIZON
    written = list(text.ids[text.first :])
    place, token = int(found.place[0]), int(found.token[0])
    assert token not in measure_swaps(reader, text, SETTINGS, ends=[token]).token
    assert place not in measure_swaps(reader, text, SETTINGS, ends=[written[place]]).place
    other = EncodedText.unlabelled("text", PROMPT, [*written[:place], token, *written[place + 1 :]])
    assert place not in measure_swaps(reader, other, SETTINGS).place
    short = measure_swaps(reader, EncodedText.unlabelled("text", PROMPT, written[:HORIZON]), SETTINGS)
    assert isinstance(short, Swaps) and len(short.place) == len(short.token) == len(short.harm) == 0
    assert len(measure_swaps(reader, text, replace(SETTINGS, strength=0.0)).place) == 0


def test_places_are_drawn(reader, text):
    """As many as were asked for, anywhere; another seed looks elsewhere."""
    strong = replace(SETTINGS, strength=50.0, keys=40)  # some key swaps every token
    drawn = [set(measure_swaps(reader, text, replace(strong, places=5, seed=seed)).place) for seed in range(6)]
    most = len(text.ids) - text.first - HORIZON
    assert all(len(places) == 5 and max(places) < most for places in drawn)
    assert len({frozenset(places) for places in drawn}) > 4 and len(set.union(*drawn)) > most / 2
    assert set(measure_swaps(reader, text, replace(strong, places=1000)).place) == set(range(most))


def test_a_sampled_text_is_swapped_as_sampling_under_the_mark_would_choose():
    """Gumbel-max: logits + bonus + noise is greatest at t as often as softmax(logits + bonus) says, and the noise that
    chose the tokens there are, drawn as the model says, is plain noise again."""
    rows = 20_000
    logits = torch.tensor([[2.0, 1.5, 0.0, -1.0, -torch.inf]])
    own = torch.multinomial(logits.softmax(1), rows, replacement=True, generator=torch.Generator().manual_seed(1))[0]
    scores = module._noisy(logits.repeat(rows, 1), own, torch.Generator().manual_seed(2))
    assert torch.equal(scores.argmax(1), own)
    bonus = torch.tensor([0.0, 1.0, 0.0, 2.0, 5.0])
    counts = torch.bincount((scores + bonus).argmax(1), minlength=5)[:4]
    expected = (logits[0] + bonus).softmax(0)[:4].double()
    assert stats.chisquare(counts.numpy(), (expected / expected.sum() * rows).numpy()).pvalue > 1e-3
    noise = (scores - logits)[:, 2].numpy()
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-3


def test_sampled_texts_have_swaps_where_greedy_ones_have_none(reader):
    generator = torch.Generator().manual_seed(3)
    random = torch.randint(0, 300, (40,), generator=generator).tolist()
    sampled = EncodedText.unlabelled("text", PROMPT, random)
    greedy, drawn = (measure_swaps(reader, sampled, SETTINGS, temperature) for temperature in (None, 1.0))
    assert len(greedy.place) < len(drawn.place)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"strength": -1}, "strength must be"),
        ({"keys": 0}, "keys must be"),
        ({"horizon": 0}, "horizon must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_bad_settings_are_named(change, expected):
    with pytest.raises(ValueError, match=expected):
        SwapSettings(**change)
