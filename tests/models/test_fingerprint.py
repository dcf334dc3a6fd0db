"""A model's digest tells it from others, whatever its size."""

import torch

from caw.models.fingerprint import fingerprint


def test_it_follows_names_shapes_and_numbers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    first = fingerprint(model)
    assert fingerprint(model) == first
    model[1].running_mean[4] += 1
    second = fingerprint(model)
    model[0].weight.data[-1, -1] += 1
    assert len({first, second, fingerprint(model), fingerprint(model[:1]), fingerprint(model.bfloat16())}) == 5


def test_tensors_may_be_empty_or_beyond_what_float32_counts() -> None:
    model = torch.nn.Module()
    model.embedding = torch.nn.Parameter(torch.zeros(1).expand(28_311_552))
    model.empty = torch.nn.Parameter(torch.zeros(0, 4))
    assert len(fingerprint(model)) == 64
