"""Prompts read in portions between steps: the same texts, and the others go on meanwhile."""

import copy
import dataclasses
import random
from collections import deque
from functools import partial
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


def portions_of(monkeypatch: pytest.MonkeyPatch, size: int) -> list[int]:
    """Portions are of `size` tokens from now on; how many were read in each."""
    read, own = list[int](), Portions.read

    def counted(self: Portions, *asked: Any, busy: bool) -> Any:
        before = self.since
        found = own(self, *asked, busy=busy)
        read.append(self.since - before)
        return found

    monkeypatch.setattr(Portions, "read", counted)
    monkeypatch.setattr(Portions, "size", lambda self: size)
    return read


def fed(decoder: Decoder, first: Any, at: dict[int, Any]) -> tuple[dict[int, list[int]], list[int]]:
    """(texts by number, whose token came when); at: what is done when the first text has so many tokens."""
    told = list[int]()

    def on_token(sequence: Any) -> bool:
        told.append(sequence.index)
        if sequence.index == 0 and told.count(0) in at:
            at[told.count(0)]()
        return False

    return {one.index: one.tokens for one in decoder.run([first], on_token)}, told


@needs_extension
@pytest.mark.parametrize(("later", "portions"), [
    ([prompt(60, 2)] * 3, [20, 20, 20]), ([prompt(9, 2), prompt(9, 3)], []), ([prompt(60, 2)], [20, 20, 20]),
    ([prompt(60, 2), prompt(9, 3)], [20, 20, 20]), ([prompt(60, 2), prompt(9, 3), prompt(60, 2)], [20, 20, 20]),
    ([prompt(9, 2), prompt(30, 3), prompt(9, 2), prompt(9, 4)], [20, 10]),
], ids=["equal", "short", "long", "long and short", "equal and short", "short equal ones"])  # fmt: skip
def test_long_prompts_are_read_in_portions_once_and_short_ones_at_once(
    later: list[list[int]], portions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reading serves all choices of a prompt; equal ones, and all that came with them, once stalled the others."""
    read, decoder = portions_of(monkeypatch, 20), decoder_of(build("llama"), 5, True)
    rows = [RowSettings(seed=1)] * (1 + len(later))
    first, *others = requests_for([prompt(5, 1), *later], [30, *[4] * len(later)], rows)
    _, told = fed(decoder, first, {2: lambda: [decoder.waiting.add(other) for other in others]})
    assert read == portions and len(set(told)) == 1 + len(later)
    if portions:
        began = {number: told.index(1 + number) for number in range(len(later))}
        assert all(began[one] < began[other] for one, ids in enumerate(later) for other, long in enumerate(later)
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

    portions_of(monkeypatch, 15)
    decoder, rows, gone = decoder_of(model, 4, True, **sampled), set[int](), set[int | None]()
    monkeypatch.setattr(decoder.waiting, "gone", gone.__contains__)

    def come(number: int) -> None:
        rows.add(len(decoder.portions))
        gone.update({left} if number == 4 else ())
        decoder.waiting.add(asked[number])

    found, _ = fed(decoder, asked[0], {at: partial(come, at - 1) for at in (2, 3, 4, 5)})
    assert found == {number: tokens for number, tokens in whole.items() if number != left} and 2 in rows


@needs_extension
def test_an_abandoned_prompt_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    read, decoder, left = portions_of(monkeypatch, 10), decoder_of(build("llama"), 2, True), set[int]()
    monkeypatch.setattr(decoder.waiting, "gone", left.__contains__)
    first, second = requests_for([prompt(5, 1), prompt(90, 2)], [30, 4], [RowSettings(seed=1)] * 2)
    _, told = fed(decoder, first, {2: lambda: decoder.waiting.add(second), 6: lambda: left.add(1)})
    assert 0 < sum(read) <= 50 and told == [0] * 30 and not decoder.portions


@needs_extension
def test_an_idle_decoder_sees_short_prompts_between_the_chunks_of_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It read a prompt to its end, however long, before it looked at what had come meanwhile."""
    model, prompts, told = build("llama"), [prompt(90, 1), prompt(7, 2)], list[int]()
    expected = texts_of(decoder_of(model, 2, False), prompts, [6, 3], False)
    monkeypatch.setattr(portions, "CHUNK", 20)
    chunks, decoder = portions_of(monkeypatch, 20), decoder_of(model, 2, True)
    first, second = requests_for(prompts, [6, 3], [RowSettings(seed=1)] * 2)
    reading = Portions.read

    def coming(self: Portions, *asked: Any, busy: bool) -> Any:
        found = reading(self, *asked, busy=busy)
        if len(chunks) == 2:
            decoder.waiting.add(second)
        return found

    monkeypatch.setattr(Portions, "read", coming)
    ended = list(decoder.run([first], lambda sequence: bool(told.append(sequence.index))))
    assert chunks == [20, 20, 20, 20, 10] and told[0] == 1 and sorted(set(told)) == [0, 1]
    assert {one.index: one.tokens for one in ended} == dict(enumerate(expected))


@needs_extension
@pytest.mark.parametrize("short", [1, 6])
def test_short_prompts_do_not_wait_for_long_ones_nor_long_ones_for_ever(
    short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text goes on; a prompt of 90 tokens is read when others of 30 come. It had them wait for all of it."""
    model = build("llama")
    prompts = [prompt(5, 1), prompt(90, 2), *(prompt(30, 3 + number) for number in range(short))]
    budgets = [60, 3, *[3] * short]
    expected = texts_of(decoder_of(model, 2 + short, False), prompts, budgets, False)
    portions_of(monkeypatch, 10)
    decoder = decoder_of(model, 2 + short, True)
    first, *others = requests_for(prompts, budgets, [RowSettings(seed=1)] * len(prompts))
    found, told = fed(decoder, first, {2: lambda: [decoder.waiting.add(other) for other in others]})
    assert found == dict(enumerate(expected))
    steps = {number: told[: told.index(number)].count(0) for number in range(1, len(prompts))}
    assert steps[2] < steps[1]  # the first of the short ones before the long one
    assert steps[1] <= 2 + 2 * 9 + 1  # every second portion is the long one's


@needs_extension
def test_the_time_of_reading_counts_equal_prompts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted sixteen times, a token seemed to take a sixteenth of its time, and portions were too long."""
    took = list[int]()
    monkeypatch.setattr(Portions, "took", lambda self, tokens, seconds: took.append(tokens))
    decoder = decoder_of(build("llama"), 4, True)
    list(decoder.run(requests_for([prompt(70, 1)] * 3 + [prompt(9, 2)], [3] * 4, [RowSettings(seed=1)] * 4)))
    assert took[0] == 79


def test_sizes_follow_what_steps_and_reading_take() -> None:
    """Twice a step's time, less what was read since, but no less than pays and no more than a chunk."""
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
    changes: list[dict[str, Any]] = [
        {"prefill_attention": "eager"},
        {"fixed": True},
        {"prompt_cache": caw.PromptCache()},
    ]
    assert [may_portion(make_decoder(build("llama"), **change).plan) for change in ({}, *changes)] == [True] + [
        False
    ] * 3
