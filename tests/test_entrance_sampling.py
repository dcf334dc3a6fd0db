"""Samples of generate: transformers' distribution, decided by seed and prompt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoding.architectures import VOCAB, build
from generating import PROMPTS, generate
from scipy import stats


@pytest.fixture
def model() -> Any:
    return build("llama")


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.7, "top_k": 20}, {"temperature": 1.5, "top_p": 0.8, "top_k": 50}]
)
def test_samples_follow_transformers_distribution(model: Any, settings: dict[str, Any]) -> None:
    """Chi-square test of 3000 first tokens against transformers' warpers; false alarms: 1 in 10 000."""
    ids, draws = PROMPTS[0], 3000
    out = generate(
        model, [ids] * draws, max_new_tokens=1, do_sample=True, batch_size=500, return_trace=False, **settings
    )
    processed = model.generate(
        torch.tensor([ids]), do_sample=True, max_new_tokens=1, output_scores=True, return_dict_in_generate=True,
        pad_token_id=0, **{"top_k": 0, **settings},
    ).scores[0][0]  # fmt: skip
    expected = draws * processed.double().softmax(0)
    observed = torch.bincount(torch.tensor([s[0] for s in out.sequences]), minlength=VOCAB).double()
    assert not observed[expected == 0].any(), "a token that the warpers exclude was drawn"
    rare = expected < 5
    pooled = [torch.cat([x[~rare], x[rare].sum()[None]]).numpy() for x in (observed, expected)]
    if pooled[1][-1] == 0:
        pooled = [x[:-1] for x in pooled]
    assert stats.chisquare(*pooled).pvalue > 1e-4


def test_seed_and_prompt_decide_the_sample(model: Any) -> None:
    first = generate(model, do_sample=True, seed=1).sequences
    assert first == generate(model, do_sample=True, seed=1, batch_size=1).sequences
    assert first != generate(model, do_sample=True, seed=2).sequences
    assert first[::-1] == generate(model, PROMPTS[::-1], do_sample=True, seed=1).sequences


def test_the_coldest_sample_is_greedy(model: Any) -> None:
    cold = generate(model, do_sample=True, temperature=1e-6, seed=5)
    assert cold.sequences == generate(model).sequences
