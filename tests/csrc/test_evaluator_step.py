"""Capacity, strength and choice, compiled and by the Triton kernels: the reference's."""

from typing import Any

import pytest
import torch

from caw.capacity import evaluate_capacity_ref
from caw.ladder import select_candidate_ref
from caw.op_indices import RULES, TRANSFORMS
from caw.testing import assert_close
from caw.triton_kernels.evaluator_step_ref import evaluator_step_ref

STEP = "evaluator_step"


def network(inputs: int, hidden: int) -> list[torch.Tensor]:
    shapes = [(inputs,), (inputs,), (hidden, inputs), (hidden,), (hidden, hidden), (hidden,), (1, hidden), (1,)]
    weights = [torch.randn(s) / max(1, s[-1]) ** 0.5 for s in shapes]
    weights[1] = weights[1].abs() + 0.5
    return weights


def step_case(batch: int, positions: int, k: int, hidden: int, width: int, extra: int = 0) -> list[Any]:
    """Tensors of evaluator_step: sorted probabilities with empty tails, one position that does not exist."""
    probs = [(torch.randn(batch, k + 3) * 3).softmax(1).sort(descending=True).values for _ in range(positions)]
    probs[-1][:, k // 2 :] = 0
    probs[0][batch - 1 :] = 0
    candidates = torch.stack([torch.randperm(99)[:width] for _ in range(batch)]) if batch else torch.zeros(0, width)
    ladder = [candidates.long(), torch.randint(-3, 4, (batch, width)).float() / 2]
    counts, pending = torch.randint(1, width + 1, (batch,)), torch.randint(-2, 3, (batch,))
    return [probs, network(positions * k + extra, hidden), *ladder, counts, pending, torch.rand(batch),
            torch.rand(batch), torch.rand(batch) * 2]  # fmt: skip


@pytest.mark.parametrize("transform", range(len(TRANSFORMS)), ids=TRANSFORMS)
@pytest.mark.parametrize("rule", range(len(RULES)), ids=RULES)
def test_equals_the_reference(kernel: Any, rule: int, transform: int) -> None:
    sizes = ((1, 3, 100, 128, 2, 9), (17, 4, 37, 19, 7, 1), (5, 1, 1, 1, 1, 0))
    for (batch, positions, k, hidden, width, added), (theta, beta) in zip(
        sizes, ((0.7, 1.5), (1.0, 0.5), (0.0, 1.0)), strict=True
    ):
        case = step_case(batch, positions, k, hidden, width, added)
        extra = torch.randn(batch, 2 * added)[:, :added] if added else None
        rest = (k, transform, theta, beta, rule, 4.0, extra)
        got, expected = kernel(STEP, *case, *rest), evaluator_step_ref(*case, *rest)
        assert_close(got[0], expected[0], "evaluator")
        assert_close(got[1], expected[1], "evaluator")
        # the choice is that of the strength it was made with, which may differ in its last digit
        assert torch.equal(got[2], select_candidate_ref(*case[2:5], got[1], rule, 4.0))


@pytest.mark.parametrize("transform", range(len(TRANSFORMS)), ids=TRANSFORMS)
def test_what_is_not_a_number_marks_nothing(kernel: Any, transform: int) -> None:
    """Capacity and strength are NaN, the first candidate is taken, other rows are as ever."""
    case = step_case(3, 2, 5, 4, 3)
    case[0][1][1] = torch.nan
    case[5].fill_(-1)
    case[8].fill_(1.0)
    rest = (5, transform, 0.7, 9.0, 2, 1.0)
    capacity, strength, choice = kernel(STEP, *case, *rest)
    assert capacity.isnan().tolist() == strength.isnan().tolist() == [False, True, False]
    assert choice[1] == 0 and torch.equal(choice, evaluator_step_ref(*case, *rest)[2])


@pytest.mark.parametrize("batch, size, hidden", [(1, 1, 1), (3, 300, 128), (2, 101, 77), (2, 400, 512)])
def test_capacity(kernel: Any, batch: int, size: int, hidden: int) -> None:
    weights, features = network(size, hidden), torch.randn(batch, size + 3)[:, 1:-2]  # rows are not neighbours
    assert_close(kernel("evaluate_capacity", features, weights), evaluate_capacity_ref(features, weights), "evaluator")
    assert bool(kernel("evaluate_capacity", torch.full_like(features, torch.nan), weights).isnan().all())


@pytest.mark.parametrize("rule", range(len(RULES)), ids=RULES)
@pytest.mark.parametrize("width", [1, 2, 7, 100])
def test_selection(kernel: Any, rule: int, width: int) -> None:
    candidates = torch.stack([torch.randperm(999)[:width] for _ in range(60)])
    needs, counts = torch.randint(-3, 4, (60, width)).float() / 2, torch.randint(1, width + 1, (60,))
    for strength in (torch.randint(0, 5, (60,)).float() / 2, torch.rand(60) * 9):
        given = (candidates, needs, counts, strength, rule, 1.5)
        assert torch.equal(kernel("select_candidate", *given), select_candidate_ref(*given))


def test_reweighting_rounds_twice_and_ties_go_to_the_smaller_id(kernel: Any) -> None:
    """fl32(l + fl32(s * delta)) == l_r exactly: the smaller id wins. One rounding less would decide otherwise."""
    low, strength, ids = torch.full((64,), 16.0), torch.rand(64), torch.arange(64)
    high = low + strength * 3.3  # torch rounds twice
    for smaller in (True, False):
        candidates = torch.stack([ids * 2 + 1, ids * 2 + (0 if smaller else 2)], dim=1)
        needs, counts = torch.stack([high, low], dim=1), torch.full((64,), 2)
        choice = kernel("select_candidate", candidates, needs, counts, strength, 0, 3.3)
        assert torch.equal(choice, torch.full((64,), int(smaller)))
    fused = (low.double() + strength.double() * torch.tensor(3.3).double()).float()
    assert not torch.equal(fused, high)  # so the test can fail


@pytest.mark.parametrize("index, change, words", [
    (0, lambda x: [], "probs must"), (0, lambda x: [x[0], x[1].double()], "probs.* must be float32"),
    (0, lambda x: [x[0], x[1][:, :4]], r"probs.* must have shape|k must be in"),
    (1, lambda x: x[:7], "weights must be mean, scale, W1, b1, W2, b2, W3, b3|weights must"),
    (1, lambda x: [x[0].double(), *x[1:]], r"(mean|weights\[0\]) must be float32"),
    (1, lambda x: [*x[:4], x[4][:, :3], *x[5:]], r"(W2|weights\[4\]) must have shape"),
    (2, lambda x: x.int(), "candidates must be int64"), (3, lambda x: x[:, :1], "needs must have shape"),
    (4, lambda x: x[:1], r"counts must have shape \[3\], got \[1\]"),
    (5, lambda x: x[:2], r"pending must have shape \[3\], got \[2\]"),
    (8, lambda x: x.double(), "factor must be float32"), (10, lambda x: 3, "transform must"),
    (13, lambda x: 3, "rule must"), (15, lambda x: torch.zeros(2, 2), "extra must have shape"),
    (15, lambda x: torch.zeros(3, 2).double(), "extra must be float32"),
    (15, lambda x: torch.zeros(3, 2), r"(mean|weights\[0\]|weights\[2\]) must have shape"),
])  # fmt: skip
def test_bad_input_names_the_argument(kernel: Any, index: int, change: Any, words: str) -> None:
    given = [*step_case(3, 2, 5, 4, 3), 5, 1, 0.7, 9.0, 2, 1.0, None]
    given[index] = change(given[index])
    with pytest.raises((RuntimeError, TypeError, ValueError), match=rf"^{words}"):
        kernel(STEP, *given)
