"""SynthID's tournament, compiled and by the Triton kernel: the winners of the reference and of transformers."""

from typing import Any

import pytest
import torch
from transformers.generation import SynthIDTextWatermarkLogitsProcessor

from caw.tournament import MULTIPLIER, layered_table, ngram_hashes, places, winners_of
from caw.triton_kernels.tournament_ref import tournament_ref

OP = "tournament"
NAN, INF = float("nan"), float("inf")


def inputs(batch: int, vocabulary: int, size: int, layers: int, width: int = 4, kept: int | None = None, *,
           drawn: bool = True, seed: int = 0) -> list[Any]:  # fmt: skip
    made = torch.Generator().manual_seed(seed)
    warped = 3 * torch.randn(batch, vocabulary, generator=made)
    if kept is not None:
        border = warped.topk(kept, dim=1).values[:, -1:]
        warped = torch.where(warped < border, -INF, warped)
    noise = -torch.log(-torch.log(torch.rand(batch, vocabulary, generator=made, dtype=torch.float64))).float()
    scores = warped + noise if drawn else warped.clone()
    keys = torch.randint(-(1 << 62), 1 << 62, (layers,), generator=made).tolist()
    table = layered_table(torch.randint(0, 2, (size,), generator=made), keys)
    context = torch.randint(-1, vocabulary, (batch, width), generator=made)
    return [warped, scores, scores.argmax(dim=1), context, table, layers]


# ten layers are worked on at once, of 32 or 64 bits of a table
CASES = {
    "one token": (1, 1, 64, 3), "one layer": (2, 7, 1024, 1), "a prime": (3, 503, 65536, 30),
    "ten layers": (2, 503, 1024, 10), "eleven": (2, 503, 1024, 11), "a small table": (2, 40, 4, 5),
    "a bit": (1, 19, 1, 2),
    "a large table": (1, 700, 1 << 20, 64), "pieces": (2, 9001, 65536, 12), "no context": (2, 60, 256, 4, 0),
    "long context": (1, 60, 256, 4, 63), "32 layers": (2, 500, 4096, 32), "33 layers": (2, 500, 4096, 33),
    "300 kept": (2, 2000, 65536, 30, 4, 300),
    "17 kept": (2, 500, 65536, 30, 4, 17), "one kept": (2, 500, 65536, 30, 4, 1), "no row": (0, 9, 64, 3),
    "no layer": (2, 9, 64, 0), "a part": (1, 1024, 65536, 30), "one more": (2, 1025, 1024, 11, 4, 300),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(kernel: Any, case: str) -> None:
    given = inputs(*CASES[case], drawn=list(CASES).index(case) % 3 > 0)
    winners = kernel(OP, *given)
    assert winners.dtype == torch.int64 and torch.equal(winners, tournament_ref(*given))


def test_layers_change_the_winner(kernel: Any) -> None:
    """The comparison is of something: of 30 layers many have another winner than the one before."""
    winners = kernel(OP, *inputs(8, 503, 65536, 30))
    assert (winners[:, 1:] != winners[:, :-1]).sum() > 20


def test_rows_that_no_layer_can_decide_keep_what_was_first(kernel: Any) -> None:
    warped, scores, _, *rest = inputs(5, 1030, 64, 12, kept=9)
    warped[0] = -INF
    warped[1, 1027], warped[2, 7] = NAN, INF
    given = [warped, scores, torch.tensor([3, 4, 5, 6, 7]), *rest]
    winners = kernel(OP, *given)
    assert winners[:3].tolist() == [[3] * 12, [4] * 12, [5] * 12]
    assert torch.equal(winners, tournament_ref(*given))


@pytest.mark.parametrize("bits", [0, -1])
def test_equal_tokens_go_to_the_smaller_id(kernel: Any, bits: int) -> None:
    """Nothing tells the tokens apart but one that is out, in the first of two parts, and one ahead of the others."""
    warped = torch.zeros(2, 1100)
    warped[0, 0], warped[1, 1050:1053] = -INF, 1.0
    context, table = torch.zeros(2, 2, dtype=torch.int64), torch.full((64,), bits, dtype=torch.int32)
    given = [warped, warped, torch.tensor([9, 9]), context, table, 2]
    assert kernel(OP, *given).tolist() == [[1, 1], [1050, 1050]] == tournament_ref(*given).tolist()


@pytest.mark.parametrize("layers", [1, 12, 33])
def test_who_was_far_behind_may_win(kernel: Any, layers: int) -> None:
    """2,100 tokens at a 2,100th of the first one's probability, which loses every layer: the least of them wins."""
    warped, context = torch.zeros(1, 2101), torch.tensor([[5, 7]])
    warped[0, 40] = torch.tensor(2100.0).log()
    table = torch.full((4096,), -1, dtype=torch.int64 if layers > 32 else torch.int32)
    table[(ngram_hashes(context, torch.tensor([[40]])) * MULTIPLIER)[0] & 4095] = 0
    given = [warped, warped, torch.tensor([40]), context, table, layers]
    assert kernel(OP, *given).tolist() == tournament_ref(*given).tolist()
    assert tournament_ref(*given)[0, -1] == (40 if layers == 1 else 0)


@pytest.mark.parametrize("layers", [5, 40])
def test_the_layered_table_holds_every_layers_bits(kernel: Any, layers: int) -> None:
    made = torch.Generator().manual_seed(layers)
    bits, keys = torch.randint(0, 2, (1024,), generator=made), torch.randint(-(1 << 62), 1 << 62, (layers,)).tolist()
    warped, scores, first, context, _, _ = inputs(2, 60, 64, 1)
    hashes = ngram_hashes(context, torch.arange(60)[None])
    expected = winners_of(warped, scores, first, [lambda key=key: bits[places(hashes, key, 1024)] for key in keys])
    assert torch.equal(kernel(OP, warped, scores, first, context, layered_table(bits, keys), layers), expected)


def test_other_strides_and_rows_beside_change_nothing(kernel: Any) -> None:
    warped, scores, first, context, table, layers = inputs(3, 1031, 1024, 7)
    expected = tournament_ref(warped, scores, first, context, table, layers)
    strided = [x.T.contiguous().T for x in (warped, scores, context)]
    apart = first.repeat(2, 1).T[:, 1]
    assert torch.equal(kernel(OP, *strided[:2], apart, strided[2], table, layers), expected)
    for b in range(3):
        alone = [x[b : b + 1] for x in (warped, scores, first, context)]
        assert torch.equal(kernel(OP, *alone, table, layers), expected[b : b + 1])


def test_winners_are_those_of_transformers(kernel: Any) -> None:
    """Greedy after all layers: the argmax of what its processor makes of the logits."""
    made = torch.Generator().manual_seed(3)
    keys, logits = [654, 400, 836, 123, 340, 443, 597, 160, 57, 29, 590], torch.randn(8, 1999, generator=made)
    theirs = SynthIDTextWatermarkLogitsProcessor(5, keys, 1 << 10, 0, 1024, device=torch.device("cpu"))
    text = torch.randint(0, 1999, (8, 5), generator=made)
    for end in range(1, 6):  # each call is given one more token, as in `generate`
        scores = theirs(text[:, :end], logits)
    table = layered_table(theirs.sampling_table, keys)
    found = kernel(OP, logits, logits, logits.argmax(1), text[:, 1:], table, len(keys))
    assert torch.equal(found[:, -1], scores.argmax(1))
    assert (found[:, -1] != logits.argmax(1)).sum() > 4, "or it compares nothing"
