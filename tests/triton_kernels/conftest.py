"""Kernels run compiled where there is a CUDA device, else in Triton's interpreter; never not at all.

tests/conftest.py asks for the interpreter before anything imports Triton. Should that come too late one day, every test
here fails with the remedy instead of being skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run: the CUDA device, or the CPU under the interpreter."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    from caw.triton_kernels.launching import INTERPRETED

    if not INTERPRETED:
        pytest.fail(
            "expected Triton in its interpreter, found it imported before TRITON_INTERPRET was set; "
            "run pytest with TRITON_INTERPRET=1"
        )
    return torch.device("cpu")


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """torch.empty gives NaN (integers: the greatest), so that an output a kernel forgets to write shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
