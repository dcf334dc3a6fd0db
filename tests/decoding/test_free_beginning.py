"""Free beginnings: a drawn text begins as the unmarked text of its seed, then the key draws; nothing is distorted."""

import dataclasses
import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import prompt
from decoding.running import run
from scipy import stats

import caw
from caw.decoding.request import Request
from caw.decoding.row_settings import may_begin_freely
from caw.defaults import FREE_NATS, FREE_TOKENS
from caw.policies.mark import Mark

RACE = caw.EXP(key=11, strength="scale", context_width=3)
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 1.3, "top_p": 0.95}
PROMPTS = [prompt(9), prompt(1, 2), prompt(4, 1), prompt(6, 3)]


def shared(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def surprisals(model: Any, ids: list[int], text: list[int], temperature: float) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([ids + text])).logits[0, len(ids) - 1 : -1].double() / temperature
    return (logits.logsumexp(1) - logits.gather(1, torch.tensor(text)[:, None])[:, 0]).tolist()


def length_of_beginning(model: Any, ids: list[int], text: list[int], free: float, temperature: float) -> int:
    spent = np.cumsum([0.0, *surprisals(model, ids, text, temperature)])
    return min(int((spent < free).sum()), FREE_TOKENS, len(text))


@pytest.mark.parametrize("fixed", [False, True])
def test_a_text_begins_as_the_unmarked_one_until_its_nats_are_spent(llama: Any, fixed: bool) -> None:
    """The same tokens as long as the beginning lasts; then, under 8 keys, other ones at once somewhere."""
    settings = {"do_sample": True, "temperature": 1.3, "seed": 5, "max_new_tokens": 30}
    plain = run(llama, PROMPTS, None, fixed=fixed, **settings).tokens
    for free in (0.0, 2.0, 9.0):
        mark = dataclasses.replace(RACE, free=free)
        by_key = [run(llama, PROMPTS, mark.with_key(key), fixed=fixed, **settings).tokens for key in range(8)]
        for number, ids in enumerate(PROMPTS):
            begins = length_of_beginning(llama, ids, plain[number], free, 1.3)
            same = [shared(texts[number], plain[number]) for texts in by_key]
            assert begins > 0 or free == 0
            assert min(same) == begins


def test_the_beginning_ends_at_its_cap(llama: Any) -> None:
    """Text of hardly any surprisal: a temperature so low that nearly every token is certain."""
    settings = {"do_sample": True, "temperature": 0.05, "seed": 5, "max_new_tokens": FREE_TOKENS + 8}
    decoder_texts: list[Any] = []
    original = caw.decoding.texts.Texts.in_beginning

    def noted(self: Any) -> torch.Tensor:
        flags = original(self)
        decoder_texts.append((self.counts.tolist(), flags.tolist()))
        return flags

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("caw.decoding.texts.Texts.in_beginning", noted)
        run(llama, PROMPTS[:1], dataclasses.replace(RACE, free=1e4), **settings)
    assert all(flag == (count < FREE_TOKENS) for [count], [flag] in decoder_texts)


def test_batches_captured_steps_drafts_and_references_make_the_same_text(llama: Any) -> None:
    from caw import ops

    settings = {**SAMPLED, "max_new_tokens": 24, "seed": 3}
    wanted = run(llama, PROMPTS, RACE, **settings).tokens
    for number, ids in enumerate(PROMPTS):
        assert run(llama, [ids], RACE, **settings).tokens == [wanted[number]]
    assert run(llama, PROMPTS, RACE, batch=2, **settings).tokens == wanted
    assert run(llama, PROMPTS, RACE, fixed=True, **settings).tokens == wanted
    assert run(llama, PROMPTS, RACE, kernels=ops.references(), **settings).tokens == wanted
    assert run(llama, PROMPTS, RACE, speculate=2, **settings).tokens == wanted


