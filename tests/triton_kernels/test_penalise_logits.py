"""Bias and penalties by the kernel: the tests of the compiled one, and what is a GPU's alone."""

from __future__ import annotations

import pytest
import torch
from csrc.test_penalise_logits import *  # noqa: F403
from csrc.test_penalise_logits import inputs, penalise_logits_ref


def test_what_is_no_token_is_skipped(kernel) -> None:
    """A check would wait for the GPU; nothing beyond the row is touched."""
    given = inputs(2, 12, 8)
    more = torch.tensor([[12, 1 << 40, -7], [-(1 << 40), 99, 12]])
    found = kernel("penalise_logits", given[0], torch.cat([given[1], more], dim=1), *given[2:])
    assert torch.equal(found, penalise_logits_ref(*given))


@pytest.mark.gpu
def test_a_graph_holds_it(device: torch.device) -> None:
    """Replayed on other texts, which lie in the same memory."""
    from caw.triton_kernels.penalise_logits import penalise_logits

    given = [x.to(device) for x in inputs(3, 1031, 300)]
    penalise_logits(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = penalise_logits(*given)
    for shift in range(3):
        given[1].copy_(inputs(3, 1031, 300)[1].roll(shift, 1).add(shift).clamp(max=1030))
        graph.replay()
        assert torch.equal(found, penalise_logits_ref(*given))
