"""Prompts are read once for several calls, and no call's tokens change for it."""

import copy
import gc
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from decoding.architectures import RAGGED, policy_of, prompt, tokenizer
from decoding.running import run

import caw
from caw import PromptCache
from caw.decoding import memory, plan, reading
from caw.decoding import prompt_cache as cache_module
from caw.decoding.prompt_cache import REACH
from caw.evaluator import Evaluator
from caw.evaluator.features import FeatureSpec

BEGINNING = prompt(40, 50)
ALIKE = [BEGINNING + prompt(3 + i, i) for i in range(5)]
CPU = torch.device("cpu")


@contextmanager
def tokens_read() -> Iterator[list[int]]:
    read: list[int] = []
    original = reading.chunk_logits

    def counted(model: Any, cache: Any, rows: Any, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        read.append(ids.numel())
        return original(model, cache, rows, ids, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "chunk_logits", counted)
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


@pytest.mark.parametrize("previous", [0, 1, 2])
def test_a_policy_that_looks_further_back_finds_what_it_needs(llama: Any, previous: int) -> None:
    """Short prompts have fewer positions than any policy may ask for."""
    torch.manual_seed(5)
    policy = caw.CapacityPolicy(Evaluator(FeatureSpec(k=4, previous=previous), hidden=8), theta=1.0, beta=1.5)
    expected = run(llama, RAGGED, caw.KGW(key=1), policy)
    kept = PromptCache()
    run(llama, RAGGED, prompt_cache=kept)
    with tokens_read() as read:
        again = run(llama, RAGGED, caw.KGW(key=1), policy, prompt_cache=kept)
    assert again.tokens == expected.tokens
    assert [trace.choice for trace in again.traces] == [trace.choice for trace in expected.traces]
    assert not read


def test_prompts_alone_and_together_come_to_rest(llama: Any) -> None:
    """A prompt is read again only to keep more of it, never less."""
    kept, policy = PromptCache(), policy_of(llama)
    for _ in range(2):
        run(llama, ALIKE, caw.KGW(key=1), policy, prompt_cache=kept)
        run(llama, ALIKE[:1], prompt_cache=kept)
    with tokens_read() as read:
        assert run(llama, ALIKE[:1], prompt_cache=kept).tokens == run(llama, ALIKE[:1]).tokens
        run(llama, ALIKE, caw.KGW(key=1), policy, prompt_cache=kept)
    assert sum(read) == len(ALIKE[0]), "that one alone without the cache"


def test_other_companions_share_another_beginning(llama: Any) -> None:
    """Two of the prompts alone share more than all six do; what is kept of all serves them."""
    closer = [BEGINNING + prompt(9, 8) + prompt(n, n) for n in (4, 5)]
    every = [*closer, *ALIKE]
    expected, alone = run(llama, every), run(llama, closer)
    kept = PromptCache()
    run(llama, every, prompt_cache=kept)
    with tokens_read() as read:
        assert run(llama, closer, prompt_cache=kept).tokens == alone.tokens == expected.tokens[:2]
    assert read == [49], "the beginning of these two only"
    later = PromptCache()  # the other way round what was kept begins too late
    for _ in range(2):
        run(llama, closer, prompt_cache=later)
        assert run(llama, every, prompt_cache=later).tokens == expected.tokens
    assert later.missed == 2 + len(every), "the second time all are found"


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
    shared = 40 - max(0, REACH + 1 - 3)  # the shortest has three tokens of its own
    tokens = shared + sum(len(ids) - shared for ids in ALIKE)
    assert kept.size == tokens * per_token + len(ALIKE) * (REACH + 1) * config.vocab_size * 4
    tensors = [t for entry in kept._prompts.values() for t in (*entry.keys_values, entry.logits)]
    tensors += [t for part in kept._beginnings.values() for t in part]
    assert kept.size == sum({t.data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def test_it_belongs_to_one_model_and_its_weights(llama: Any) -> None:
    kept, other = PromptCache(), copy.deepcopy(llama)
    for _ in range(2):
        run(other, RAGGED, prompt_cache=kept)
    with torch.no_grad():
        other.model.embed_tokens.weight[5] += 1.0
    with pytest.raises(ValueError, match="other weights"):
        run(other, RAGGED, prompt_cache=kept)
    assert run(other, RAGGED, prompt_cache=PromptCache()).tokens == run(other, RAGGED).tokens
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


def test_decoding_goes_first(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it may hold, a call has the memory that it would have without it, and it has the rest."""
    plain = run(llama, RAGGED, batch=2, max_memory="1MiB")
    for limit in (1.0, "900GiB"):
        kept = PromptCache(max_memory=limit)
        assert run(llama, RAGGED, batch=2, max_memory="1MiB", prompt_cache=kept).tokens == plain.tokens
        assert len(kept) == len(RAGGED)
    monkeypatch.setattr(memory, "memory_budget", lambda given, device: needed[0])
    needed, original = [0], plan.decoding_needs

    def needs(*given: Any) -> Any:
        found = original(*given)
        needed[0] = found.of(2) + 3000  # what two sequences take, and a little
        return found

    monkeypatch.setattr(plan, "decoding_needs", needs)
    tight = PromptCache(max_memory="900GiB")
    assert run(llama, RAGGED, batch=2, prompt_cache=tight).tokens == plain.tokens
    assert 0 <= tight.size <= 3000
    assert tight.full


def test_unknown_free_memory_has_a_bound(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "memory_budget", lambda given, device: None)
    monkeypatch.setattr(memory, "memory_budget", lambda given, device: None)
    first = PromptCache()
    run(llama, RAGGED, prompt_cache=first)
    assert len(first) == 4
    monkeypatch.setattr(cache_module, "UNKNOWN_MEMORY", first.size - 1)
    second = PromptCache()
    run(llama, RAGGED, prompt_cache=second)
    assert len(second) < 4


@pytest.mark.parametrize("prompts", [RAGGED, ALIKE], ids=["ragged", "alike"])
def test_broken_prompts_are_not_kept(llama: Any, prompts: list[list[int]]) -> None:
    kept = PromptCache()
    handle = llama.model.embed_tokens.register_forward_hook(lambda module, given, out: out * float("nan"))
    try:
        assert all(run(llama, prompts, prompt_cache=kept).errors)
    finally:
        handle.remove()
    assert (len(kept), kept.size) == (0, 0)
    assert run(llama, prompts, prompt_cache=kept).tokens == run(llama, prompts).tokens


def test_repeated_prompts_and_prompts_within_prompts(llama: Any) -> None:
    """Many calls with one cache, each as if without it; captured steps (`fixed`) too."""
    kept, generator = PromptCache(), torch.Generator().manual_seed(3)
    pool = [*RAGGED, *ALIKE, ALIKE[0][:20], ALIKE[4] + prompt(3, 70), RAGGED[0][:4]]
    ways: list[dict[str, Any]] = [{}, {"fixed": True}]
    for number in range(12):
        picked = torch.randint(len(pool), (5,), generator=generator).tolist()
        prompts = [pool[i] for i in picked]
        marks = [(None, None), (caw.KGW(key=1), policy_of(llama)), (caw.EXP(key=9), policy_of(llama))]
        given: Any = marks[number % 3]
        options = {**ways[number % 2], "batch": 1 + number % 5, "max_new_tokens": 5}
        expected = run(llama, prompts, *given, **options)
        assert run(llama, prompts, *given, prompt_cache=kept, **options).tokens == expected.tokens
    assert kept.found > 20


def test_a_generator_given_up_leaves_whole_entries(llama: Any) -> None:
    kept = PromptCache()
    results = caw.iter_generate(llama, tokenizer(), RAGGED, max_new_tokens=5, batch_size=1, prompt_cache=kept)
    next(results)
    results.close()
    assert 1 <= len(kept) < len(RAGGED)
    assert run(llama, RAGGED, prompt_cache=kept).tokens == run(llama, RAGGED).tokens


@pytest.mark.parametrize("wrong", [True, {}, PromptCache])
def test_anything_else_is_refused(llama: Any, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"prompt_cache must be a caw\.PromptCache"):
        caw.generate(llama, tokenizer(), RAGGED, max_new_tokens=5, prompt_cache=wrong)


def test_a_forgotten_prompt_makes_room(llama: Any) -> None:
    cache = PromptCache()
    run(llama, ALIKE[:3], prompt_cache=cache)
    whole = cache.size
    cache.full = True
    cache.forget(ALIKE[1])
    cache.forget(ALIKE[4])  # was never kept
    assert len(cache) == 2 and cache.size < whole and not cache.full
    cache.found = cache.missed = 0
    run(llama, ALIKE[:3], prompt_cache=cache)
    assert (cache.found, cache.missed, cache.size) == (2, 1, whole)


def test_a_cache_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="a PromptCache holds one process's keys and values"):
        pickle.dumps(PromptCache())