def test_the_chooser_begins_as_generate_does_and_resumes_with_its_nats(llama: Any) -> None:
    settings = caw.RowSettings(max_new_tokens=24, seed=3, **SAMPLED)
    wanted = run(llama, PROMPTS[:1], RACE, max_new_tokens=24, seed=3, **SAMPLED).tokens[0]
    for stop in (0, 2, 24):
        chooser = caw.Chooser(RACE, vocab_size=llama.config.vocab_size)
        chooser.start(0, PROMPTS[0], settings)
        ids: list[int] = []
        while len(ids) < len(wanted):
            if len(ids) == stop:  # interrupted: another chooser goes on
                spent, chooser = chooser.spent(0), caw.Chooser(RACE, vocab_size=llama.config.vocab_size)
                chooser.start(0, PROMPTS[0], settings)
                chooser.resume(0, ids, spent=spent)
            with torch.no_grad():
                logits = llama(torch.tensor([PROMPTS[0] + ids])).logits[:, -1].float()
            ids.append(int(chooser.choose(logits)))
            chooser.resume(0, ids)
        assert ids == wanted
    assert chooser.spent(0) >= FREE_NATS


def chosen_text(model: Any, mark: Any, most: int) -> list[int]:
    """By a chooser that is forked before each token comes back, which goes on as the text would have."""
    chooser = caw.Chooser(mark, vocab_size=model.config.vocab_size, rows=2)
    chooser.start(0, PROMPTS[0], caw.RowSettings(max_new_tokens=most, seed=3, **SAMPLED))
    ids: list[int] = []
    for turn in range(most):
        row = turn % 2
        with torch.no_grad():
            logits = model(torch.tensor([PROMPTS[0] + ids])).logits[:, -1].float()
        ids.append(int(chooser.choose(logits, [row])))
        chooser.fork(row, 1 - row)
        chooser.resume(1 - row, ids)
    return ids


