"""format="markllm": fixed vectors and a plain writing of MarkLLM's rules."""

import math

import pytest
import torch
from scipy import stats

import caw
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, Unigram
from caw.watermarks.formats import seeding

KEY = 15485863
SCHEMES = ("lefthash", "additive", "skip", "min")


def test_golden_lists_of_kgw() -> None:
    """V = 32000, after token 42: f = 18136, seed = 27368."""
    prf = seeding.permutation_table(KEY, 32000)
    assert int(prf[42]) == 18136
    context, tokens = torch.tensor([[42]]), torch.tensor([[11290, 25966, 13273, 24591, 26097]])
    watermark = KGW(key=KEY, gamma=0.5, format="markllm", vocab_size=32000)
    assert int(watermark.scheme.seeds(context, context)) == 27368
    assert bool(watermark.green_tokens(context, tokens).all())
    head = torch.randperm(32000, generator=torch.Generator().manual_seed(27368))
    assert head[:5].tolist() == tokens[0].tolist()
    assert torch.equal(watermark.green_vocabulary(context, 32000)[0].nonzero()[:, 0], head[:16000].sort().values)


def test_golden_mask_of_unigram() -> None:
    watermark = Unigram(key=KEY, gamma=0.5, format="markllm", vocab_size=32000)
    mask = watermark.green_vocabulary(torch.empty(1, 0, dtype=torch.int64), 32000)[0]
    assert "".join(str(int(x)) for x in mask[:16]) == "1000011000101010"
    assert int(mask.sum()) == 16000 and watermark.green_fraction == 0.5


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [1, 2, 3])
def test_kgw_lists_equal_a_plain_writing(scheme: str, width: int) -> None:
    watermark = KGW(key=7, gamma=0.3, seeding=scheme, context_width=width, format="markllm", vocab_size=101)
    prf = torch.randperm(101, generator=torch.Generator().manual_seed(7)).tolist()
    for context in torch.randint(0, 101, (30, width)).tolist():
        f = {
            "lefthash": lambda c=context: prf[math.prod(c) % 101],
            "additive": lambda c=context: prf[sum(c) % 101],
            "skip": lambda c=context: prf[c[0]],
            "min": lambda c=context: min(prf[x] for x in c),
        }[scheme]()
        head = torch.randperm(101, generator=torch.Generator().manual_seed(7 * f % 101))[:30]
        mask = watermark.green_vocabulary(torch.tensor([context]), 101)[0]
        assert mask.nonzero()[:, 0].tolist() == sorted(head.tolist())


def test_sweet_lists_are_those_of_transformers() -> None:
    context = torch.randint(0, 500, (20, 1))
    sweet = KGW(key=KEY, seeding="sweet", format="markllm", vocab_size=500).green_vocabulary(context, 500)
    assert torch.equal(sweet, KGW(key=KEY, format="transformers", vocab_size=500).green_vocabulary(context, 500))


def test_exp_scores_equal_a_plain_writing() -> None:
    ids = torch.randint(0, 40, (60,)).tolist()
    watermark = EXP(key=KEY, format="markllm", vocab_size=50)
    values = watermark.score_tokens(torch.tensor(ids)).values
    total = 0.0
    for i in range(4, 60):
        seed = KEY * (math.prod(ids[i - 4 : i]) % 50)
        u = float(torch.rand(50, generator=torch.Generator().manual_seed(seed))[ids[i]])
        assert_close(float(values[i]), -math.log1p(-u), "float64")
        total -= math.log1p(-u)
    compat = caw.detect(ids, None, watermark, mode="compat")
    assert compat.num_scored == 56
    assert_close(compat.score, total, "float64")
    assert_close(compat.p_value, stats.gamma.sf(total, 56), "tail")


def test_exp_evidence_is_seed_and_token_and_never_seed_zero() -> None:
    """50 = 2 * 5 * 5 divides many products: such tokens score the same under every key."""
    ids = torch.randint(0, 50, (200,)).tolist()
    results = [caw.detect(ids, None, EXP(key=k, format="markllm", vocab_size=50)) for k in (3, 5, 7)]
    assert len({r.num_scored for r in results}) == 1
    compat = caw.detect(ids, None, EXP(key=3, format="markllm", vocab_size=50), mode="compat")
    assert results[0].num_scored < compat.num_scored == 196


@pytest.mark.parametrize("scheme", SCHEMES)
def test_keys_that_leave_one_list_are_refused(scheme: str) -> None:
    """key mod V = 0: every context has seed 0, whose list depends on no key."""
    with pytest.raises(ValueError, match="got a multiple of 50"):
        KGW(key=100, seeding=scheme, format="markllm", vocab_size=50)
    with pytest.raises(ValueError, match="got a multiple of 50"):
        KGW(key=100, seeding=scheme, format="markllm").with_vocabulary(50)
    assert KGW(key=100, seeding="sweet", format="markllm", vocab_size=50)
