"""`race_winner`, compiled and by the Triton kernel, against its reference, which works out every token's value."""

from functools import partial
from typing import Any

import pytest
import torch
from pairwise import pairwise
from prf_inputs import KEYS, contexts, key_tensor

from caw import ops, prf
from caw.ladder import race_winner_ref

OP = "race_winner"
VOCABULARIES = [1, 3, 32, 1025]
KINDS = ["random", "flat", "ties", "peaked", "few", "bfloat16"]


def logits_of(kind: str, rows: int, vocab_size: int) -> torch.Tensor:
    logits = torch.randn(rows, vocab_size) * 3
    if kind == "flat":
        return logits / 30
    if kind == "ties":
        return torch.randint(-2, 3, (rows, vocab_size)).float()
    if kind == "peaked":
        logits[:, vocab_size // 2] += 30  # noise of 16.6 and more nobody has: the rest is not drawn for
        return logits
    if kind == "few":
        return torch.where(torch.rand(rows, vocab_size) < 0.05, logits, -torch.inf)
    return logits.bfloat16().float() if kind == "bfloat16" else logits


@pytest.mark.parametrize(
    "vocab_size, kind, width, temperature", pairwise(VOCABULARIES, KINDS, [0, 1, 4, 9], [1.0, 0.3, 2.5])
)
def test_winner_is_that_of_the_reference(
    kernel: Any, vocab_size: int, kind: str, width: int, temperature: float
) -> None:
    keys = key_tensor(KEYS[::2] if width else KEYS[1::2])
    logits, context = logits_of(kind, len(keys), 2 * vocab_size)[:, ::2], contexts(len(keys), width, "cpu")
    expected = race_winner_ref(logits, context, keys, temperature)
    assert torch.equal(kernel(OP, logits, context, keys, temperature), expected)


def test_ties_go_to_the_smaller_token(kernel: Any) -> None:
    """Tokens with one word: equal values, whatever comes between; found by looking for them."""
    context, key = torch.tensor([[5]]), torch.tensor([77])
    words = prf.vocabulary_words(77, context, 8_000)[0] >> 8
    order = words.sort(stable=True)
    equal = (order.values.diff() == 0).nonzero()[:, 0].tolist()
    assert equal
    for place in equal:
        pair = order.indices[place : place + 2]
        logits = torch.full((1, 8_000), -torch.inf)
        logits[0, pair] = 1.5
        found = [op(logits, context, key).item() for op in (partial(kernel, OP), race_winner_ref)]
        assert found == [int(pair.min())] * 2


def test_the_largest_noise_is_not_cut_off() -> None:
    """A token with the greatest word wins from 16.6 below a token of middling noise; bounds may not lose it."""
    context, size = torch.tensor([[3]]), 1 << 20
    words = prf.vocabulary_words(9, context, size)[0] >> 8
    top = int(words.argmax())
    other = int((words - words.median()).abs().argmin())
    logits = torch.full((1, size), -100.0)
    noise = prf.gumbel(torch.stack([words[top], words[other]]) << 8)
    behind = float(noise[0] - noise[1])
    for step, winner in ((-1e-3, top), (1e-3, other)):
        logits[0, other], logits[0, top] = 0.0, -(behind + step)
        assert ops.race_winner(logits, context, torch.tensor([9])).item() == winner


@pytest.mark.parametrize("vocab_size", [1, 37, 1500])
def test_nobody_races(kernel: Any, vocab_size: int) -> None:
    """Rows of -inf and NaN give 0; NaN among others does not race; +inf wins."""
    key, context = torch.tensor([7, 8, 9]), torch.tensor([[1], [2], [3]])
    logits = torch.full((3, vocab_size), -torch.inf)
    logits[1], logits[2] = torch.nan, torch.nan
    logits[2, vocab_size - 1] = -50.0
    for op in (partial(kernel, OP), race_winner_ref):
        assert op(logits, context, key).tolist() == [0, 0, vocab_size - 1]
    logits[2, vocab_size // 2] = torch.inf
    assert kernel(OP, logits, context, key)[2] == vocab_size // 2
    assert kernel(OP, torch.randn(0, 9), torch.zeros(0, 2).long(), torch.zeros(0).long()).shape == (0,)
