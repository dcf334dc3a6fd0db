"""The fused evaluator step against its reference, and the reference against the evaluator and policy it stands for."""

from __future__ import annotations

import pytest
import torch

from caw.capacity import evaluate_capacity_ref
from caw.evaluator import Evaluator, FeatureSpec
from caw.ladder import select_candidate_ref
from caw.op_indices import RULES, TRANSFORMS
from caw.policies import CapacityPolicy
from caw.policies.base import Signals
from caw.record import Record
from caw.testing import assert_close
from caw.triton_kernels import evaluator_step_ref as ref


def network(spec, hidden):
    evaluator = Evaluator(spec, hidden)
    evaluator.mean.normal_()
    evaluator.scale.uniform_(0.5, 2)
    with torch.no_grad():
        evaluator.layer3.weight.mul_(10)  # capacities spread over (0, 1), so that strengths differ
    return evaluator.requires_grad_(False)


def records(batch, positions, columns=100):
    """Sorted probabilities; the last row of the first position does not exist, and some tails are exactly 0."""
    parts = [torch.softmax(torch.randn(batch, columns) * 3, 1).sort(descending=True).values for _ in range(positions)]
    parts[0][-1] = 0.0
    parts[-1][0, columns // 2 :] = 0.0
    return parts


def ladder(batch, rungs, rule):
    candidates = torch.stack([torch.randperm(1000)[:rungs] for _ in range(batch)])
    if RULES[rule] == "reweight":
        needs = torch.randn(batch, rungs).sort(descending=True).values
    elif RULES[rule] == "top_k":
        needs = torch.stack([torch.randperm(20)[:rungs].sort().values + 1 for _ in range(batch)]).float()
    else:
        needs = torch.rand(batch, rungs).sort().values
    return candidates, needs, torch.randint(1, rungs + 1, (batch,))


def move(device, x):
    if isinstance(x, list):
        return [move(device, y) for y in x]
    return x.to(device) if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    "previous, following, k, hidden", [(1, 1, 100, 128), (0, 0, 1, 1), (2, 1, 37, 33), (0, 1, 100, 16)]
)
def test_equals_the_reference(device, previous, following, k, hidden, transform):
    from caw.triton_kernels.evaluator_step import evaluator_step

    spec = FeatureSpec(previous, following, k, transform)
    weights = network(spec, hidden).weights()
    rule = RULES.index("reweight")
    pending = torch.tensor([-1, 5, -1, 0, -1])
    arguments = [records(5, spec.positions), weights, *ladder(5, 2, rule), pending, torch.rand(5), torch.rand(5),
                 torch.rand(5) * 2, k, TRANSFORMS.index(transform), 0.9, 1.5, rule, 4.0]  # fmt: skip
    actual = evaluator_step(*(move(device, x) for x in arguments))
    expected = ref.evaluator_step_ref(*arguments)
    assert_close(actual[0], expected[0], "evaluator")
    assert_close(actual[1], expected[1], "evaluator")
    assert torch.equal(actual[2].cpu(), expected[2])


@pytest.mark.parametrize("columns, strided", [(1, False), (33, False), (64, True)])
def test_extra_inputs(device, columns, strided):
    from caw.triton_kernels.evaluator_step import evaluator_step

    spec, rule = FeatureSpec(1, 1, 37), RULES.index("top_k")
    probs = records(5, 3)
    extra = torch.randn(5, 2 * columns)[:, :columns] if strided else torch.randn(5, columns)
    inputs = torch.cat([ref.window_features(probs, 37, 1), extra], dim=1)
    # standardised as in training: a capacity far from every theta is as good as 0, and its size is that of its rounding
    first = [inputs.mean(0), inputs.std(0) + 0.5, torch.randn(24, inputs.shape[1]) / inputs.shape[1] ** 0.5 * 5]
    weights = [*first, *network(spec, 24).weights()[3:]]
    arguments = [probs, weights, *ladder(5, 4, rule), torch.full((5,), -1), torch.rand(5), torch.rand(5),
                 torch.ones(5), 37, 1, 0.9, 1.5, rule, 10.0]  # fmt: skip
    actual = evaluator_step(*(move(device, x) for x in [*arguments, extra]))
    expected = ref.evaluator_step_ref(*arguments, extra)
    assert expected[0].min() > 1e-3 and expected[0].max() - expected[0].min() > 0.1
    assert_close(actual[0], expected[0], "evaluator")
    assert torch.equal(actual[2].cpu(), expected[2])
    with_other = ref.evaluator_step_ref(*arguments, extra + 1)
    assert not torch.equal(with_other[0], expected[0])


