"""Settings of training: what they refuse."""

from __future__ import annotations

import pytest

from caw_lab.training.settings import TrainSettings


@pytest.mark.parametrize(
    "arguments",
    [
        {"hidden": 0},
        {"patience": 1.5},
        {"dropout": 1.0},
        {"learning_rate": 0.0},
        {"weight_decay": -1.0},
        {"max_epochs": True},
    ],
)
def test_settings_refuse(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        TrainSettings(**arguments)
