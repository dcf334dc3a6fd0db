"""A tiny model, a tiny evaluator and a plain terminal."""

from collections.abc import Iterator

import pytest
import torch
from tiny import save_tiny

from caw.evaluator import Evaluator, FeatureSpec


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("evaluator") / "tiny.safetensors"
    Evaluator(FeatureSpec(), hidden=8).save(path)
    return str(path)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    for name in ("CAW_KEY", "CAW_TRACEBACK", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    yield
