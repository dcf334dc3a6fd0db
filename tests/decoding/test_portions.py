"""Prompts read in portions between steps: the same texts, and the others go on meanwhile."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections import deque
from typing import Any

import pytest
import torch
from decoding.architectures import build, policy_of, prompt
from decoding.drafts.guessing import Knowing
from decoding.running import make_decoder
from pairwise import pairwise

import caw
from caw import ops
from caw.decoding import portions
from caw.decoding.decoder import Decoder
from caw.decoding.drafts.proposer import Proposer
from caw.decoding.portions import Portions, may_portion
from caw.decoding.request import requests_for
from caw.decoding.row_settings import RowSettings

needs_extension = pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")


def decoder_of(model: Any, batch: int, portioned: bool, **settings: Any) -> Decoder:
    made = make_decoder(model, caw.KGW(key=3, delta=3.0), policy_of(model), batch, 160, **settings)
    assert may_portion(made.plan)
    plan = dataclasses.replace(made.plan, keep_rows=True, portioned=portioned)
    return Decoder(model, plan)


def texts_of(decoder: Decoder, prompts: list[list[int]], budgets: list[int], sampling: bool) -> list[list[int]]:
    row = RowSettings(seed=7, do_sample=sampling)
    found = decoder.run(requests_for(prompts, budgets, [row] * len(prompts)))
    tokens = {one.index: one.tokens for one in found}
    return [tokens[number] for number in range(len(prompts))]


@needs_extension
@pytest.mark.parametrize(
    "name, dtype, sampling",
    pairwise(["llama", "gemma3", "phi3", "granite", "gpt2"], [torch.float32, torch.bfloat16], [False, True])[:6],
)
def test_portions_change_no_text(
    name: str, dtype: torch.dtype, sampling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long and short prompts through three rows, in portions of a few tokens that differ."""
    model = copy.deepcopy(build(name)).to(dtype)  # `build` keeps its models
    own, sizes = random.Random(4), list[int]()
    lengths = [1, 2, 3, 50, 9, 70, 17, 64, 4]
    prompts = [prompt(length, number) for number, length in enumerate(lengths)]
    budgets = [14, 9, 20, 12, 3, 25, 8, 14, 6]
    settings = {"do_sample": sampling, "speculate": None}

    def size(self: Portions) -> int:
        sizes.append(own.choice((1, 2, 5, 16, 33)))
        return sizes[-1]

    monkeypatch.setattr(Portions, "size", size)
    whole = texts_of(decoder_of(model, 3, False, **settings), prompts, budgets, sampling)
    assert not sizes
    monkeypatch.setattr(Portions, "later", lambda self, prompts, busy: [True] * len(prompts))
    assert texts_of(decoder_of(model, 3, True, **settings), prompts, budgets, sampling) == whole
    assert len(sizes) > 20


@needs_extension
def test_portions_beside_drafts_change_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text is foreseen but for its last tokens, so steps carry drafts while others' prompts are read."""
    model, lengths, budgets = build("llama"), [3, 60, 9, 71, 17, 50], [25, 12, 20, 14, 8, 16]
    prompts = [prompt(length, number) for number, length in enumerate(lengths)]
    expected = texts_of(decoder_of(model, 3, False), prompts, budgets, False)
    right = list[int]()
    drafter = Knowing(list(zip(prompts, expected, strict=True)), ["right", "last wrong", "too long"])
    monkeypatch.setattr(Proposer, "saw", lambda self, trust, drafted, accepted, *_: right.append(accepted))
    monkeypatch.setattr(Portions, "size", lambda self: 16)
    monkeypatch.setattr(Portions, "later", lambda self, prompts, busy: [True] * len(prompts))
    assert texts_of(decoder_of(model, 3, True, speculate=drafter), prompts, budgets, False) == expected
    assert sum(right) > 10


def told_of(decoder: Decoder, later: list[list[int]]) -> list[int]:
    """The numbers of the texts that got a token, in order, of a text and of others that come at its second one."""
    rows = [RowSettings(seed=1)] * (1 + len(later))
    first, *others = requests_for([prompt(5, 1), *later], [30, *[4] * len(later)], rows)
    told = list[int]()

    def on_token(sequence: Any) -> bool:
        told.append(sequence.index)
        if len(told) == 2:
            for other in others:
                decoder.waiting.add(other)
        return False

    list(decoder.run([first], on_token))
    return told


