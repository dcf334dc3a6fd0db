"""The references of the evidence ops serve GPUs too, inside captured steps: they read nothing back."""

import pytest
import torch
from decoding.capturing import FAKE_DEVICE, HostData
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from caw import prf
from caw.ops_ref.evidence_ref import count_evidence_ref, show_evidence_ref

B, N, W = 3, 8, 2
COLUMNS = {0: W + 1, 1: 2, 2: W, 3: W}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scheme", COLUMNS)
def test_nothing_is_read_back(scheme: int, weighted: bool) -> None:
    with FakeTensorMode():
        padded, counts = (torch.zeros(size, dtype=torch.int64, device=FAKE_DEVICE) for size in ((B, W + N), (B,)))
        seen = torch.zeros(B, N + 1, COLUMNS[scheme], dtype=torch.int64, device=FAKE_DEVICE)
        trials, standing = counts[:, None].repeat(1, 16), counts[:, None].repeat(1, 2).double()
        with HostData() as watched:
            values, evidence, known = show_evidence_ref(
                padded, counts, padded[:, :3], seen, counts, W, counts, scheme, prf.green_threshold(0.25)
            )
            count_evidence_ref(
                seen, counts, trials, values[:, 0].clone(), standing, evidence[:, 0], ~known[:, 0],
                counts if weighted else None, values[:, 0], 0.25, 0.1875, 0.09,
            )  # fmt: skip
    assert evidence.shape == (B, 3, COLUMNS[scheme]) and known.shape == values.shape == (B, 3)
    assert not watched.moves and watched.seen


def test_a_read_would_be_found() -> None:
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        bool(torch.zeros(1, device=FAKE_DEVICE) > 0)


def test_a_full_text_keeps_what_it_holds() -> None:
    """Where nothing is added, nothing changes, at whatever count."""
    seen, distinct = torch.arange(6).view(1, 3, 2), torch.tensor([3])
    before = seen.clone()
    trials, score, standing = torch.zeros(1, 16, dtype=torch.int64), torch.ones(1).double(), torch.ones(1, 2).double()
    count_evidence_ref(
        seen, distinct, trials, score, standing, torch.tensor([[9, 9]]), torch.tensor([False]), None,
        torch.ones(1).double(), 0.25, 0.1875, 0.09,
    )  # fmt: skip
    assert torch.equal(seen, before) and distinct.tolist() == [3] and not trials.any()
    assert score.tolist() == [1] and standing.tolist() == [[1, 1]]
