"""Bias and penalties by the kernel: the reference's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from csrc.test_penalise_logits import inputs

from caw.triton_kernels.penalise_logits_ref import penalise_logits_ref


def moved(given: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    return [x.to(device) for x in given]


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 7, 11), (4, 1, 5), (2, 1031, 300), (1, 4099, 257), (2, 500, 1100), (3, 1024, 256)]
)
def test_it_is_its_reference_to_the_bit(
    device: torch.device, shape: tuple[int, int, int], biased: bool, repeats: bool
) -> None:
    """Parts of the vocabulary and of the text, whole and not; texts longer than the vocabulary."""
    from caw.triton_kernels.penalise_logits import penalise_logits

    given = inputs(*shape, repeats=repeats, biased=biased)
    assert torch.equal(penalise_logits(*moved(given, device)).cpu(), penalise_logits_ref(*given))


def test_tokens_of_all_parts_count_together(device: torch.device) -> None:
    """A token in every place, one in the first and the last, the last id, and texts of nothing."""
    from caw.triton_kernels.penalise_logits import penalise_logits

    given = inputs(4, 1500, 700)
    given[1], given[2] = torch.full((4, 700), -1), torch.ones(4, dtype=torch.bool)
    given[1][0] = 1499
    given[1][1, [0, 699]] = 3
    given[1][2, 512:] = torch.arange(188)
    found = penalise_logits(*moved(given, device)).cpu()
    assert torch.equal(found, penalise_logits_ref(*given))
    bare = [*given[:4], given[4][:, :0], given[5][:, :0]]
    changed = bare[0] - penalise_logits(*moved(bare, device)).cpu()
    for row, token, count in ((0, 1499, 700), (1, 3, 2), (2, 187, 1)):
        expected = given[3][row, 2] * count + given[3][row, 1]
        torch.testing.assert_close(changed[row, token], expected, rtol=1e-5, atol=1e-4)
    assert not changed[3].any()


def test_empty_and_other_strides(device: torch.device) -> None:
    from caw.triton_kernels.penalise_logits import penalise_logits

    given = moved(inputs(6, 33, 9), device)
    logits, tokens, wanted, numbers, prompts, bias = given
    expected = penalise_logits(*given)
    turned = [x.T.contiguous().T for x in (logits, tokens, numbers, prompts, bias)]
    apart = wanted.repeat(2, 1).T[:, 1]
    assert torch.equal(penalise_logits(*turned[:2], apart, *turned[2:]), expected)
    beside = torch.nn.functional.pad(tokens, (3, 2), value=-1)[:, 3:-2]
    assert torch.equal(penalise_logits(logits, beside, *given[2:]), expected)
    same = numbers[:1].expand(6, 3)
    assert torch.equal(
        penalise_logits(*given[:3], same, prompts, bias), penalise_logits_ref(*given[:3], same, prompts, bias)
    )
    assert penalise_logits(*(x[:0] for x in given)).shape == (0, 33)
    nothing = [logits, tokens[:, :0], *given[2:]]
    assert torch.equal(penalise_logits(*nothing), penalise_logits_ref(*nothing))
    for b in range(6):
        assert torch.equal(penalise_logits(*(x[b : b + 1] for x in given)), expected[b : b + 1])


def test_excluded_tokens_stay_excluded_and_the_input_stays(device: torch.device) -> None:
    from caw.triton_kernels.penalise_logits import penalise_logits

    given = moved(inputs(3, 12, 8), device)
    given[0][:, 2], given[0][0, 3] = -torch.inf, torch.inf
    before = given[0].clone()
    found = penalise_logits(*given)
    assert (found[:, 2] == -torch.inf).all() and found[0, 3] == torch.inf and torch.equal(given[0], before)
    assert torch.equal(found[1], before[1]) and not torch.equal(found[0], before[0])


def test_what_is_no_token_is_skipped(device: torch.device) -> None:
    """A check would wait for the GPU; nothing beyond the row is touched."""
    from caw.triton_kernels.penalise_logits import penalise_logits

    given = moved(inputs(2, 12, 8), device)
    expected = penalise_logits(*given)
    more = torch.tensor([[12, 1 << 40, -7], [-(1 << 40), 99, 12]], device=device)
    assert torch.equal(penalise_logits(given[0], torch.cat([given[1], more], dim=1), *given[2:]), expected)


@pytest.mark.gpu
def test_a_graph_holds_it(device: torch.device) -> None:
    """Replayed on other texts, which lie in the same memory."""
    from caw.triton_kernels.penalise_logits import penalise_logits

    given = moved(inputs(3, 1031, 300), device)
    penalise_logits(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = penalise_logits(*given)
    for shift in range(3):
        other = moved(inputs(3, 1031, 300), device)
        other[1] = other[1].roll(shift, 1).add(shift).clamp(max=1030)
        for mine, new in zip(given, other, strict=True):
            mine.copy_(new)
        graph.replay()
        assert torch.equal(found, penalise_logits_ref(*given))


@pytest.mark.parametrize(
    "change, words",
    [
        ({0: torch.zeros(3, 12).double()}, "logits must be float32"),
        ({0: torch.zeros(3, 0)}, "1 to 2\\*\\*30 - 1 columns, got 0"),
        ({1: torch.zeros(2, 4, dtype=torch.int64)}, r"tokens must have shape \[3, any\]"),
        ({1: torch.zeros(3, 4)}, "tokens must be int64"),
        ({2: torch.ones(3)}, "wanted must be bool"),
        ({3: torch.ones(3, 2)}, r"numbers must have shape \[3, 3\]"),
        ({4: torch.ones(3, 5).bool()}, r"prompts must have shape \[3, 12\]"),
        ({5: torch.ones(12)}, r"bias must have shape \[3, 12\]"),
    ],
)
def test_bad_arguments_are_refused_before_a_launch(device: torch.device, change: dict[int, Any], words: str) -> None:
    from caw.triton_kernels.penalise_logits import penalise_logits

    given: list[Any] = inputs(3, 12, 8)
    for place, value in change.items():
        given[place] = value
    with pytest.raises((TypeError, ValueError), match=words):
        penalise_logits(*moved(given, device))
