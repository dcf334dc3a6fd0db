"""The fused evaluator step: the tests of the compiled one, and the reference against the evaluator and policy."""

from __future__ import annotations

import pytest
import torch
from csrc.test_evaluator_step import *  # noqa: F403

from caw.capacity import evaluate_capacity_ref
from caw.evaluator import Evaluator, FeatureSpec
from caw.op_indices import TRANSFORMS
from caw.policies import CapacityPolicy
from caw.policies.base import Signals
from caw.record import Record
from caw.triton_kernels import evaluator_step_ref as ref


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_reference_is_the_evaluator_and_the_policy(transform):
    """What is written down beside the kernel is what training and the policy use."""
    spec = FeatureSpec(2, 1, 50, transform)
    evaluator = Evaluator(spec, 16).requires_grad_(False)
    evaluator.mean.normal_()
    probs = [torch.softmax(torch.randn(4, 100) * 3, 1).sort(descending=True).values for _ in range(4)]
    probs[0][-1] = 0.0
    window = [Record(p.log(), torch.zeros_like(p).long(), p, torch.zeros(4)) for p in probs]
    features = ref.window_features(probs, 50, TRANSFORMS.index(transform))
    assert torch.equal(features, spec.assemble(window))
    capacity = evaluate_capacity_ref(features, evaluator.weights())
    policy = CapacityPolicy(evaluator, theta=0.7, beta=2.0)
    assert torch.equal(ref.strength_of(capacity, 0.7, 2.0), policy.strength(Signals(window[2], probs[2], capacity)))
    assert torch.equal(ref.strength_of(capacity, 0.0, 2.0), torch.zeros(4))
