"""Prompts are read once for several calls, and no call's tokens change for it."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from decoding.architectures import prompt, tokenizer
from decoding.running import run
from decoding.test_slots import RAGGED, policy_of

import caw
from caw import PromptCache
from caw.decoding import prefill as prefill_module
from caw.decoding import prompt_cache as cache_module
from caw.decoding.prompt_cache import KeptPrompt

BEGINNING = prompt(40, 50)
ALIKE = [BEGINNING + prompt(3 + i, i) for i in range(5)]
CPU = torch.device("cpu")


@contextmanager
def tokens_read() -> Iterator[list[int]]:
    """How many (padded) tokens of prompts went through the model, forward by forward."""
    read: list[int] = []
    original = prefill_module._chunk

    def counted(model: Any, cache: Any, rows: Any, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        read.append(ids.numel())
        return original(model, cache, rows, ids, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefill_module, "_chunk", counted)
        yield read


@pytest.mark.parametrize("branching", ["tree", "sequential", "batch"])
@pytest.mark.parametrize("prompts", [RAGGED, ALIKE], ids=["ragged", "alike"])
def test_a_second_call_reads_nothing_and_says_the_same(llama: Any, branching: str, prompts: list[list[int]]) -> None:
    watermark, policy = caw.EXP(key=9, top_k=30, context_width=2), policy_of(llama, theta=1.0)
    options: dict[str, Any] = {"batch": 2, "slots": 2, "branching": branching}
    expected = run(llama, prompts, watermark, policy, **options)
    assert expected.changed > 0
    kept = PromptCache()
    with tokens_read() as first:
        assert run(llama, prompts, watermark, policy, prompt_cache=kept, **options).tokens == expected.tokens
    with tokens_read() as second:
        again = run(llama, prompts, watermark, policy, prompt_cache=kept, **options)
    assert again.tokens == expected.tokens
    assert again.traces == expected.traces
    assert (sum(first) >= sum(map(len, prompts)) // 4, second) == (True, [])
    assert (len(kept), kept.found, kept.missed) == (len(prompts), len(prompts), len(prompts))


def test_it_serves_every_architecture(model: Any) -> None:
    kept, expected = PromptCache(), run(model, RAGGED)
    run(model, RAGGED, prompt_cache=kept)
    with tokens_read() as read:
        assert run(model, RAGGED, prompt_cache=kept).tokens == expected.tokens
    assert not read


def test_what_is_kept_serves_any_watermark_policy_and_sampling(llama: Any) -> None:
    kept = PromptCache()
    run(llama, ALIKE, caw.KGW(key=1), policy_of(llama), prompt_cache=kept)
    for watermark, policy, settings in (
        (None, None, {}),
        (caw.Unigram(key=4), None, {"do_sample": True, "seed": 3}),
        (caw.EXP(key=9), policy_of(llama), {}),
    ):
        expected = run(llama, ALIKE, watermark, policy, **settings)
        with tokens_read() as read:
            assert run(llama, ALIKE, watermark, policy, prompt_cache=kept, **settings).tokens == expected.tokens
        assert not read


def test_a_policy_that_looks_further_back_reads_again(llama: Any) -> None:
    policy = policy_of(llama)
    assert policy.network.spec.previous > 0
    kept, expected = PromptCache(), run(llama, RAGGED, caw.KGW(key=1), policy)
    run(llama, RAGGED, prompt_cache=kept)
    size = kept.size
    with tokens_read() as read:
        assert run(llama, RAGGED, caw.KGW(key=1), policy, prompt_cache=kept).tokens == expected.tokens
    assert sum(read) >= sum(map(len, RAGGED))
    assert size < kept.size < 2 * size, "it takes the place of what was kept"
    with tokens_read() as read:
        run(llama, RAGGED, prompt_cache=kept)
        run(llama, RAGGED, caw.KGW(key=1), policy, prompt_cache=kept)
    assert not read


def test_other_companions_share_another_beginning(llama: Any) -> None:
    """Two of the prompts alone share more than all five do; prompts kept whole serve both."""
    closer = [ALIKE[0], ALIKE[0][:-1] + prompt(4, 9)]
    expected, alone = run(llama, [*ALIKE, closer[1]]), run(llama, closer)
    kept = PromptCache()
    run(llama, [*ALIKE, closer[1]], prompt_cache=kept)
    with tokens_read() as read:
        assert run(llama, closer, prompt_cache=kept).tokens == alone.tokens == [expected.tokens[0], expected.tokens[-1]]
    assert read == [42], "the beginning of these two only"
    with tokens_read() as read:  # the other way round what was kept begins too late
        later = PromptCache()
        run(llama, closer, prompt_cache=later)
        assert run(llama, [*ALIKE, closer[1]], prompt_cache=later).tokens == expected.tokens
    assert later.found == 0


def test_a_prompt_alone_is_kept_with_its_beginning(llama: Any) -> None:
    kept, expected = PromptCache(), run(llama, ALIKE)
    for ids in ALIKE:
        run(llama, [ids], prompt_cache=kept)
    with tokens_read() as read:
        assert run(llama, ALIKE, prompt_cache=kept).tokens == expected.tokens
    assert read == [40], "only what all begin with is new to it"


def test_full_it_keeps_what_it_has(llama: Any) -> None:
    every = PromptCache()
    expected = run(llama, RAGGED, prompt_cache=every)
    first = PromptCache()
    run(llama, RAGGED[:2], prompt_cache=first)
    small = PromptCache(max_memory=first.size)
    for _ in range(2):
        assert run(llama, RAGGED, batch=2, prompt_cache=small).tokens == expected.tokens
    assert (len(small), small.found, small.missed) == (2, 2, 6)
    assert small.size == first.size < every.size
    none = PromptCache(max_memory=1)
    for _ in range(2):
        assert run(llama, ALIKE, prompt_cache=none).tokens == run(llama, ALIKE).tokens
    assert (len(none), none.size, none.found) == (0, 0, 0)


def test_its_size_is_what_it_holds(llama: Any) -> None:
    kept = PromptCache()
    run(llama, ALIKE, prompt_cache=kept)
    config = llama.config
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    tokens = 40 + sum(len(ids) - 40 for ids in ALIKE)
    assert kept.size == tokens * per_token + len(ALIKE) * config.vocab_size * 4


def test_it_belongs_to_one_model(llama: Any) -> None:
    kept, other = PromptCache(), copy.deepcopy(llama)
    run(other, RAGGED, prompt_cache=kept)
    with pytest.raises(ValueError, match="found another model"):
        run(llama, RAGGED, prompt_cache=kept)
    with pytest.raises(ValueError, match="dtype"):
        run(other.to(torch.bfloat16), RAGGED, prompt_cache=kept)
    del other
    gc.collect()
    with pytest.raises(ValueError, match="found another model"):
        run(llama, RAGGED, prompt_cache=kept)


@pytest.mark.parametrize("wrong", ["much", 0, -1, 1.5, True, [1]])
def test_a_wrong_size_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_memory"):
        PromptCache(max_memory=wrong)


def test_what_it_may_take_is_left_to_it(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from caw.decoding import memory, slots

    planned: list[Any] = []
    original = slots.fitting_batch
    monkeypatch.setattr(memory, "free_memory", lambda device: 1 << 30)
    monkeypatch.setattr(slots, "free_memory", lambda device: 1 << 30)
    monkeypatch.setattr(slots, "fitting_batch", lambda *given: (planned.append(given[2]), original(*given))[1])
    run(llama, RAGGED)
    run(llama, RAGGED, prompt_cache=PromptCache(max_memory=0.25))
    run(llama, RAGGED, prompt_cache=PromptCache(max_memory="1MiB"))
    run(llama, RAGGED, prompt_cache=PromptCache(), max_memory="200MiB")
    assert planned == [int(0.9 * (1 << 30)), 3 << 28, int(0.9 * (1 << 30)), 200 << 20]


def test_unknown_free_memory_bounds_nothing(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "memory_budget", lambda given, device: None)
    kept = PromptCache()
    run(llama, RAGGED, prompt_cache=kept)
    assert (len(kept), kept.room) == (4, 0)


def test_the_public_way_in_takes_it(llama: Any) -> None:
    kept = PromptCache()
    options: dict[str, Any] = {"max_new_tokens": 5, "prompt_cache": kept}
    out = [caw.generate(llama, tokenizer(), RAGGED, watermark=caw.KGW(key=1), **options) for _ in range(2)]
    assert out[0].sequences == out[1].sequences
    assert kept.found == len(RAGGED)


def test_a_kept_prompt_knows_its_bytes() -> None:
    entry = KeptPrompt(2, [torch.zeros(3, 2, 1, 5, 4), torch.zeros(1, 2, 1, 5, 4)], torch.zeros(2, 7))
    assert entry.size == (120 + 40 + 14) * 4
