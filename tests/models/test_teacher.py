"""The teacher-forced pass against plain forwards of one text, whatever mode the model is in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_model

from caw.models.teacher import log_probs, teacher_forced
from caw.testing import assert_close

VOCABULARY = 300
BEGINNING = list(range(40))


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(VOCABULARY, positions=128)


@pytest.fixture
def dropping() -> Any:
    """In train mode, but for one part: with dropout of attention weights and one module's own mode to keep."""
    made = tiny_model(VOCABULARY, positions=128).train()
    for layer in made.model.layers:
        layer.self_attn.attention_dropout = 0.5
    made.lm_head.eval()
    return made


def drawn(*sizes: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCABULARY, n).tolist() for n in sizes]


def plain(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("batch_tokens", [1, 90, 1000])
def test_logits_are_those_of_one_text_alone(model: Any, batch_tokens: int, share: bool) -> None:
    texts = [([*BEGINNING, *ids], 41 + i) for i, ids in enumerate(drawn(30, 8, 2, 60, 11))]
    found = list(teacher_forced(model, texts, batch_tokens=batch_tokens, share=share))
    assert [i for i, _ in found] == [2, 1, 4, 0, 3]  # shortest first
    for i, logits in found:
        ids, first = texts[i]
        assert_close(logits, plain(model, ids)[first - 1 :], "forward")


def test_texts_that_do_not_fit_are_named(model: Any) -> None:
    texts = [(ids, 1) for ids in drawn(128, 129)]
    with pytest.raises(ValueError, match=r"^texts must fit the model's 128 positions, long has 129 tokens; shorten it"):
        teacher_forced(model, texts, names=["short", "long"])  # before anything is read
    with pytest.raises(ValueError, match="128 positions, one has 129 tokens"):
        log_probs(model, texts)


def test_no_texts_are_read_in_no_time(model: Any) -> None:
    assert list(teacher_forced(model, [])) == [] and log_probs(model, []) == []


@pytest.mark.parametrize("batch_tokens", [1, 40, 1000])
def test_log_probs(model: Any, batch_tokens: int) -> None:
    sizes = [(2, 1), (7, 3), (100, 1), (31, 30), (5, 5), (100, 99), (1, 1)]
    texts = [(ids, first) for ids, (_, first) in zip(drawn(*(n for n, _ in sizes)), sizes, strict=True)]
    done: list[None] = []
    found = log_probs(model, texts, batch_tokens, lambda: done.append(None))
    assert [len(f) for f in found] == [n - first for n, first in sizes] and len(done) == 5
    for (ids, first), values in zip(texts, found, strict=True):
        exact = plain(model, ids).double().log_softmax(1)
        expected = np.array([exact[i - 1, ids[i]].item() for i in range(first, len(ids))])
        assert values.dtype == np.float64
        assert_close(values, expected, "forward")


@pytest.mark.parametrize("share", [False, True])
def test_a_model_in_train_mode_is_read_in_eval_mode_and_left_as_it_was(dropping: Any, share: bool) -> None:
    modes = {name: module.training for name, module in dropping.named_modules()}
    texts = [([*BEGINNING, *ids], 41) for ids in drawn(9, 5)]
    assert not torch.equal(plain(dropping, texts[0][0]), plain(dropping, texts[0][0]))  # dropout does act
    found = dict(teacher_forced(dropping, texts, share=share))
    scores = log_probs(dropping, texts)
    assert {name: module.training for name, module in dropping.named_modules()} == modes
    dropping.eval()
    for i, (ids, first) in enumerate(texts):
        assert_close(found[i], plain(dropping, ids)[first - 1 :], "forward")
    assert all(np.array_equal(a, b) for a, b in zip(scores, log_probs(dropping, texts), strict=True))


def test_a_pass_that_breaks_off_leaves_the_model_as_it_was(dropping: Any) -> None:
    texts = [(ids, 1) for ids in drawn(9, 5)]
    read = teacher_forced(dropping, texts, batch_tokens=1)
    next(read)
    assert dropping.training and not torch.is_inference_mode_enabled()
    broken = dropping.model.layers[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(read)
    broken.remove()
    assert dropping.training and dropping.model.layers[0].training and not dropping.lm_head.training
