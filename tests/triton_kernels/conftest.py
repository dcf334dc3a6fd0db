"""Kernels run compiled where there is a CUDA device, else in Triton's interpreter; never not at all.

tests/conftest.py asks for the interpreter before anything imports Triton. Should that come too late one day, every test
here fails with the remedy instead of being skipped.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

MODULES = {"select_candidate": "evaluator_step", "evaluate_capacity": "evaluator_step", "commit_step": "commit_kv"}


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


@pytest.fixture
def kernel(device: torch.device) -> Callable[..., Any]:
    """Calls a Triton kernel by its operator's name, arguments on the device, for tests of compiled operators too."""

    def call(name: str, *given: Any, **options: Any) -> Any:
        moved, named = tree_map(lambda x: x.to(device) if torch.is_tensor(x) else x, (given, options))
        launch = getattr(importlib.import_module(f"caw.triton_kernels.{MODULES.get(name, name)}"), name)
        found = tree_map(lambda x: x.cpu() if torch.is_tensor(x) else x, launch(*moved, **named))
        for mine, theirs in zip(tree_leaves((given, options)), tree_leaves((moved, named)), strict=True):
            if torch.is_tensor(mine) and mine is not theirs and not mine.equal(back := theirs.cpu()):
                mine.copy_(back)
        return found

    return call