@needs_extension
@pytest.mark.parametrize(
    ("later", "portions"),
    [
        ([prompt(60, 2)] * 3, [20, 20, 20]),
        ([prompt(9, 2), prompt(9, 3)], []),
        ([prompt(60, 2)], [20, 20, 20]),
        ([prompt(60, 2), prompt(9, 3)], [20, 20, 20]),
        ([prompt(60, 2), prompt(9, 3), prompt(60, 2)], [20, 20, 20]),
        ([prompt(9, 2), prompt(30, 3), prompt(9, 2), prompt(9, 4)], [20, 10]),
    ],
    ids=["equal", "short", "long", "long and short", "equal and short", "short equal ones"],
)
def test_long_prompts_are_read_in_portions_once_and_short_ones_at_once(
    later: list[list[int]], portions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reading serves all choices of a prompt; equal ones, and all that came with them, once stalled the others."""
    read, own = list[int](), Portions.read

    def counted(self: Portions, *asked: Any, busy: bool) -> Any:
        found = own(self, *asked, busy=busy)
        read.append(found[0])
        return found

    monkeypatch.setattr(Portions, "read", counted)
    monkeypatch.setattr(Portions, "size", lambda self: 20)
    told = told_of(decoder_of(build("llama"), 5, True), later)
    assert read == portions and len(set(told)) == 1 + len(later)
    if portions:
        first = {number: told.index(1 + number) for number in range(len(later))}
        assert all(first[one] < first[other] for one, ids in enumerate(later) for other, long in enumerate(later)
                   if len(ids) < 20 < len(long))  # fmt: skip


@needs_extension
@pytest.mark.parametrize("left", [None, 1, 2, 3])
def test_choices_of_a_prompt_in_portions_are_their_own_texts(left: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of one prompt come one by one while it is read; one may leave, and another text takes its row."""
    model, sampled = build("llama"), {"do_sample": True, "seed": 7}
    prompts = [prompt(5, 1), *[prompt(90, 2)] * 3, prompt(11, 3)]
    asked = requests_for(prompts, [30, 9, 9, 9, 12], [RowSettings(**sampled)] * 5)
    whole = {one.index: one.tokens for one in decoder_of(model, 5, False, **sampled).run(asked)}
    assert len({tuple(whole[number]) for number in (1, 2, 3)}) == 3

    monkeypatch.setattr(Portions, "size", lambda self: 15)
    decoder, count, rows = decoder_of(model, 4, True, **sampled), [0], set[int]()
    gone = set[int]()
    monkeypatch.setattr(decoder.waiting, "gone", gone.__contains__)

    def on_token(sequence: Any) -> bool:
        count[0] += sequence.index == 0
        rows.add(len(decoder.portions))
        if count[0] in (2, 3, 4) and sequence.index == 0:
            decoder.waiting.add(asked[count[0] - 1])
        if count[0] == 5 and sequence.index == 0:
            if left is not None:
                gone.add(left)
            decoder.waiting.add(asked[4])
        return False

    found = {one.index: one.tokens for one in decoder.run([asked[0]], on_token)}
    expected = {number: tokens for number, tokens in whole.items() if number != left}
    assert found == expected and max(rows) == 3


@needs_extension
def test_the_time_of_reading_counts_equal_prompts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted sixteen times, a token seemed to take a sixteenth of its time, and portions were too long."""
    took = list[int]()
    monkeypatch.setattr(Portions, "took", lambda self, tokens, seconds: took.append(tokens))
    decoder = decoder_of(build("llama"), 4, True)
    list(decoder.run(requests_for([prompt(70, 1)] * 3 + [prompt(9, 2)], [3] * 4, [RowSettings(seed=1)] * 4)))
    assert took[0] == 79


@needs_extension
def test_an_abandoned_prompt_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    decoder = decoder_of(model, 2, True)
    monkeypatch.setattr(Portions, "size", lambda self: 10)
    left, read = set[int](), list[int]()
    monkeypatch.setattr(decoder.waiting, "gone", left.__contains__)
    first, second = requests_for([prompt(5, 1), prompt(90, 2)], [30, 4], [RowSettings(seed=1)] * 2)
    told = list[int]()

    def on_token(sequence: Any) -> bool:
        told.append(sequence.index)
        if len(told) == 2:
            decoder.waiting.add(second)
        read.append(sum(one.read for one in decoder.portions.begun))
        if len(told) == 6:
            left.add(1)
        return False

    list(decoder.run([first], on_token))
    assert 0 < max(read) <= 50 and set(told) == {0} and len(told) == 30 and not decoder.portions


@needs_extension
def test_an_idle_decoder_sees_short_prompts_between_the_chunks_of_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It read a prompt to its end, however long, before it looked at what had come meanwhile."""
    model, row, told = build("llama"), RowSettings(seed=1), list[int]()
    monkeypatch.setattr(portions, "CHUNK", 20)
    monkeypatch.setattr(Portions, "size", lambda self: 20)
    prompts = [prompt(90, 1), prompt(7, 2)]
    expected = texts_of(decoder_of(model, 2, False), prompts, [6, 3], False)
    decoder, own, chunks = decoder_of(model, 2, True), Portions.read, list[int]()
    first, second = requests_for(prompts, [6, 3], [row, row])

    def reading(self: Portions, *asked: Any, busy: bool) -> Any:
        found = own(self, *asked, busy=busy)
        chunks.append(found[0])
        if len(chunks) == 2:
            decoder.waiting.add(second)
        return found

    monkeypatch.setattr(Portions, "read", reading)
    ended = list(decoder.run([first], lambda sequence: bool(told.append(sequence.index))))
    assert chunks == [20, 20, 20, 20, 10] and told[0] == 1 and sorted(set(told)) == [0, 1]
    assert {one.index: one.tokens for one in ended} == dict(enumerate(expected))


@needs_extension
@pytest.mark.parametrize("short", [1, 6])
def test_short_prompts_do_not_wait_for_long_ones_nor_long_ones_for_ever(
    short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text goes on; a prompt of 90 tokens is read when others of 30 come. It had them wait for all of it."""
    model, row, told = build("llama"), RowSettings(seed=1), list[int]()
    monkeypatch.setattr(Portions, "size", lambda self: 10)
    prompts = [prompt(5, 1), prompt(90, 2), *(prompt(30, 3 + number) for number in range(short))]
    budgets = [60, 3, *[3] * short]
    expected = texts_of(decoder_of(model, 2 + short, False), prompts, budgets, False)
    decoder = decoder_of(model, 2 + short, True)
    first, *others = requests_for(prompts, budgets, [row] * len(prompts))

    def on_token(sequence: Any) -> bool:
        told.append(sequence.index)
        if told.count(0) == 2 and sequence.index == 0:
            for other in others:
                decoder.waiting.add(other)
        return False

    found = {one.index: one.tokens for one in decoder.run([first], on_token)}
    assert found == dict(enumerate(expected))
    steps = {number: told[: told.index(number)].count(0) for number in range(1, len(prompts))}
    assert steps[2] < steps[1]  # the first of the short ones before the long one
    assert steps[1] <= 2 + 2 * 9 + 1  # every second portion is the long one's


def test_sizes_follow_what_steps_and_reading_take() -> None:
    """Twice a step's time, but no less than pays and no more than a chunk."""
    own = new()
    assert own.size() == portions.LEAST
    own.stepped(0.05)
    assert own.size() == portions.LEAST
    own.took(1, 1.0)  # too few to say anything
    own.took(100, 0.1)
    own.stepped(0.05)
    assert own.size() == 100
    assert new(10.0, 0.001).size() == 2048
    assert new(1e-6, 0.001).size() == portions.LEAST


def test_what_was_read_since_the_last_step_makes_the_portion_smaller() -> None:
    own = new(0.4, 0.001)
    assert own.size() == 800
    own.took(600, 0.6)
    assert own.size() == 200
    own.took(190, 0.19)
    assert own.size() == portions.LEAST  # a long prompt goes on all the same
    own.stepped(0.4)
    assert own.size() == 800


def test_portions_are_for_the_longer_steps() -> None:
    """While most texts wait for their prompts, steps are short; portions as short would keep them waiting."""
    own = new(0.06, 0.001)
    for number in range(100):
        own.stepped(0.02 if number % 5 else 0.06)
    assert own.size() == 120
    for _ in range(portions.RECENT):
        own.stepped(0.02)
    assert own.size() == portions.LEAST  # of 40
    for _ in range(20):
        own.stepped(0.06)
    assert own.size() == 120


@pytest.mark.parametrize("every", [11, 20, 100])
def test_steps_that_were_held_up_make_no_portion_longer(every: int) -> None:
    own = new(5.0, 0.001)  # the first one is often cold
    for number in range(1, 500):
        own.stepped(3.0 if number % every == 0 else 0.05)
        assert own.size() == 100


def new(step: float = 0.0, token: float = 0.0) -> Portions:
    own = Portions.__new__(Portions)
    own.steps, own.token, own.since = deque([step] if step else [], portions.RECENT), token, 0
    return own


@needs_extension
def test_where_portions_could_change_bits_there_are_none() -> None:
    model = build("llama")
    plain = make_decoder(model).plan
    assert may_portion(plain)
    assert not may_portion(make_decoder(model, prefill_attention="eager").plan)
    assert not may_portion(make_decoder(model, fixed=True).plan)
    assert not may_portion(make_decoder(model, prompt_cache=caw.PromptCache()).plan)
