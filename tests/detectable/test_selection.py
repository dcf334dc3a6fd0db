"""Which candidate leaves: each choice against what it should prefer, worked out by hand."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import build, prompt, tokenizer

import caw
from caw.decoding.request import ActiveSequence, Request
from caw.detectable.selection import Agreement, Candidate, Consensus, Selection, any_found, selection_of, weakest
from caw.detectable.trial import Verdict

PROMPT = prompt(9)


def candidate(text: str, tokens: list[int], *, found: bool) -> Candidate:
    request = Request(PROMPT, 30)
    result: Any = caw.detect(text or "a", tokenizer(), caw.KGW(key=1))
    return Candidate(text, 1.0, Verdict(found, "", result), request, ActiveSequence(0, request, tokens=tokens))


def test_the_weakest_is_the_first_that_is_found() -> None:
    given = [candidate(text, [3], found=text in "bc") for text in "abc"]
    assert selection_of("weakest", 3, None) == Selection(weakest, 1, any_found)
    assert weakest(given) is given[1] and any_found(given) and not any_found(given[:1])


def test_the_likeliest_has_the_greatest_log_likelihood_a_token() -> None:
    model = build("llama")
    texts = [prompt(length, seed) for length, seed in ((12, 1), (3, 2), (7, 3), (12, 4))]
    given = [candidate("x", tokens, found=i != 1) for i, tokens in enumerate(texts)]
    means = []
    for tokens in texts:
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
        means.append(torch.log_softmax(logits.double(), 1).gather(1, torch.tensor(tokens)[:, None]).mean().item())
    best = max((i for i in range(4) if i != 1), key=lambda i: means[i])
    assert selection_of("likeliest", 2, model).choose(given) is given[best]
    given[1] = candidate("x", texts[1], found=True)
    assert selection_of("likeliest", 2, model).choose(given) is given[int(np.argmax(means))]


def test_the_likeliest_reads_the_prompt_once() -> None:
    model = copy.deepcopy(build("llama"))
    asked = Request(prompt(50, 1), 8)
    given = [replace(candidate("x", prompt(7, seed), found=True), request=asked) for seed in range(4)]
    read: list[torch.Size] = []
    model.model.register_forward_pre_hook(
        lambda _, given, named: read.append(named["input_ids"].shape), with_kwargs=True
    )
    assert selection_of("likeliest", 4, model).choose(given) in given
    assert read == [(1, 49), (4, 8)]


def test_a_consensus_counts_all_votes_and_chooses_among_the_found() -> None:
    answers = ["4", "5", "?", "5", "6", "6"]
    found = [True, False, True, True, True, True]
    given = [candidate(text, [3], found=was) for text, was in zip(answers, found, strict=True)]
    choose = Consensus(lambda text: text if text.isdigit() else None)
    assert choose(given) is given[3], "5 and 6 have two votes each, and this 5 is weaker"
    assert choose(given[:3]) is given[0]
    assert choose([given[2], given[1]]) is given[2], "without an answer, but the only one that is found"
    with pytest.raises(TypeError, match=r"read must give answers that can be counted, got \['4'\]"):
        Consensus(lambda text: [text])(given)


def test_an_agreement_is_with_the_first() -> None:
    def answer(text: str) -> str | None:
        return text if text.isdigit() else None

    selection = selection_of(Agreement(answer), 2, None)
    assert (selection.together, selection.unmarked) == (1, True)
    given = [
        candidate(text, [3], found=was)
        for text, was in (("4", False), ("4", False), ("5", True), ("5", True), ("4", True))
    ]
    assert [selection.settled(given[:made]) for made in range(6)] == [False] * 5 + [True]
    assert selection.choose(given) is given[4]
    assert selection.choose(given[:4]) is given[2], "nothing that is found agrees, so votes decide"
    without = [candidate("?", [3], found=False), given[2]]
    assert selection.settled(without) and selection.choose(without) is given[2], "nothing to agree with"
    assert selection.settled([given[4]]), "the unmarked text is found by chance"


def test_a_function_must_choose_a_found_one() -> None:
    given = [candidate("a", [3], found=False), candidate("b", [4], found=True)]
    assert selection_of(lambda candidates: candidates[1], 2, None).choose(given) is given[1]
    for wrong in (lambda candidates: candidates[0], lambda candidates: 1):
        with pytest.raises(ValueError, match="must return one of the detected candidates"):
            selection_of(wrong, 2, None).choose(given)