def test_the_chooser_ends_a_beginning_at_its_cap_and_its_forks_go_on(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caw.decoding.texts.FREE_TOKENS", 5)
    mark, settings = dataclasses.replace(RACE, free=1e4), {"max_new_tokens": 16, "seed": 3, **SAMPLED}
    wanted = run(llama, PROMPTS[:1], mark, **settings).tokens[0]
    assert shared(wanted, run(llama, PROMPTS[:1], None, **settings).tokens[0]) == 5
    assert chosen_text(llama, mark, 16) == wanted
    assert chosen_text(llama, RACE, 16) == run(llama, PROMPTS[:1], RACE, **settings).tokens[0]


def test_a_chooser_refuses_a_beginning_that_cannot_act() -> None:
    chooser = caw.Chooser(caw.EXP(key=1, free=2), vocab_size=9)
    with pytest.raises(ValueError, match="a free beginning needs sampled text"):
        chooser.start(0, [1], caw.RowSettings(do_sample=True))


def test_a_request_of_somebody_else_begins_freely_only_where_it_is_long_and_unbound() -> None:
    long = FREE_TOKENS + 4 * 2
    assert may_begin_freely(long, 2, bound=False)
    assert not may_begin_freely(long - 1, 2, bound=False) and not may_begin_freely(10 * long, 2, bound=True)


def test_a_first_token_is_the_samplers_and_a_text_of_which_nothing_is_known_has_no_beginning(llama: Any) -> None:
    first = {tuple(run(llama, PROMPTS[:1], RACE.with_key(key), seed=1, max_new_tokens=1, **SAMPLED).tokens[0])
             for key in range(6)}  # fmt: skip
    assert len(first) == 1
    assert Request([3], 9).spent == math.inf


def toy(width: int) -> tuple[torch.Tensor, dict[tuple[int, ...], float]]:
    """Logits of a model of three tokens that reads the last one, and the probability of every text of `width`."""
    logits = torch.tensor([[0.3, 1.4, -0.6], [2.2, 0.1, 0.4], [-0.2, 0.9, 0.8], [0.0, 0.0, 1.0]])
    p = logits.double().softmax(1)
    texts = {}
    for text in product(range(3), repeat=width):
        texts[text] = float(np.prod([p[last, token] for last, token in zip((3, *text), text, strict=False)]))
    return logits, texts


@pytest.mark.parametrize("free", [0.0, 1.0, 2.5])
def test_over_keys_and_seeds_whole_texts_are_the_samplers(free: float) -> None:
    """Identity 13: exact probabilities of all 243 texts of five tokens against 200,000 draws, each under a key and a
    seed of its own. Chi-square at a false-alarm rate of 1e-6."""
    length, rows, rounds = 5, 50_000, 4
    logits, expected = toy(length)
    counts = dict.fromkeys(expected, 0)
    mark = caw.EXP(key=1, strength="scale", context_width=2, free=free)
    chooser = caw.Chooser(mark, vocab_size=3, rows=rows)
    settings = caw.RowSettings(do_sample=True, max_new_tokens=length, seed=0)
    generator = torch.Generator().manual_seed(int(10 * free))
    requests = [Request([1], length, settings)] * rows
    for _ in range(rounds):
        choosing = chooser._choosing
        chooser._widen(choosing.plan.limits.of([settings], ()))
        choosing.start(range(rows), requests, [()] * rows)
        texts = choosing.texts
        texts.keys.random_(generator=generator)
        texts.noise_keys.random_(generator=generator)
        last = torch.full((rows,), 3)
        for _ in range(length):
            state = caw.decoding.state.DecodeState.of(logits[last], choosing.record(logits[last]), [])
            ladder = choosing.ladder(state)
            chosen = choosing.choose(state, ladder)[2]
            last = ladder.candidates.gather(1, chosen[:, None])[:, 0]
            choosing.accept(last, texts.active)
            choosing.spend(last, texts.active)
        number = (texts.made[:, :length] * 3 ** torch.arange(length - 1, -1, -1)).sum(1)
        for text, count in zip(expected, torch.bincount(number, minlength=3**length).tolist(), strict=True):
            counts[text] += count
    got, wanted = np.array(list(counts.values())), np.array(list(expected.values())) * rows * rounds
    assert stats.chisquare(got, wanted).pvalue > 1e-6


def test_beginnings_are_as_varied_as_their_nats_say(llama: Any) -> None:
    """3 seeds of each of 100 prompts: no more beginnings alike than e^-free allows, by a binomial test (1e-6); without
    a beginning all are alike."""
    prompts = [[1 + number % 90, 3 + number // 90, 7] for number in range(100)]
    free = math.log(64)
    settings = {"do_sample": True, "temperature": 1.3, "max_new_tokens": 12}
    alike = {0.0: 0, free: 0}
    for nats in alike:
        mark = dataclasses.replace(RACE, free=nats)
        by_seed = [run(llama, prompts, mark, seed=seed, **settings).tokens for seed in (5, 6, 7)]
        for texts in zip(*by_seed, strict=True):
            alike[nats] += sum(texts[a] == texts[b] for a, b in ((0, 1), (0, 2), (1, 2)))
    assert stats.binomtest(alike[free], 300, 1 / 64, alternative="greater").pvalue > 1e-6
    assert alike[0.0] > 200


@pytest.mark.parametrize("free, error", [
    (-1.0, "free must be a number in"), (float("nan"), "free must be a number in"), ("x", "free must be a number"),
])  # fmt: skip
def test_nats_that_cannot_be(free: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        caw.EXP(key=1, strength="scale", free=free)


PLAIN = caw.FixedStrength(1.0)


@pytest.mark.parametrize("mark, policy, sampled, why", [
    (caw.EXP(key=1, strength="scale", free=2), PLAIN, False, "not sampled"),
    (caw.EXP(key=1, free=2), PLAIN, True, "does not race at full strength"),
    (caw.EXP(key=1, strength="scale", free=2), caw.FixedStrength(0.5), True, "does not race at full strength"),
    (caw.EXP(key=1, strength="scale", format="vllm-dual", free=2), PLAIN, True, "this strength, format or payload"),
])  # fmt: skip
def test_a_beginning_that_cannot_act_is_refused(mark: caw.EXP, policy: Any, sampled: bool, why: str) -> None:
    with pytest.raises(ValueError, match=rf"a free beginning needs sampled text .*free=2 .*{why}"):
        Mark(mark, policy).check_beginning(sampled=sampled)
    assert dataclasses.replace(mark, free=None).beginning in (0.0, FREE_NATS)
    Mark(dataclasses.replace(mark, free=None), policy).check_beginning(sampled=sampled)
