"""Bias and penalties, compiled and by the Triton kernel: the reference's bits."""

from typing import Any

import pytest
import torch
from pairwise import pairwise

from caw.triton_kernels.penalise_logits_ref import penalise_logits_ref

OP = "penalise_logits"
# parts of the vocabulary and of the text, whole and not; texts longer than the vocabulary
SHAPES = [(1, 1, 1), (3, 7, 11), (4, 8, 5), (2, 1031, 300), (1, 4099, 257), (2, 500, 1100), (3, 1024, 256)]


def inputs(batch: int, size: int, length: int, *, repeats: bool = True, biased: bool = True) -> list[torch.Tensor]:
    """Rows whose tokens repeat, some of the prompt's among them, some places empty."""
    draw = torch.Generator().manual_seed(batch * 1000 + size + length)
    logits = torch.randn(batch, size, generator=draw) * 4
    tokens = torch.randint(-1, max(min(size, 6), 1), (batch, length), generator=draw)
    wanted = torch.arange(batch) % 3 != 1
    numbers = torch.rand(batch, 3, generator=draw) + torch.tensor([0.5, -0.5, -0.5])
    prompts = torch.rand(batch, size * int(repeats), generator=draw) < 0.2
    return [logits, tokens, wanted, numbers, prompts, torch.randn(batch, size * int(biased), generator=draw)]


@pytest.mark.parametrize("shape, biased, repeats", pairwise(SHAPES, [True, False], [True, False]))
def test_it_is_its_reference_to_the_bit(kernel: Any, shape: tuple[int, int, int], biased: bool, repeats: bool) -> None:
    given = inputs(*shape, repeats=repeats, biased=biased)
    assert torch.equal(kernel(OP, *given), penalise_logits_ref(*given))


def test_tokens_of_all_parts_count_together(kernel: Any) -> None:
    given = inputs(4, 1500, 700)
    given[1], given[2] = torch.full((4, 700), -1), torch.ones(4, dtype=torch.bool)
    given[1][0] = 1499
    given[1][1, [0, 699]] = 3
    given[1][2, 512:] = torch.arange(188)
    assert torch.equal(kernel(OP, *given), penalise_logits_ref(*given))
    bare = [*given[:4], given[4][:, :0], given[5][:, :0]]
    changed = bare[0] - kernel(OP, *bare)
    for row, token, count in ((0, 1499, 700), (1, 3, 2), (2, 187, 1)):
        expected = given[3][row, 2] * count + given[3][row, 1]
        torch.testing.assert_close(changed[row, token], expected, rtol=1e-5, atol=1e-4)
    assert not changed[3].any()


def test_empty_rows_other_strides_and_rows_alone(kernel: Any) -> None:
    given = logits, tokens, wanted, numbers, prompts, bias = inputs(6, 33, 9)
    expected = penalise_logits_ref(*given)
    turned = [x.T.contiguous().T for x in (logits, tokens, numbers, prompts, bias)]
    assert torch.equal(kernel(OP, *turned[:2], wanted.repeat(2, 1).T[:, 1], *turned[2:]), expected)
    beside = torch.nn.functional.pad(tokens, (3, 2), value=-1)[:, 3:-2]
    assert torch.equal(kernel(OP, logits, beside, *given[2:]), expected)
    same = [*given[:3], numbers[:1].expand(6, 3), prompts, bias]
    assert torch.equal(kernel(OP, *same), penalise_logits_ref(*same))
    assert kernel(OP, *(x[:0] for x in given)).shape == (0, 33)
    nothing = [logits, tokens[:, :0], *given[2:]]
    assert torch.equal(kernel(OP, *nothing), penalise_logits_ref(*nothing))
    for b in range(6):
        assert torch.equal(kernel(OP, *(x[b : b + 1] for x in given)), expected[b : b + 1])


def test_excluded_tokens_stay_excluded_and_the_input_stays(kernel: Any) -> None:
    given = inputs(3, 12, 8)
    given[0][:, 2], given[0][0, 3] = -torch.inf, torch.inf
    before = given[0].clone()
    found = kernel(OP, *given)
    assert (found[:, 2] == -torch.inf).all() and found[0, 3] == torch.inf and torch.equal(given[0], before)
    assert torch.equal(found[1], before[1]) and not torch.equal(found[0], before[0])


def test_counts_of_one_call_do_not_reach_the_next(kernel: Any) -> None:
    given = inputs(1, 50, 20, repeats=False, biased=False)
    first = kernel(OP, *given)
    kernel(OP, *inputs(4, 50, 400))
    assert torch.equal(kernel(OP, *given), first)


@pytest.mark.parametrize("place, changed, words", [
    (0, torch.randn(3, 12).double(), "logits must be float32"),
    (1, torch.zeros(2, 4, dtype=torch.int64), r"tokens must have shape \[3, "),
    (1, torch.zeros(3, 4), "tokens must be int64"), (2, torch.ones(3), "wanted must be bool"),
    (3, torch.ones(3, 2), r"numbers must have shape \[3, 3\]"), (4, torch.ones(3, 5).bool(), "prompts must have shape"),
    (5, torch.ones(3, 5), "bias must have shape"),
])  # fmt: skip
def test_bad_input_is_named(kernel: Any, place: int, changed: torch.Tensor, words: str) -> None:
    given = inputs(3, 12, 8)
    given[place] = changed
    with pytest.raises((RuntimeError, TypeError, ValueError), match=words):
        kernel(OP, *given)
