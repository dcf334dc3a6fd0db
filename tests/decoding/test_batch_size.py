"""As many sequences at once as fit."""

from __future__ import annotations

from typing import Any

import pytest
from decoding.architectures import policy_of, prompt
from decoding.running import run

import caw
from caw.decoding.batch_size import fitting_batch
from caw.decoding.memory_needs import Needs, decoding_needs
from caw.models.facts import ModelFacts


def test_batches_that_fit() -> None:
    needs = Needs(per_sequence=100, fixed=1000)
    assert fitting_batch(8, needs, None) == 8
    assert fitting_batch(8, needs, 1800) == 8
    with pytest.warns(UserWarning, match="8 sequences at once need 1.8 KiB and 1.4 KiB may be used: 3 are decoded"):
        assert fitting_batch(8, needs, 1399) == 3
    with pytest.raises(ValueError, match=r"max_memory must be at least 1.1 KiB for the longest prompt.*got 1.1 KiB"):
        fitting_batch(8, needs, 1099)


def test_a_small_budget_changes_no_text(llama: Any) -> None:
    """Six sequences planned, two at once: the same tokens."""
    prompts = [prompt(3 + i, i) for i in range(6)]
    settings: dict[str, Any] = {"max_new_tokens": 8}
    expected = run(llama, prompts, caw.KGW(key=1), policy_of(llama), **settings)
    needs = decoding_needs(ModelFacts.of(llama), 8 + 8, 2, 1, 1)
    budget = needs.fixed + 2 * needs.per_sequence
    with pytest.warns(UserWarning, match="2 are decoded at once"):
        cut = run(llama, prompts, caw.KGW(key=1), policy_of(llama), max_memory=budget, **settings)
    assert cut.tokens == expected.tokens
    assert {len(active) for active, *_ in cut.steps} <= {1, 2}