@pytest.mark.parametrize(
    "extra", [torch.zeros(4, 3), torch.zeros(5, 65), torch.zeros(5, 3).double(), torch.zeros(3, 5).T]
)
def test_bad_extra_inputs_name_the_argument(device, extra):
    from caw.triton_kernels.evaluator_step import evaluator_step

    spec = FeatureSpec(0, 0, 5)
    arguments = [records(5, 1, 5), network(spec, 3).weights(), *ladder(5, 2, 0), torch.full((5,), -1), torch.rand(5),
                 torch.rand(5), torch.ones(5), 5, 1, 0.9, 1.5, 0, 4.0, extra]  # fmt: skip
    with pytest.raises((TypeError, ValueError), match=r"^extra must"):
        evaluator_step(*(move(device, x) for x in arguments))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_reference_is_the_evaluator_and_the_policy(transform):
    """What is written down beside the kernel is what training and the policy use."""
    spec = FeatureSpec(2, 1, 50, transform)
    evaluator, probs = network(spec, 16), records(4, 4)
    window = [Record(p.log(), torch.zeros_like(p).long(), p, torch.zeros(4)) for p in probs]
    features = ref.window_features(probs, 50, TRANSFORMS.index(transform))
    assert torch.equal(features, spec.assemble(window))
    capacity = evaluate_capacity_ref(features, evaluator.weights())
    policy = CapacityPolicy(evaluator, theta=0.7, beta=2.0)
    assert torch.equal(ref.strength_of(capacity, 0.7, 2.0), policy.strength(Signals(window[2], probs[2], capacity)))
    assert torch.equal(ref.strength_of(capacity, 0.0, 2.0), torch.zeros(4))


def test_theta_zero_protects_everything(device):
    from caw.triton_kernels.evaluator_step import evaluator_step

    spec = FeatureSpec()
    rule = RULES.index("scale")
    arguments = [records(3, 3), network(spec, 8).weights(), *ladder(3, 5, rule), torch.full((3,), -1), torch.ones(3),
                 torch.ones(3), torch.ones(3), 100, 1, 0.0, 5.0, rule, 1.0]  # fmt: skip
    _, strength, choice = evaluator_step(*(move(device, x) for x in arguments))
    assert not strength.any() and not choice.any()


