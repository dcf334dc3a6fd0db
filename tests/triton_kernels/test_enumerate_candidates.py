"""Ladders by kernels: the tests of the compiled ones."""

from __future__ import annotations

import pytest
import torch
from csrc.test_enumerate_candidates import *  # noqa: F403
from csrc.test_enumerate_candidates import BUILDERS, OP, given_of, position


def test_a_record_beyond_the_kernel_is_named(kernel):
    given = given_of(BUILDERS["lefthash"](), position(torch.randn(2, 150), 1))
    given[0] = torch.zeros(2, 129)
    with pytest.raises(ValueError, match="values must have 1 to 128 columns, got 129; shorten the record"):
        kernel(OP, *given)
