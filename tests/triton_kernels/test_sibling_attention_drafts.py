"""Chains of drafts, by definition: a draft is a lone candidate behind ancestors that lie in the cache."""

import pytest
import torch

from caw.triton_kernels.sibling_attention_ref import drafted_attention_ref

OPTIONS = {
    "plain": {},
    "window": {"window": 3},
    "all": {"window": 40, "softcap": 5.0, "sinks": torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)},
}


def one_by_one(q, keys, values, scale, window=None, softcap=None, sink=None):
    """Of one head's query [D] at the place behind `keys` [T, D], its own being the last: [D]."""
    keys, values = (x if window is None else x[-window:] for x in (keys, values))
    scores = keys @ q * scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    total = scores.exp().sum() + (0 if sink is None else sink.exp())
    return (scores.exp() / total) @ values


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("drafts", [0, 1, 4])
def test_a_draft_reads_its_ancestors_as_if_they_were_cached(options, drafts):
    """In float64 to the last digits: candidates see the prefix and themselves, drafts the first one and those before
    them as well."""
    torch.manual_seed(5)
    candidates, lengths, given = 2, torch.tensor([50, 0, 31]), dict(OPTIONS[options])
    q, k_own, v_own = (torch.randn(3, heads, candidates + drafts, 8).double() for heads in (4, 2, 2))
    k, v = torch.randn(2, 3, 2, 50, 8).double()
    for cache in (k, v):
        for row, length in zip(cache, lengths.tolist(), strict=True):
            row[:, length:] = torch.nan
    out = drafted_attention_ref(q, k, v, k_own, v_own, lengths, drafts, 0.4, **given)
    sinks = given.pop("sinks", [None] * 4)
    for b, head, own in torch.cartesian_prod(torch.arange(3), torch.arange(4), torch.arange(candidates + drafts)):
        chain = [own] if own < candidates else [0, *range(candidates, int(own) + 1)]
        keys, values = (
            torch.cat([cache[b, head // 2, : lengths[b]], new[b, head // 2, chain]])
            for cache, new in ((k, k_own), (v, v_own))
        )
        expected = one_by_one(q[b, head, own], keys, values, 0.4, sink=sinks[head], **given)
        torch.testing.assert_close(out[b, head, own], expected, rtol=1e-11, atol=1e-11)
