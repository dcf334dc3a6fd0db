"""format="lm-watermarking": fixed vectors, and the original code where CAW_LM_WATERMARKING names its folder."""

from __future__ import annotations

import pytest
import torch

import caw
from caw.watermarks import KGW
from caw.watermarks.formats import sbw, seeding

KEY, VOCABULARY = 15485863, 97
LM = "lm-watermarking"


def test_golden_tables() -> None:
    """First entries of lm-watermarking's table, and of the one transformers' default key seeds."""
    fixed = seeding.permutation_table(seeding.HASHINT_SEED, seeding.TABLE_SIZE)
    assert fixed[:5].tolist() == [250534, 296009, 268311, 356494, 845733]
    keyed = seeding.permutation_table(KEY, seeding.TABLE_SIZE)
    assert keyed[:5].tolist() == [138280, 994103, 467886, 915329, 149437]


def test_lefthash_lists_are_those_of_transformers_and_selfhash_lists_are_not() -> None:
    context = torch.randint(0, 500, (20, 1))
    left = KGW(key=KEY, format=LM, vocab_size=500).green_vocabulary(context, 500)
    assert torch.equal(left, KGW(key=KEY, format="transformers", vocab_size=500).green_vocabulary(context, 500))
    assert torch.equal(left, KGW(key=KEY, seeding="simple_1", format=LM, vocab_size=500).green_vocabulary(context, 500))
    window = torch.randint(0, 500, (20, 4))
    ours = KGW(key=KEY, seeding="selfhash", format=LM, vocab_size=500).green_vocabulary(window, 500)
    other = KGW(key=KEY, seeding="selfhash", context_width=4, format="transformers", vocab_size=500)
    assert not torch.equal(ours, other.green_vocabulary(window, 500))


def test_compat_counts_each_ngram_once_and_exact_each_seed_and_token_once() -> None:
    ids = [5, 6, 5, 6, 5, 6, 7]
    watermark = KGW(key=3, format=LM, vocab_size=50)
    assert caw.detect(ids, None, watermark, mode="compat").num_scored == 3
    assert caw.detect(ids, None, watermark).num_scored == 3
    sums = KGW(key=3, seeding="additive", context_width=2, format=LM, vocab_size=50)
    ids = [1, 4, 9, 2, 3, 9]  # 1 + 4 = 2 + 3: one seed, two n-grams
    assert caw.detect(ids, None, sums, mode="compat").num_scored == 4
    assert caw.detect(ids, None, sums).num_scored == 3


@pytest.mark.parametrize("scheme", ["skipgram", "minhash", "additive"])
@pytest.mark.parametrize("format_name", [LM, "sbw"])
def test_lists_that_token_zero_gives_to_every_key_are_no_evidence(format_name: str, scheme: str) -> None:
    """key * 0 hashes alike whatever the key: what counts must be free to differ between keys, of one text's tokens."""
    if format_name == "sbw" and scheme == "additive":
        scheme = "simple_4"
    ids = torch.randint(0, 3, (80,), generator=torch.Generator().manual_seed(0)).tolist()
    ids += [0] * 8 + torch.randint(0, 40, (20,), generator=torch.Generator().manual_seed(1)).tolist()
    greens: dict[int, list[float]] = {}
    for key in range(3, 43):
        watermark = KGW(key=key, gamma=0.5, seeding=scheme, format=format_name, vocab_size=50)
        result = caw.detect(ids, None, watermark)
        for place, score in enumerate(result.token_scores):
            if score is not None:
                greens.setdefault(place, []).append(score)
    often = {place: scores for place, scores in greens.items() if len(scores) >= 30}
    assert len(often) > 10
    assert not [place for place, scores in often.items() if len(set(scores)) == 1]
    zero = torch.zeros(1, dtype=torch.int64)
    assert int(seeding.hashint(zero, seeding.fixed_table(KEY, 0))) == seeding.HASH_OF_ZERO
    assert int(sbw.hashint(zero)) == sbw.HASH_OF_ZERO


# ---- the original code ---------------------------------------------------------------------------------------------