@pytest.mark.parametrize("rule", ["top_k", "scale"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_what_is_not_a_number_marks_nothing(device, transform, rule):
    """Records of broken logits: capacity and strength are NaN, the first candidate is taken, other rows are as ever."""
    from caw.triton_kernels.evaluator_step import evaluator_step

    spec, rule = FeatureSpec(transform=transform), RULES.index(rule)
    parts = records(3, spec.positions)
    parts[1][1] = float("nan")
    arguments = [parts, network(spec, 8).weights(), *ladder(3, 5, rule), torch.full((3,), -1), torch.ones(3),
                 torch.ones(3), torch.ones(3), 100, TRANSFORMS.index(transform), 0.9, 1.0, rule, 20.0]  # fmt: skip
    capacity, strength, choice = (x.cpu() for x in evaluator_step(*(move(device, x) for x in arguments)))
    expected = ref.evaluator_step_ref(*arguments)
    assert capacity[1].isnan() and strength[1].isnan() and choice[1] == expected[2][1] == 0
    assert expected[1][1].isnan() and bool(strength[[0, 2]].isfinite().all())
    assert torch.equal(choice, expected[2])


@pytest.mark.parametrize("batch, inputs, hidden", [(1, 1, 1), (3, 300, 128), (2, 101, 77), (2, 400, 512)])
def test_capacity_equals_the_reference(device, batch, inputs, hidden):
    from caw.triton_kernels.evaluator_step import evaluate_capacity

    weights = [torch.randn(inputs), torch.rand(inputs) + 0.5, torch.randn(hidden, inputs) / inputs**0.5,
               torch.randn(hidden), torch.randn(hidden, hidden) / hidden**0.5, torch.randn(hidden),
               torch.randn(1, hidden) / hidden**0.5, torch.randn(1)]  # fmt: skip
    features = torch.randn(batch, inputs + 3)[:, 1:-2]  # rows are not neighbours
    actual = evaluate_capacity(features.to(device), move(device, weights))
    assert_close(actual, evaluate_capacity_ref(features, weights), "evaluator")


@pytest.mark.parametrize("rule", range(len(RULES)), ids=RULES)
@pytest.mark.parametrize("rungs", [1, 2, 7, 100])
def test_selection_equals_the_reference(device, rule, rungs):
    from caw.triton_kernels.evaluator_step import select_candidate

    rungs = min(rungs, 20) if RULES[rule] == "top_k" else rungs
    arguments = [
        *ladder(16, rungs, rule),
        torch.cat([torch.zeros(2), torch.rand(12) * 2, torch.full((2,), 9.0)]),
        rule,
        4.0,
    ]
    actual = select_candidate(*(move(device, x) for x in arguments))
    assert torch.equal(actual.cpu(), select_candidate_ref(*arguments))


def test_reweighting_rounds_twice_and_ties_go_to_the_smaller_id(device):
    """fl32(l + fl32(s * delta)) == l_r exactly: the smaller id wins. One rounding less would decide otherwise."""
    from caw.triton_kernels.evaluator_step import select_candidate

    low = torch.full((64,), 16.0)
    strength = torch.rand(64)
    high = low + strength * 3.3  # torch rounds twice
    ids = torch.arange(64)
    for smaller in (True, False):
        candidates = torch.stack([ids * 2 + 1, ids * 2 + (0 if smaller else 2)], dim=1)
        arguments = [candidates, torch.stack([high, low], dim=1), torch.full((64,), 2), strength, 0, 3.3]
        choice = select_candidate(*(move(device, x) for x in arguments)).cpu()
        assert torch.equal(choice, torch.full((64,), int(smaller)))
    fused = (low.double() + strength.double() * torch.tensor(3.3).double()).float()
    assert not torch.equal(fused, high)  # so the test can fail


@pytest.mark.parametrize(
    "name, change, error",
    [
        ("probs", {0: lambda x: []}, ValueError),
        ("probs", {0: lambda x: x * 2}, ValueError),
        (r"probs\[1\]", {0: lambda x: [x[0], x[1].double(), x[2]]}, TypeError),
        ("k", {9: lambda x: 101}, ValueError),
        (r"weights\[2\]", {9: lambda x: 99}, ValueError),
        ("weights", {1: lambda x: x[:7]}, ValueError),
        (r"weights\[4\]", {1: lambda x: [*x[:4], x[4][:, :3], *x[5:]]}, ValueError),
        (r"weights\[0\]", {1: lambda x: [x[0].double(), *x[1:]]}, TypeError),
        ("candidates", {2: lambda x: x.int()}, TypeError),
        ("needs", {3: lambda x: x[:, :1]}, ValueError),
        ("counts", {4: lambda x: x[:1]}, ValueError),
        ("pending", {5: lambda x: x.bool()}, TypeError),
        ("factor", {8: lambda x: x.double()}, TypeError),
        ("transform", {10: lambda x: 3}, ValueError),
        ("rule", {13: lambda x: 3}, ValueError),
    ],
)
def test_bad_input_names_the_argument(device, name, change, error):
    from caw.triton_kernels.evaluator_step import evaluator_step

    arguments = [records(2, 3), network(FeatureSpec(), 8).weights(), *ladder(2, 2, 0), torch.full((2,), -1),
                 torch.ones(2), torch.ones(2), torch.ones(2), 100, 1, 0.5, 1.0, 0, 4.0]  # fmt: skip
    arguments = [move(device, x) for x in arguments]
    for index, how in change.items():
        arguments[index] = how(arguments[index])
    with pytest.raises(error, match=rf"^{name} must"):
        evaluator_step(*arguments)
