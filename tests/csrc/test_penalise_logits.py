"""`penalise_logits`, compiled, against its reference, to the bit."""

from __future__ import annotations

import pytest
import torch

from caw import ops
from caw.triton_kernels.penalise_logits_ref import penalise_logits_ref


def inputs(batch: int, size: int, length: int, *, repeats: bool = True, biased: bool = True) -> list[torch.Tensor]:
    """Rows whose tokens repeat, some of the prompt's among them, some places empty."""
    draw = torch.Generator().manual_seed(batch * 1000 + size + length)
    logits = torch.randn(batch, size, generator=draw) * 4
    tokens = torch.randint(-1, max(min(size, 6), 1), (batch, length), generator=draw)
    wanted = torch.arange(batch) % 3 != 1
    numbers = torch.rand(batch, 3, generator=draw) + torch.tensor([0.5, -0.5, -0.5])
    prompts = torch.rand(batch, size * int(repeats), generator=draw) < 0.2
    return [logits, tokens, wanted, numbers, prompts, torch.randn(batch, size * int(biased), generator=draw)]


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 11), (4, 8, 5), (2, 49_152, 300), (5, 1009, 64), (3, 16, 1)])
def test_it_is_its_reference_to_the_bit(shape: tuple[int, int, int], biased: bool, repeats: bool) -> None:
    given = inputs(*shape, repeats=repeats, biased=biased)
    assert torch.equal(ops.penalise_logits(*given), penalise_logits_ref(*given))


def test_empty_and_non_contiguous() -> None:
    logits, tokens, wanted, numbers, prompts, bias = inputs(6, 33, 9)
    expected = penalise_logits_ref(logits, tokens, wanted, numbers, prompts, bias)
    turned = [x.T.contiguous().T for x in (logits, tokens, numbers, prompts, bias)]
    found = ops.penalise_logits(turned[0], turned[1], wanted, *turned[2:])
    assert torch.equal(found, expected)
    none = ops.penalise_logits(logits[:0], tokens[:0], wanted[:0], numbers[:0], prompts[:0], bias[:0])
    assert none.shape == (0, 33)
    without = ops.penalise_logits(logits, tokens[:, :0], wanted, numbers, prompts, bias)
    assert torch.equal(without, penalise_logits_ref(logits, tokens[:, :0], wanted, numbers, prompts, bias))


def test_excluded_tokens_stay_excluded_and_the_input_stays() -> None:
    given = inputs(3, 12, 8)
    given[0][:, 2] = -torch.inf
    before = given[0].clone()
    found = ops.penalise_logits(*given)
    assert (found[:, 2] == -torch.inf).all() and torch.equal(given[0], before)
    assert torch.equal(found[1], before[1]) and not torch.equal(found[0], before[0])


def test_counts_of_one_call_do_not_reach_the_next() -> None:
    """They are kept in memory of the thread."""
    given = inputs(1, 50, 20, repeats=False, biased=False)
    first = ops.penalise_logits(*given)
    ops.penalise_logits(*inputs(4, 50, 400))
    assert torch.equal(ops.penalise_logits(*given), first)


@pytest.mark.parametrize(
    "place, changed, message",
    [
        (0, torch.randn(3, 12).double(), "logits must be float32"),
        (1, torch.zeros(2, 4, dtype=torch.int64), r"tokens must have shape \[3, T\]"),
        (1, torch.full((3, 4), 12), "tokens must be below V = 12, got 12"),
        (2, torch.ones(3), "wanted must be bool"),
        (3, torch.ones(3, 2), "numbers must have shape"),
        (4, torch.ones(3, 5).bool(), "prompts must have shape"),
        (5, torch.ones(3, 5), "bias must have shape"),
    ],
)
def test_bad_input_is_named(place: int, changed: torch.Tensor, message: str) -> None:
    given = inputs(3, 12, 8)
    with pytest.raises(RuntimeError, match=message):
        ops.penalise_logits(*[changed if i == place else x for i, x in enumerate(given)])
