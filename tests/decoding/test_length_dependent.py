"""Models whose rotary embedding changes with the length of the text (Phi-3), on either side of the change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoding.architectures import GQA, PAD, POSITIONS, from_config, prompt, spread_evaluator
from decoding.brute_force import BruteForce, agree
from decoding.running import run

import caw
from caw.decoding import prefill
from caw.decoding.prompt_cache import PromptCache

LIMIT, NEW = 60, 8
BEGINNING = prompt(40, 3)  # long enough to be shared
SHORT = [[*BEGINNING, *prompt(n, n)] for n in (1, 7)]
LONG = [[*BEGINNING, *prompt(n, n)] for n in (25, 31)]


@pytest.fixture(scope="module")
def phi() -> Any:
    """A tiny Phi-3 that turns positions otherwise in texts of more than LIMIT tokens."""
    pairs = GQA["hidden_size"] // GQA["num_attention_heads"] // 2
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * pairs, "long_factor": [6.0] * pairs}
    return from_config("phi3", {**GQA, "rope_parameters": rope, "original_max_position_embeddings": LIMIT})


def stock(model: Any, ids: list[int]) -> list[int]:
    """transformers' own continuation of one prompt."""
    out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=NEW, pad_token_id=PAD, eos_token_id=None)
    return out[0, len(ids) :].tolist()


def test_every_text_is_as_if_alone(phi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short and long ones together, with a beginning to share, chunks to cut and prompts to keep."""
    monkeypatch.setattr(prefill, "CHUNK", 16)
    prompts, kept = [*SHORT, *LONG], PromptCache(1 << 20)
    assert max(map(len, SHORT)) + NEW <= LIMIT < min(map(len, LONG)) < POSITIONS
    expected = [stock(phi, ids) for ids in prompts]
    for _ in range(2):
        assert run(phi, prompts, max_new_tokens=NEW, prompt_cache=kept).tokens == expected
    assert (len(kept), kept.found) == (0, 0)


def test_the_change_shows(phi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would find: the long texts read as if nothing changed."""
    expected = [stock(phi, ids) for ids in LONG]
    monkeypatch.setattr("caw.decoding.slots.rope_limit", lambda model: None)
    assert run(phi, LONG, max_new_tokens=NEW).tokens != expected


def test_below_the_change_nothing_is_given_up(phi: Any) -> None:
    kept = PromptCache(1 << 20)
    assert run(phi, SHORT, max_new_tokens=NEW, prompt_cache=kept).tokens == [stock(phi, ids) for ids in SHORT]
    assert len(kept) == len(SHORT)


def test_siblings_beyond_the_change(phi: Any) -> None:
    """Looking ahead in every way to branch is decoding by definition, one sequence at a time."""
    mark, policy = caw.EXP(key=1, top_k=40), caw.CapacityPolicy(spread_evaluator(phi), theta=1.0)
    reference = BruteForce(phi, mark, policy)
    expected = [reference.decode(ids, NEW) for ids in LONG]
    for branching in ("tree", "sequential", "batch"):
        done = run(phi, LONG, mark, policy, max_new_tokens=NEW, branching=branching)
        assert done.changed > 0
        assert {len(active) for active, *_ in done.steps} == {1}
        for ids, tokens, wanted in zip(LONG, done.tokens, expected, strict=True):
            agree(tokens, wanted, reference, ids, f"longrope {branching}")
