"""The counterfactual labeler against its definition, one replaced text at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import tiny_model, tiny_tokenizer

from caw.testing import assert_close
from caw_lab.training.labelers import CounterfactualLabeler, LabelError
from caw_lab.training.labelers.counterfactual import _answer_start
from caw_lab.training.labels import LabelledText

SOLUTION = "a small sky is 12 and\n#### 34"


@pytest.fixture(scope="module")
def tiny():
    tokenizer = tiny_tokenizer()
    return tiny_model(len(tokenizer)), tokenizer


def document(solution=SOLUTION):
    return LabelledText("toy", "train", 0, "How?", solution, ())


def by_definition(model, coded, alternatives, horizon):
    """(rest, answer) from whole forwards without a cache."""
    with torch.inference_mode():
        ids = list(coded.ids)

        def log_probs(row):
            logits = model(torch.tensor([row])).logits[0].double().log_softmax(1)
            return np.array([float(logits[j - 1, row[j]]) for j in range(1, len(row))]), logits

        plain, logits = log_probs(ids)
        answer = _answer_start(coded)
        rest, final = [], []
        for i in range(coded.first, len(ids)):
            ranked = [int(t) for t in logits[i - 1].argsort(descending=True) if int(t) != ids[i]][:alternatives]
            lost = [plain - log_probs([*ids[:i], other, *ids[i + 1 :]])[0] for other in ranked]
            rest.append(np.mean([row[i : i + horizon].sum() for row in lost]))
            final.append(np.mean([row[answer - 1 :].sum() for row in lost]) if i < answer else np.inf)
    return np.array(rest), np.array(final)


@pytest.mark.parametrize("alternatives, horizon, batch_tokens", [(1, 1, 1), (2, 3, 40), (3, 100, 512)])
def test_falls_are_those_of_the_definition(tiny, alternatives, horizon, batch_tokens):
    settings = {"alternatives": alternatives, "horizon": horizon, "batch_tokens": batch_tokens}
    falls = CounterfactualLabeler(*tiny, **settings).falls(document())
    rest, answer = by_definition(tiny[0], falls.coded, alternatives, horizon)
    assert len(rest) == len(falls.coded.key) > 10
    assert_close(falls.rest, rest, "capacity")
    inner = np.isfinite(answer)
    assert_close(falls.answer[inner], answer[inner], "capacity")
    assert np.array_equal(np.isinf(falls.answer), ~inner) and 0 < (~inner).sum() < 4
    short = CounterfactualLabeler(*tiny, answer_nats=None, **settings).falls(document())
    assert short.answer is None
    assert_close(short.rest, rest, "capacity")


def test_labels_follow_the_thresholds(tiny):
    nothing = CounterfactualLabeler(*tiny, rest_nats=1e9, answer_nats=1e9).label(document())
    assert [SOLUTION[a:b] for a, b in nothing] == ["34"]  # the answer itself is always key
    everything = CounterfactualLabeler(*tiny, rest_nats=-1e9).label(document())
    assert " ".join(SOLUTION[a:b] for a, b in everything).split() == SOLUTION.split()
    assert CounterfactualLabeler(*tiny, rest_nats=1e9, answer_nats=None).label(document()) == ()


def test_answer_start(tiny):
    marker = CounterfactualLabeler(*tiny)
    for solution in (SOLUTION, "so it is\n34"):
        coded = marker.falls(document(solution)).coded
        assert tiny[1].decode(coded.ids[_answer_start(coded) :]).strip() == "34"


def test_bad_texts_and_settings_are_named(tiny):
    model, tokenizer = tiny
    with pytest.raises(LabelError, match="512 positions"):
        CounterfactualLabeler(model, tokenizer).label(document("a small " * 500))
    with pytest.raises(ValueError, match="at least 1"):
        CounterfactualLabeler(model, tokenizer, alternatives=0)
    with pytest.raises(LabelError, match="vocabulary"):
        CounterfactualLabeler(model, tokenizer, alternatives=100000).label(document())
    assert CounterfactualLabeler(model, tokenizer).describe()["labeler"] == "counterfactual"
