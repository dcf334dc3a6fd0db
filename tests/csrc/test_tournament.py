"""SynthID's tournament in C++ against its reference: the winners of every layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from caw import ops
from caw.tournament import MULTIPLIER, layered_table, ngram_hashes, places, winners_of
from caw.triton_kernels.tournament_ref import tournament_ref

pytestmark = pytest.mark.skipif(not ops.has_kernel("tournament", "cpu"), reason="needs an operator for the CPU")
NAN, INF = float("nan"), float("inf")


def inputs(batch: int, vocabulary: int, size: int, layers: int, width: int = 4, kept: int | None = None, *,
           drawn: bool = True, seed: int = 0) -> list[Any]:  # fmt: skip
    """Logits of which `kept` are left, with noise where drawn."""
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
    "no layer": (2, 9, 64, 0),
}  # fmt: skip


@pytest.mark.parametrize("drawn", [False, True], ids=["greedy", "drawn"])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(case: str, drawn: bool) -> None:
    given = inputs(*CASES[case], drawn=drawn)
    winners = ops.tournament(*given)
    assert winners.dtype == torch.int64 and torch.equal(winners, tournament_ref(*given))


def test_layers_change_the_winner() -> None:
    """The comparison is of something: of 30 layers many have another winner than the one before."""
    winners = ops.tournament(*inputs(8, 503, 65536, 30))
    assert (winners[:, 1:] != winners[:, :-1]).sum() > 20


def test_rows_that_no_layer_can_decide_keep_what_was_first() -> None:
    warped, scores, _, *rest = inputs(5, 40, 64, 3, kept=9)
    for row, broken in enumerate([-INF, NAN, INF]):
        if row == 0:
            warped[row] = broken
        else:
            warped[row, 7] = broken
    first = torch.tensor([3, 4, 5, 6, 7])
    given = [warped, scores, first, *rest]
    winners = ops.tournament(*given)
    assert winners[:3].tolist() == [[3] * 3, [4] * 3, [5] * 3]
    assert torch.equal(winners, tournament_ref(*given))


def test_equal_tokens_go_to_the_smaller_id() -> None:
    """All logits equal, all bits equal: nothing tells the tokens apart."""
    warped, context = torch.zeros(1, 37), torch.zeros(1, 2, dtype=torch.int64)
    for bits in (0, -1):
        given = [warped, warped, torch.tensor([9]), context, torch.full((64,), bits, dtype=torch.int32), 2]
        assert ops.tournament(*given).tolist() == [[0, 0]] == tournament_ref(*given).tolist()


@pytest.mark.parametrize("layers", [1, 12, 33])
def test_who_was_far_behind_may_win(layers: int) -> None:
    """2,100 tokens at a 2,100th of the first one's probability, which loses every layer: the least of them wins."""
    warped, context = torch.zeros(1, 2101), torch.tensor([[5, 7]])
    warped[0, 40] = torch.tensor(2100.0).log()
    table = torch.full((4096,), -1, dtype=torch.int64 if layers > 32 else torch.int32)
    table[(ngram_hashes(context, torch.tensor([[40]])) * MULTIPLIER)[0] & 4095] = 0
    given = [warped, warped, torch.tensor([40]), context, table, layers]
    assert ops.tournament(*given).tolist() == tournament_ref(*given).tolist()
    assert tournament_ref(*given)[0, -1] == (40 if layers == 1 else 0)


@pytest.mark.parametrize("layers", [5, 40])
def test_the_layered_table_holds_every_layers_bits(layers: int) -> None:
    made = torch.Generator().manual_seed(layers)
    bits, keys = torch.randint(0, 2, (1024,), generator=made), torch.randint(-(1 << 62), 1 << 62, (layers,)).tolist()
    warped, scores, first, context, _, _ = inputs(2, 60, 64, 1)
    hashes = ngram_hashes(context, torch.arange(60)[None])
    expected = winners_of(warped, scores, first, [lambda key=key: bits[places(hashes, key, 1024)] for key in keys])
    assert torch.equal(ops.tournament(warped, scores, first, context, layered_table(bits, keys), layers), expected)


def test_other_strides_and_rows_beside_change_nothing() -> None:
    warped, scores, first, context, table, layers = inputs(3, 503, 1024, 7)
    expected = ops.tournament(warped, scores, first, context, table, layers)
    strided = [x.T.contiguous().T for x in (warped, scores, context)]
    assert torch.equal(ops.tournament(*strided[:2], first, strided[2], table, layers), expected)
    for b in range(3):
        alone = [x[b : b + 1] for x in (warped, scores, first, context)]
        assert torch.equal(ops.tournament(*alone, table, layers), expected[b : b + 1])


@pytest.mark.parametrize(
    "change, words",
    [
        ({0: torch.zeros(9)}, r"warped must have shape \[B, V\] with V >= 1, got \[9\]"),
        ({0: torch.zeros(2, 9).double(), 1: torch.zeros(2, 9)}, "warped must be float32"),
        ({1: torch.zeros(2, 8)}, r"scores must have shape \[2, 9\], got \[2, 8\]"),
        ({2: torch.zeros(3, dtype=torch.int64)}, r"first must have shape \[2\], got \[3\]"),
        ({3: torch.zeros(1, 4, dtype=torch.int64)}, r"context must have shape \[B, W\], got \[1, 4\]"),
        ({4: torch.zeros(64)}, "table must be int32 or int64"),
        ({4: torch.zeros(48, dtype=torch.int32)}, r"table must have one dimension of a power of two, got \[48\]"),
        ({5: 33}, r"layers must be in \[0, 32\], got 33"),
    ],
)
def test_wrong_input_is_named(change: dict[int, Any], words: str) -> None:
    given = inputs(2, 9, 64, 3)
    for place, value in change.items():
        given[place] = value
    with pytest.raises(RuntimeError, match=words):
        ops.tournament(*given)
