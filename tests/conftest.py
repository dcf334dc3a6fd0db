"""What all tests share: seeds, the GPU rule, the demo model and the data folder."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

# derandomised: the same examples in every run, here and in CI; no deadline: the machine may be shared
settings.register_profile("caw", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("caw")

# without a GPU kernels run in Triton's interpreter. Triton decides at its import, and transformers imports it (through
# torch._dynamo) as soon as any test module imports this library, so it is settled here, before all of them
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

REQUIRE_GPU = os.environ.get("CAW_REQUIRE_GPU") == "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `gpu` are skipped without a CUDA device; CAW_REQUIRE_GPU=1 makes that a failure."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        (pytest.fail if REQUIRE_GPU else pytest.skip)("needs CUDA")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many token lists were compared, and each that differed where the decision was within the table's margin."""
    compared = sys.modules.get("decoding.brute_force")
    if compared is not None and compared.COMPARED:
        total, differed = len(compared.COMPARED), compared.DIFFERED
        terminalreporter.write_line(f"equal tokens: {total} comparisons, {len(differed)} within their margin")
        for line in differed:
            terminalreporter.write_line(f"  {line}")


@pytest.fixture(autouse=True)
def seed() -> int:
    """Every test starts from the same random state."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    return 0


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """One thread: where others use the machine, two threads that wait for each other took 10 to 25 times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def demo() -> tuple[Any, Any]:
    """(model, tokenizer) of the demo model in float32, loaded once; threads as given."""
    from caw.models import DEMO_MODEL, load_model

    try:
        return load_model(DEMO_MODEL, device="cpu", dtype="float32")
    except (FileNotFoundError, ImportError) as error:
        pytest.skip(f"needs the demo model: {error}")


@pytest.fixture(scope="session")
def demo_model(demo: tuple[Any, Any]) -> Any:
    return demo[0]


@pytest.fixture(scope="session")
def demo_tokenizer() -> Any:
    """The demo model's tokenizer, without loading the model."""
    from caw.models import DEMO_MODEL, load_tokenizer

    try:
        return load_tokenizer(DEMO_MODEL)
    except (FileNotFoundError, ImportError) as error:
        pytest.skip(f"needs the demo model's tokenizer: {error}")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The data folder: CAW_DATA_DIR, or `../shared/data` beside the checkout."""
    given = os.environ.get("CAW_DATA_DIR")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the data folder; set CAW_DATA_DIR")
    return folder
