"""A run on a tiny random model, once for all tests of this folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.evaluation.tiny_run import CELLS, runner
from tiny import save_tiny

from caw.evaluator import Evaluator, FeatureSpec


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("run")
    save_tiny(folder / "model")
    torch.manual_seed(3)
    Evaluator(FeatureSpec(), hidden=8).save(folder / "tiny.safetensors")
    rows = [{"prompt": f"small text {i}, a", "answer": "a", "person": "the sky is blue"} for i in range(9)]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "output": str(folder / "unused"),
        "models": {
            "tiny": {
                "source": str(folder / "model"), "evaluator": str(folder / "tiny.safetensors"), "dtype": "float32",
            }
        },
        "tasks": {
            "mine": {
                "kind": "jsonl", "path": str(folder / "mine.jsonl"), "grade": "contains", "reference": "person",
            }
        },
        "watermarks": {"kgw": {"gamma": 0.5}},
        "policies": {
            "soft": {"kind": "fixed", "delta": 1.0},
            "hard": {"kind": "fixed", "delta": 20.0},
            "caw": {"kind": "capacity", "theta": 1.0, "delta": 20.0},
        },
        "keys": 2,
        "generation": {"max_new_tokens": 12, "batch_size": 3},
    }  # fmt: skip


@pytest.fixture(scope="session")
def whole(made: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    work = runner(made, folder)
    assert work.run() == 9 * len(CELLS)
    work.score()
    return folder
