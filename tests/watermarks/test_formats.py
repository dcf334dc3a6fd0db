"""Native formats: what is green, what wins, what a token scores; against frozen vectors and a plain writing."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from caw.testing import assert_close
from caw.watermarks import EXP, KGW, Unigram
from caw.watermarks.green_list import GreenList

FOLDER = Path(__file__).parent
GOLDEN = json.loads((FOLDER / "golden.json").read_text())
IDS = torch.tensor(GOLDEN["ids"])
plain = SimpleNamespace(**runpy.run_path(str(FOLDER / "make_golden.py")))
FALSE_ALARM = 1e-6
DETERMINES_LISTS = [
    lambda key: KGW(key=key),
    lambda key: KGW(key=key, seeding="selfhash"),
    lambda key: Unigram(key=key),
]
LIST_NAMES = ["lefthash", "selfhash", "unigram"]


def make(scheme: str, key: Any, gamma: float, width: int) -> GreenList:
    if scheme == "unigram":
        return Unigram(key=key, gamma=gamma)
    return KGW(key=key, gamma=gamma, seeding=scheme, context_width=width)  # type: ignore[arg-type]


def test_golden_green_lists() -> None:
    for row in GOLDEN["lists"]:
        watermark = make(row["scheme"], row["key"], row["gamma"], row["width"])
        values = watermark.score_tokens(IDS).values
        assert "".join(str(int(v)) for v in values) == row["greens"], row


def test_golden_races() -> None:
    for row in GOLDEN["races"]:
        u = (np.array(row["numerators"]) / (2**24 + 1)).astype(np.float32).astype(np.float64)
        scores = EXP(key=row["key"], context_width=row["width"]).score_tokens(IDS)
        assert_close(scores.values, -np.log1p(-u), "float64")


small_ids = st.lists(st.integers(0, 5) | st.integers(0, 2**31 - 1), max_size=12)


@given(key=st.integers(0, 2**64 - 1), gamma=st.floats(0.01, 0.99), ids=small_ids, width=st.integers(2, 6))
def test_green_lists_equal_the_plain_writing(key: int, gamma: float, ids: list[int], width: int) -> None:
    for scheme in ("lefthash", "selfhash", "unigram"):
        values = make(scheme, key, gamma, width).score_tokens(torch.tensor(ids, dtype=torch.int64)).values
        assert "".join(str(int(v)) for v in values) == plain.greens(scheme, key, gamma, width, ids)


@pytest.mark.parametrize("scheme, width", [("lefthash", 1), ("lefthash", 5), ("selfhash", 2), ("selfhash", 4)])
@pytest.mark.parametrize("vocab_size", [1, 3, 101])
def test_list_of_the_whole_vocabulary_equals_one_token_at_a_time(scheme: str, width: int, vocab_size: int) -> None:
    watermark = make(scheme, 2**63 + 5, 0.4, width)
    context = torch.randint(-1, vocab_size, (5, watermark.window))
    tokens = torch.arange(vocab_size).expand(5, -1)
    whole = watermark.green_vocabulary(context, vocab_size)
    assert torch.equal(whole, watermark.green_tokens(context, tokens))
    assert torch.equal(make("unigram", 3, 0.4, 0).green_vocabulary(context, vocab_size)[0], unigram_list(3, vocab_size))


def unigram_list(key: int, vocab_size: int) -> torch.Tensor:
    return torch.tensor([plain.unigram(key, 0.4, t) for t in range(vocab_size)])


@pytest.mark.parametrize("build", DETERMINES_LISTS, ids=LIST_NAMES)
def test_generation_and_detection_see_the_same_lists(build: Any) -> None:
    """The list at position i, from the context the decoder holds, scores token i of the finished text."""
    watermark = build("secret")
    ids = torch.randint(0, 997, (40,))
    values = watermark.score_tokens(ids).values
    for i in range(len(ids)):
        context = torch.tensor([plain.window(ids.tolist(), i, watermark.window)], dtype=torch.int64)
        context = context.reshape(1, watermark.window)
        assert bool(watermark.green_tokens(context, ids[None, i : i + 1])) == bool(values[i])


def test_evidence_rows() -> None:
    """EXP: the context alone; KGW lefthash: context and token; selfhash: seed and token; Unigram: the token."""
    ids = torch.tensor([7, 8, 7, 8, 7, 9])
    assert EXP(key=1, context_width=2).score_tokens(ids).evidence.tolist() == [
        [-1, -1], [-1, 7], [7, 8], [8, 7], [7, 8], [8, 7],
    ]  # fmt: skip
    assert KGW(key=1).score_tokens(ids).evidence.tolist() == [[-1, 7], [7, 8], [8, 7], [7, 8], [8, 7], [7, 9]]
    assert Unigram(key=1).score_tokens(ids).evidence.tolist() == [[7], [8], [7], [8], [7], [9]]
    selfhash = KGW(key=1, seeding="selfhash", context_width=3).score_tokens(ids).evidence.tolist()
    seeds = [plain.selfhash_seed(1, 3, plain.window(ids.tolist(), i, 2), t) for i, t in enumerate(ids.tolist())]
    assert selfhash == [[s, t] for s, t in zip(seeds, ids.tolist(), strict=True)]


@pytest.mark.parametrize("build", DETERMINES_LISTS, ids=LIST_NAMES)
@pytest.mark.parametrize("pair", [(0, 1), (1, 2), ("a", "b"), (5, 5 + 2**32), (2**64 - 1, 0)], ids=str)
def test_lists_of_different_keys_are_uncorrelated(build: Any, pair: tuple[Any, Any]) -> None:
    context = torch.tensor([[0, 0, 0, 0, 0]])
    watermarks = [build(key) for key in pair]
    a, b = (w.green_vocabulary(context[:, : w.window], 20011)[0].numpy() for w in watermarks)
    assert stats.pearsonr(a, b).pvalue > FALSE_ALARM
    for greens in (a, b):
        assert stats.binomtest(int(greens.sum()), len(greens), 0.25).pvalue > FALSE_ALARM


@pytest.mark.parametrize("build", DETERMINES_LISTS, ids=LIST_NAMES)
def test_token_zero_after_nothing_is_green_for_a_quarter_of_the_keys(build: Any) -> None:
    """Token id 0 with an empty (or all missing) context is where weak hashes give every key the same list."""
    greens = []
    for key in range(500):
        watermark = build(key)
        context = torch.full((1, watermark.window), -1)
        greens.append(watermark.green_tokens(context, torch.arange(6)[None])[0].numpy())
    table = np.array(greens)
    for token in range(6):
        assert stats.binomtest(int(table[:, token].sum()), len(table), 0.25).pvalue > FALSE_ALARM
        assert stats.pearsonr(table[1:, token], table[:-1, token]).pvalue > FALSE_ALARM
        if token:
            assert stats.pearsonr(table[:, 0], table[:, token]).pvalue > FALSE_ALARM


def test_kgw_and_unigram_lists_of_one_key_are_unrelated() -> None:
    """Otherwise a text marked with one would be read as marked with the other."""
    left = KGW(key=9).green_vocabulary(torch.tensor([[-1]]), 20011)[0].numpy()
    fixed = Unigram(key=9).green_vocabulary(torch.empty(1, 0, dtype=torch.int64), 20011)[0].numpy()
    assert stats.pearsonr(left, fixed).pvalue > FALSE_ALARM


@pytest.mark.parametrize("gamma", [2**-24, 0.1, 0.5, 1 - 2**-24])
def test_green_fraction_is_the_probability_of_the_integer_test(gamma: float) -> None:
    assert Unigram(key=1, gamma=gamma).green_fraction == int(gamma * 2**24) / 2**24
