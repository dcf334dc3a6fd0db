"""Files of labels: what evaluators learn from is what the model said around each change."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_model, tiny_tokenizer
from universal_labels import DEPTH, LABELLED, SUBJECTS, ahead_of, around, changes_of, harm_of, prompts_of, write_texts

from caw.models.facts import ModelFacts
from caw.record import Record
from caw.testing import assert_close
from caw_lab.training.healing import Healed, HealedText, HealSettings, measure_healing
from caw_lab.training.own_texts import EVERYDAY
from caw_lab.training.text_reader import reader_for

SETTINGS = HealSettings(gamma=0.5, most_lost=6.0, places=6, horizon=12, rejoin=2, max_new_tokens=48, batch=5, ahead=8)
PROMPTS = [[5, 77, 200], [9, 10], [300, 301, 12, 40], [8], [77, 78]]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    return tiny_model(len(tokenizer))


@pytest.fixture(scope="module")
def texts(model: Any, tokenizer: Any) -> list[HealedText]:
    found = sorted(measure_healing(model, tokenizer, PROMPTS, SETTINGS), key=lambda text: text.number)
    return [text for text in found if text.changes]


@torch.inference_mode()
def said(model: Any, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0, -1:]  # type: ignore[no-any-return]


def test_records_are_of_the_places_around_each_change(model: Any, texts: list[HealedText], tmp_path: Path) -> None:
    """One place further on or back, and an evaluator would learn something else; nothing would say so."""
    harm = [harm_of(reader_for(model), text) for text in texts]
    write_texts(tmp_path / "m.maths.0.npz", [f"q{number}" for number in range(len(PROMPTS))], texts, harm)
    [part] = changes_of(tmp_path, "m", "maths")
    rows, changes = around(part), [(text, change) for text in texts for change in text.changes]
    assert len(changes) == len(part["place"]) >= 10
    for number, (text, change) in enumerate(changes):
        assert part["names"][part["document"][number]] == f"q{text.number}"
        assert (part["place"][number], part["token"][number]) == (change.place, change.token)
        before = [[*text.prompt, *text.tokens[: change.place + offset]] for offset in (-1, 0, 1)]
        for row, ids in zip(rows, [*before, [*before[1], change.token]], strict=True):
            expected = Record.from_logits(said(model, ids))
            found = row.take(torch.tensor([number]))
            assert_close(found.values[:, :5], expected.values[:, :5], "forward")
            assert found.ids[0, 0] == expected.ids[0, 0]
        assert rows[1].ids[number, 0] == text.tokens[change.place], "greedy text"


@torch.inference_mode()
def test_harm_is_what_the_models_own_text_loses(model: Any, texts: list[HealedText]) -> None:
    text = texts[0]
    change, own = text.changes[0], list(text.tokens)
    tail = own[change.place + 1 :][:32]
    totals = []
    for token in (own[change.place], change.token):
        before = [*text.prompt, *own[: change.place], token]
        logits = model(torch.tensor([[*before, *tail]])).logits[0, len(before) - 1 : -1].log_softmax(-1)
        totals.append(float(logits.gather(1, torch.tensor(tail)[:, None]).sum()))
    assert harm_of(reader_for(model), text)[0] == pytest.approx(totals[0] - totals[1], abs=1e-3)


def test_labels_and_choices_share_no_everyday_prompt(model: Any, tokenizer: Any) -> None:
    facts, subject = ModelFacts.of(model, tokenizer), SUBJECTS["smollm2-135m"]
    lines = EVERYDAY.read_text(encoding="utf-8").splitlines()
    assert len(lines) > LABELLED + 96, "the default of `texts --split train`"
    names, ids, _ = prompts_of("everyday", subject, tokenizer, facts, Path(), LABELLED - 2, 32)
    assert names == [f"everyday/{LABELLED - 2}", f"everyday/{LABELLED - 1}"] and len(ids) == 2
    names, *_ = prompts_of("everyday", subject, tokenizer, facts, Path(), LABELLED, 32)
    assert not names


def test_first_tokens_behind_a_change() -> None:
    """The text is 0 to 9; at place 2 a 7 came, behind which the model says 4, then 4 again, then something else."""
    likely = [(4, 3), (4, 0), (9, 5)]
    logits = torch.full((3, 10), -20.0)
    for row, (first, second) in zip(logits, likely, strict=True):
        row[first], row[second] = 1.0, 0.0
    rows = Record.from_logits(logits, 10)
    text = HealedText(
        0, [1], list(range(10)), [Healed(2, 7, False, False, 4, False)], rows, rows.take(torch.tensor([0]))
    )
    [found] = ahead_of(HealedText(**{**vars(text), "ahead": [rows]}))
    total = math.log(math.e + 1)
    assert np.allclose(found[:3, 1], 1.0) and np.allclose(found[:3, 2], 1 - total, atol=1e-4)
    assert np.allclose(found[:3, 3], [-total, 1 - total, -total], atol=1e-4), "of 3, 4 and 5, which the text has"
    assert found[:3, 4].tolist() == [0, 1, 0] and found[:3, 5].tolist() == [1, 1, 0]
    share = math.e / (math.e + 1)
    assert np.allclose(found[:3, 0], -share * math.log(share) - (1 - share) * math.log(1 - share), atol=1e-4)
    assert found.shape == (DEPTH, 6) and np.isnan(found[3:]).all()
