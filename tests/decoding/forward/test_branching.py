"""One forward of siblings against a forward of each, and what the cache holds after a commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from decoding.architectures import VOCAB, build, prompt

from caw.decoding.forward import attention as attention_module
from caw.decoding.forward.attention import caw_attention
from caw.decoding.forward.branching import forward_candidates, forward_packed
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.prefill import prefill
from caw.testing import assert_close

LENGTHS = (11, 1, 7)  # longer than the window, one token, between
CANDIDATES = 3
CHOICES = ((0, 2, 1), (2, 1, 2))


def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    """What the plain model says after `ids`."""
    return model(torch.tensor([ids]), use_cache=False).logits[0, -1]


def make_cache(model: Any, batch: int = len(LENGTHS)) -> SiblingCache:
    return SiblingCache(model.config.num_hidden_layers, batch, 24, CANDIDATES, torch.device("cpu"))


@torch.inference_mode()
def compare_with_plain_forwards(model: Any, branching: Any) -> None:
    """Prefill, then two steps of siblings with commits; every row of logits against a forward without a cache."""
    texts = [prompt(length, length) for length in LENGTHS]
    cache = make_cache(model)
    actual, expected = [], []
    with caw_attention(model):
        rows, _ = prefill(model, cache, range(len(texts)), texts, history=0)
    actual += list(rows)
    expected += [logits_of(model, ids) for ids in texts]
    for step, choice in enumerate(CHOICES):
        candidates = torch.tensor([prompt(CANDIDATES, 50 + 10 * step + b) for b in range(len(texts))])
        with caw_attention(model):
            rows = forward_candidates(model, cache, candidates, branching, int(cache.lengths.max()))
        for b, ids in enumerate(texts):
            actual += list(rows[b])
            expected += [logits_of(model, [*ids, int(token)]) for token in candidates[b]]
        cache.commit(torch.tensor(choice), torch.ones(len(texts), dtype=torch.bool))
        texts = [[*ids, int(candidates[b, choice[b]])] for b, ids in enumerate(texts)]
    assert_close(torch.stack(actual), torch.stack(expected), "forward")


@pytest.mark.parametrize("branching", ["tree", "sequential", "batch"])
def test_siblings_equal_separate_forwards(model: Any, branching: str) -> None:
    compare_with_plain_forwards(model, branching)


@torch.inference_mode()
def test_packed_candidates_equal_separate_forwards(model: Any) -> None:
    """Other numbers of candidates for each sequence, none included; the last of them is committed."""
    texts = [prompt(length, length) for length in LENGTHS]
    cache = make_cache(model)
    actual, expected = [], []
    with caw_attention(model):
        prefill(model, cache, range(len(texts)), texts, history=0)
    for step, counts in enumerate(([2, 0, 3], [1, 1, 0], [3, 2, 1])):
        candidates = torch.tensor([prompt(CANDIDATES, 50 + 10 * step + b) for b in range(len(texts))])
        with caw_attention(model):
            rows, first = forward_packed(model, cache, candidates, torch.tensor(counts), int(cache.lengths.max()))
        assert rows.shape[0] == sum(counts)
        for b, count in enumerate(counts):
            actual += list(rows[first[b] : first[b] + count])
            expected += [logits_of(model, [*texts[b], int(token)]) for token in candidates[b, :count]]
        last = torch.tensor(counts) - 1
        cache.commit(last.clamp_min(0), last >= 0)
        texts = [ids if c == 0 else [*ids, int(candidates[b, c - 1])]
                 for b, (ids, c) in enumerate(zip(texts, counts, strict=True))]  # fmt: skip
    assert_close(torch.stack(actual), torch.stack(expected), "forward")


@torch.inference_mode()
def test_commit_leaves_no_trace_of_siblings(model: Any) -> None:
    """Decode with rejected siblings beside, and alone: one cache, one distribution."""
    texts = [prompt(length, length) for length in LENGTHS]
    caches = [make_cache(model) for _ in range(2)]
    active = torch.ones(len(texts), dtype=torch.bool)
    final = []
    for cache, alone in zip(caches, (False, True), strict=True):
        with caw_attention(model):
            prefill(model, cache, range(len(texts)), texts, history=0)
            for step, choice in enumerate(map(torch.tensor, CHOICES)):
                candidates = torch.tensor([prompt(CANDIDATES, 50 + 10 * step + b) for b in range(len(texts))])
                if alone:
                    candidates, choice = candidates.gather(1, choice[:, None]), torch.zeros_like(choice)
                forward_candidates(model, cache, candidates, "tree", int(cache.lengths.max()))
                cache.commit(choice, active)
            last = torch.tensor([[5], [6], [7]])
            final.append(forward_candidates(model, cache, last, "tree", int(cache.lengths.max())))
    assert torch.equal(caches[0].lengths, caches[1].lengths)
    for b, length in enumerate(caches[0].lengths.tolist()):
        assert_close(caches[0].store[:, :, b, :, :length], caches[1].store[:, :, b, :, :length], "forward")
    assert_close(final[0], final[1], "forward")


def without(argument: str) -> Callable[..., Any]:
    """Our attention, deaf to one argument."""
    original = attention_module.attention

    def deaf(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, argument: None})

    return deaf


@pytest.mark.parametrize(
    ("name", "argument"),
    [("mistral", "sliding_window"), ("gemma3", "sliding_window"), ("gemma2", "softcap"), ("gpt_oss", "s_aux"),
     ("granite", "scaling")],
)  # fmt: skip
def test_comparison_would_notice(name: str, argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above fails when attention leaves out a window, a cap, a sink or a scale."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    monkeypatch.setattr(attention_module, "_check_contract", lambda *args: None)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "caw", without(argument))
    with pytest.raises(AssertionError, match="row 'forward'"):
        compare_with_plain_forwards(build(name), "tree")


def test_comparison_would_notice_siblings_that_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    original = attention_module.attention

    def leaking(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs["caw_layout"].lengths is not None:
            value.copy_(value.mean(dim=2, keepdim=True))
        return original(module, query, key, value, *args, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "caw", leaking)
    with pytest.raises(AssertionError, match="row 'forward'"):
        compare_with_plain_forwards(build("llama"), "tree")


@torch.inference_mode()
def test_stale_places_are_never_read(llama: Any) -> None:
    """NaN beyond every length, in scratch and in unused rows changes nothing."""
    texts = [prompt(5, 1), prompt(2, 2)]
    candidates = torch.randint(3, VOCAB, (2, 2))
    rows = []
    for poison in (False, True):
        cache = make_cache(llama, batch=2)
        with caw_attention(llama):
            prefill(llama, cache, range(2), texts, history=0)
            if poison:
                for b, ids in enumerate(texts):
                    cache.store[:, :, b, :, len(ids) :] = torch.nan
                cache.scratch.fill_(torch.nan)
            rows.append(forward_candidates(llama, cache, candidates, "tree", 20))
    assert torch.equal(*rows)
