"""`draw_scores`, compiled, against its reference, which works out every token's noise."""

import pytest
import torch
from csrc.test_warp_logits import KINDS, VOCABULARIES, logits_of
from pairwise import pairwise
from prf_inputs import KEYS, contexts, key_tensor

from caw import ops
from caw.ops_ref.draw_scores_ref import draw_scores_ref

INF = float("inf")


@pytest.mark.parametrize(
    "vocab_size, kind, k, reach", pairwise(VOCABULARIES, KINDS, [1, 5, 100], [0.0, 4.0, 12.0, INF])
)
def test_records_are_those_of_the_reference(vocab_size: int, kind: str, k: int, reach: float) -> None:
    keys = key_tensor(KEYS)
    logits, context = logits_of(kind, len(keys), vocab_size), contexts(len(keys), 3, "cpu")
    drawn = torch.arange(len(keys)) != 2
    scores, values, ids = ops.draw_scores(logits, drawn, context, keys, k, reach)
    expected = draw_scores_ref(logits, drawn, context, keys, k, reach)
    assert torch.equal(values, expected[1]) and torch.equal(ids, expected[2])
    known = scores > -torch.inf
    assert torch.equal(scores[known], expected[0][known])
    wanted = (expected[0] > -torch.inf) & (expected[0] >= expected[0].amax(dim=1, keepdim=True) - reach)
    assert known[wanted].all()


def test_few_tokens_of_a_large_vocabulary() -> None:
    logits = torch.full((2, 50_001), -torch.inf)
    places = [0, 3, 4, 129, 40_000, 49_999, 50_000]
    logits[0, places], logits[1, 50_000] = torch.randn(len(places)), 2.0
    given = torch.tensor([True, True]), contexts(2, 3, "cpu"), torch.tensor([5, -6])
    for reach in (0.0, INF):
        found, expected = ops.draw_scores(logits, *given, 100, reach), draw_scores_ref(logits, *given, 100, reach)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_largest_noise_is_not_cut_off() -> None:
    """The token of the greatest word of a row is found however flat or steep the row."""
    context, key, size = torch.tensor([[1, 2, 3]]), torch.tensor([11]), 1 << 18
    noise = ops.sampling_noise(context, key, size)[0]
    best, other = int(noise.argmax()), int((noise - 0.4).abs().argmin())
    for step, first in ((-1e-3, best), (1e-3, other)):
        logits = torch.full((1, size), -60.0)
        logits[0, best], logits[0, other] = 0.0, noise[best] - noise[other] + step
        assert ops.draw_scores(logits, torch.tensor([True]), context, key, 1, 0.0)[2].item() == first


def test_rows_do_not_depend_on_their_batch() -> None:
    keys, logits = key_tensor(KEYS), torch.randn(len(KEYS), 2 * 1201)[:, ::2] * 2
    context, drawn = contexts(len(keys), 3, "cpu"), torch.ones(len(keys), dtype=torch.bool)
    together = ops.draw_scores(logits, drawn, context, keys, 7, 3.0)
    for row in range(len(keys)):
        own = slice(row, row + 1)
        alone = ops.draw_scores(logits[own].contiguous(), drawn[own], context[own], keys[own], 7, 3.0)
        assert all(torch.equal(a[row], b[0]) for a, b in zip(together, alone, strict=True))
    empty = ops.draw_scores(logits[:0], drawn[:0], context[:0], keys[:0], 7, 3.0)
    assert [x.shape for x in empty] == [(0, 1201), (0, 7), (0, 7)]


def test_broken_rows_do_no_harm() -> None:
    logits = torch.randn(3, 500)
    logits[0, 3], logits[1, 4], logits[2] = torch.nan, torch.inf, -torch.inf
    given = torch.ones(3, dtype=torch.bool), contexts(3, 3, "cpu"), torch.arange(3), 5, 1.0
    assert ops.draw_scores(logits, *given)[2][1:, 0].tolist() == [4, 0]
