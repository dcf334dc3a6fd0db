"""Chains of drafts, by definition: a draft is a lone candidate behind ancestors that lie in the cache."""

from __future__ import annotations

import pytest
import torch
from caw.triton_kernels.sibling_attention_ref import drafted_attention_ref, sibling_attention_ref

OPTIONS = {
    "plain": {},
    "window": {"window": 3},
    "all": {"window": 40, "softcap": 5.0, "sinks": torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_a_draft_reads_its_ancestors_as_if_they_were_cached(options):
    """In float64 to the last digits: row C + n is a lone candidate after n + 1 tokens more."""
    torch.manual_seed(5)
    drafts, candidates, lengths = 4, 2, torch.tensor([50, 0, 31])
    q, k_own, v_own = (torch.randn(3, heads, candidates + drafts, 8).double() for heads in (4, 2, 2))
    k, v = torch.randn(2, 3, 2, 60, 8).double()
    for cache in (k, v):
        for row, length in zip(cache, lengths.tolist(), strict=True):
            row[:, length:] = torch.nan
    given = OPTIONS[options]
    out = drafted_attention_ref(q, k, v, k_own, v_own, lengths, drafts, 0.4, **given)
    siblings = [x[:, :, :candidates] for x in (q, k_own, v_own)]
    expected = sibling_attention_ref(siblings[0], k, v, *siblings[1:], lengths, 0.4, **given)
    torch.testing.assert_close(out[:, :, :candidates], expected, rtol=1e-12, atol=1e-12)
    every = torch.arange(3)
    for n, own in enumerate(range(candidates, candidates + drafts)):
        before = 0 if n == 0 else own - 1
        k[every, :, lengths + n], v[every, :, lengths + n] = k_own[:, :, before], v_own[:, :, before]
        at = slice(own, own + 1)
        expected = sibling_attention_ref(
            q[:, :, at], k, v, k_own[:, :, at], v_own[:, :, at], lengths + n + 1, 0.4, **given
        )
        torch.testing.assert_close(out[:, :, at], expected, rtol=1e-12, atol=1e-12)
