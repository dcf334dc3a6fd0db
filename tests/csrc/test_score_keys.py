"""`score_keys`, compiled, against its reference and against the scores of the text under each key by itself."""

from __future__ import annotations

import pytest
import torch
from pairwise import pairwise
from prf_inputs import KEYS, contexts, key_tensor

from caw import ops, prf
from caw.ops_ref.score_keys_ref import AT_ONCE, score_keys_ref
from caw.ops_ref.score_tokens_ref import score_tokens_ref
from caw.testing import assert_close

SCHEMES = {"green": 0, "race by top_k": 2, "race by scale": 3}
THRESHOLD = prf.green_threshold(0.25)


@pytest.mark.parametrize("scheme, width, count", pairwise(SCHEMES, [0, 1, 4, 9], [0, 1, 7, 8, 255, 257, 1031]))
def test_sums_are_those_of_the_reference(scheme: str, width: int, count: int) -> None:
    """Counts across pieces of 512 tokens and products of 256, lanes left over in both; green tokens exactly."""
    before = contexts(max(count, 1), width, "cpu")[:count]
    given = (before, torch.randint(0, 200_000, (count,)), key_tensor(KEYS), SCHEMES[scheme], THRESHOLD)
    got, expected = ops.score_keys(*given), score_keys_ref(*given)
    assert got.dtype == expected.dtype == torch.float64 and got.shape == (len(KEYS),)
    if scheme == "green":
        assert torch.equal(got, expected)
    else:
        assert_close(got, expected, "float64")


@pytest.mark.parametrize("scheme, width", [("green", 1), ("race by top_k", 0), ("race by scale", 4)])
def test_sums_are_those_of_the_text_under_each_key(scheme: str, width: int) -> None:
    ids = torch.randint(0, 50_000, (300,))
    before = torch.cat([ids.new_full((width,), -1), ids]).unfold(0, width + 1, 1)[:, :width]
    got = ops.score_keys(before, ids, key_tensor(KEYS), SCHEMES[scheme], THRESHOLD)
    alone = [score_tokens_ref(ids, width, k.expand(300), SCHEMES[scheme], THRESHOLD)[0] for k in key_tensor(KEYS)]
    assert_close(got, torch.stack([values.sum() for values in alone]), "float64")


def test_more_keys_than_the_reference_takes_at_once() -> None:
    keys = torch.randint(-(2**63), 2**63 - 1, (AT_ONCE // 100 + 3,))
    given = (contexts(100, 1, "cpu"), torch.randint(0, 50_000, (100,)), keys, 0, THRESHOLD)
    assert torch.equal(ops.score_keys(*given), score_keys_ref(*given))


def test_bounds_of_the_list() -> None:
    """No word is below 0 and every word below 2^24."""
    given = (contexts(5, 2, "cpu"), torch.arange(5), key_tensor(KEYS), 0)
    assert ops.score_keys(*given, 0).tolist() == [0.0] * len(KEYS)
    assert ops.score_keys(*given, 1 << 24).tolist() == [5.0] * len(KEYS)


def test_bad_arguments_are_refused() -> None:
    before, tokens, keys = contexts(3, 1, "cpu"), torch.arange(3), torch.arange(2)
    with pytest.raises((RuntimeError, ValueError), match="selfhash has other evidence under each key"):
        ops.score_keys(before, tokens, keys, 1, 5)
    with pytest.raises(ValueError, match="selfhash has other evidence under each key"):
        score_keys_ref(before, tokens, keys, 1, 5)
    if ops.missing_extension():
        pytest.skip(ops.missing_extension())
    for changed, message in (
        ((before[:2], tokens, keys, 0, 5), r"contexts must have shape \[n, W\], got \[2, 1\]"),
        ((before, tokens[None], keys, 0, 5), r"tokens must have shape \[n\], got \[1, 3\]"),
        ((before, tokens, keys[None], 0, 5), r"keys must have shape \[m\], got \[1, 2\]"),
        ((before, tokens.int(), keys, 0, 5), "tokens must be int64"),
        ((before, tokens, keys, 0, -1), "threshold must be in"),
        ((before.expand(3, 65), tokens, keys, 0, 5), "at most 64 columns, got 65"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ops.score_keys(*changed)
