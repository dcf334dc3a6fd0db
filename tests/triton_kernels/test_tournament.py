"""SynthID's tournament by its kernels: the winners of the reference, and of transformers' own processor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from csrc.test_tournament import CASES, INF, NAN, inputs

from caw.tournament import layered_table
from caw.triton_kernels.tournament_ref import tournament_ref

# parts of 1024 tokens, whole and not
LARGE = {"a part": (1, 1024, 65536, 30), "one more": (2, 1025, 1024, 11, 4, 300), "a prime of two": (2, 2039, 256, 3)}
EVERY: dict[str, Any] = {**CASES, **LARGE}


def moved(given: list[Any], device: torch.device) -> list[Any]:
    return [x.to(device) if isinstance(x, torch.Tensor) else x for x in given]


@pytest.mark.parametrize("drawn", [False, True], ids=["greedy", "drawn"])
@pytest.mark.parametrize("case", EVERY)
def test_winners_equal_the_reference(device: torch.device, case: str, drawn: bool) -> None:
    from caw.triton_kernels.tournament import tournament

    given = inputs(*EVERY[case], drawn=drawn)
    found = tournament(*moved(given, device))
    assert found.dtype == torch.int64 and torch.equal(found.cpu(), tournament_ref(*given))


def test_rows_that_no_layer_can_decide_keep_what_was_first(device: torch.device) -> None:
    from caw.triton_kernels.tournament import tournament

    warped, scores, _, *rest = inputs(5, 1030, 64, 12, kept=9)
    warped[0] = -INF
    warped[1, 1027], warped[2, 7] = NAN, INF
    given = [warped, scores, torch.tensor([3, 4, 5, 6, 7]), *rest]
    found = tournament(*moved(given, device)).cpu()
    assert found[:3].tolist() == [[3] * 12, [4] * 12, [5] * 12]
    assert torch.equal(found, tournament_ref(*given))


@pytest.mark.parametrize("bits", [0, -1])
def test_equal_tokens_go_to_the_smaller_id(device: torch.device, bits: int) -> None:
    """Nothing tells the tokens apart but one that is out, in the first of two parts, and one ahead of the others."""
    from caw.triton_kernels.tournament import tournament

    warped = torch.zeros(2, 1100, device=device)
    warped[0, 0], warped[1, 1050:1053] = -INF, 1.0
    context, table = torch.zeros(2, 2, dtype=torch.int64), torch.full((64,), bits, dtype=torch.int32)
    first = torch.tensor([9, 9])
    winners = tournament(warped, warped, *moved([first, context, table, 2], device))
    assert winners.tolist() == [[1, 1], [1050, 1050]]


def test_other_strides_and_rows_beside_change_nothing(device: torch.device) -> None:
    from caw.triton_kernels.tournament import tournament

    warped, scores, first, context, table, layers = moved(inputs(3, 1031, 1024, 7), device)
    expected = tournament(warped, scores, first, context, table, layers)
    strided = [x.T.contiguous().T for x in (warped, scores, context)]
    apart = first.repeat(2, 1).T[:, 1]
    assert torch.equal(tournament(*strided[:2], apart, strided[2], table, layers), expected)
    for b in range(3):
        alone = [x[b : b + 1] for x in (warped, scores, first, context)]
        assert torch.equal(tournament(*alone, table, layers), expected[b : b + 1])


def test_winners_are_those_of_transformers(device: torch.device) -> None:
    """Greedy after all layers: the argmax of what its processor makes of the logits."""
    from transformers.generation import SynthIDTextWatermarkLogitsProcessor

    from caw.triton_kernels.tournament import tournament

    made = torch.Generator().manual_seed(3)
    keys, logits = [654, 400, 836, 123, 340, 443, 597, 160, 57, 29, 590], torch.randn(8, 1999, generator=made)
    theirs = SynthIDTextWatermarkLogitsProcessor(5, keys, 1 << 10, 0, 1024, device=torch.device("cpu"))
    text = torch.randint(0, 1999, (8, 5), generator=made)
    for end in range(1, 6):  # each call is given one more token, as in `generate`
        scores = theirs(text[:, :end], logits)
    context = text[:, 1:]
    given = [logits, logits, logits.argmax(1), context, layered_table(theirs.sampling_table, keys), len(keys)]
    found = tournament(*moved(given, device)).cpu()
    assert torch.equal(found[:, -1], scores.argmax(1))
    assert (found[:, -1] != logits.argmax(1)).sum() > 4, "or it compares nothing"


@pytest.mark.parametrize(
    "change, words",
    [
        ({0: torch.zeros(2, 9).double()}, "warped must be float32"),
        ({0: torch.zeros(2, 0), 1: torch.zeros(2, 0)}, "1 to 2\\*\\*31 - 1 columns, got 0"),
        ({1: torch.zeros(2, 8)}, r"scores must have shape \[2, 9\]"),
        ({2: torch.zeros(3, dtype=torch.int64)}, r"first must have shape \[2\]"),
        ({3: torch.zeros(2, 65, dtype=torch.int64)}, "at most 64 tokens, got 65"),
        ({4: torch.zeros(48, dtype=torch.int32)}, "a power of two of entries, at most 2\\*\\*31, got 48"),
        ({4: torch.zeros(128, dtype=torch.int32)[::2]}, "table must be contiguous"),
        ({5: 33}, r"layers must be in \[0, 32\]"),
    ],
)
def test_bad_arguments_are_refused_before_a_launch(device: torch.device, change: dict[int, Any], words: str) -> None:
    from caw.triton_kernels.tournament import tournament

    given = inputs(2, 9, 64, 3)
    for place, value in change.items():
        given[place] = value
    with pytest.raises((TypeError, ValueError), match=words):
        tournament(*[x.to(device) if isinstance(x, torch.Tensor) else x for x in given])
