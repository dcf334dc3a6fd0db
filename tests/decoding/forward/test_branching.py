"""One forward of siblings against a forward of each, and what the cache holds after a commit."""

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
CHOICES = ((1, -1, 2), (0, 0, -1), (2, 1, 0))  # -1: none


def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids]), use_cache=False).logits[0, -1]


def make_cache(model: Any, batch: int = len(LENGTHS)) -> SiblingCache:
    return SiblingCache(
        model.config.get_text_config(decoder=True).num_hidden_layers, batch, 24, CANDIDATES, torch.device("cpu")
    )


@torch.inference_mode()
def compare_with_plain_forwards(model: Any, branching: Any) -> None:
    """Prefill and steps of siblings against forwards without a cache. Packed: other numbers for each text."""
    texts = [prompt(length, length) for length in LENGTHS]
    cache = make_cache(model)
    actual, expected = [], []
    with caw_attention(model):
        rows, _ = prefill(model, cache, range(len(texts)), texts, history=0)
    actual += list(rows)
    expected += [logits_of(model, ids) for ids in texts]
    for step, choice in enumerate(CHOICES):
        candidates = torch.tensor([prompt(CANDIDATES, 50 + 10 * step + b) for b in range(len(texts))])
        counts, longest = torch.tensor(choice) + 1, int(cache.lengths.max())
        with caw_attention(model):
            if branching == "packed":
                rows, first = forward_packed(model, cache, candidates, counts, longest)
                actual += list(rows)
                some = counts > 0  # where a text has no candidate its first row means nothing
                assert torch.equal(first[some], (counts.cumsum(0) - counts)[some])
            else:
                actual += list(forward_candidates(model, cache, candidates, branching, longest).flatten(0, 1))
                counts[:] = CANDIDATES
        for ids, row, count in zip(texts, candidates, counts, strict=True):
            expected += [logits_of(model, [*ids, int(token)]) for token in row[:count]]
        chosen = torch.tensor(choice)
        cache.commit(chosen.clamp_min(0), chosen >= 0)
        texts = [[*ids, int(row[c])] if c >= 0 else ids for ids, row, c in zip(texts, candidates, choice, strict=True)]
    assert_close(torch.stack(actual), torch.stack(expected), "forward")


@pytest.mark.parametrize("branching", ["tree", "packed", "sequential", "batch"])
def test_siblings_equal_separate_forwards(model: Any, branching: str) -> None:
    compare_with_plain_forwards(model, branching)


CHANGED: dict[str, str] = {"mistral": "sliding_window", "gemma3": "sliding_window", "gemma2": "softcap",
                          "gpt_oss": "s_aux", "granite": "scaling", "llama": "siblings"}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_comparison_would_notice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails when attention leaves out a window, a cap, a sink or a scale, or when siblings see each other."""
    original, changed = attention_module.attention, CHANGED[name]

    def wrong(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if changed != "siblings":
            kwargs[changed] = None
        elif kwargs["caw_layout"].lengths is not None:
            value.copy_(value.mean(dim=2, keepdim=True))
        return original(module, query, key, value, *args, **kwargs)

    monkeypatch.setattr(attention_module, "_check_contract", lambda *args: None)
    monkeypatch.setattr(attention_module, "attention", wrong)
    with pytest.raises(AssertionError, match="row 'forward'"):
        compare_with_plain_forwards(build(name), "tree")


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
