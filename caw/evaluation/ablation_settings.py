"""What the ablation of evaluators compares: windows, and how long each variant is trained."""

from __future__ import annotations

from caw.fitting.settings import TrainSettings

WINDOWS = {
    "no_context": (0, 0),
    "previous_only": (1, 0),
    "next_only": (0, 1),
    "window_1": (1, 1),
    "window_2_1": (2, 1),
    "window_2": (2, 2),
    "window_3": (3, 3),
}
# larger steps and fewer epochs than `caw train-evaluator` takes: dozens of trainings are compared, none is shipped
QUICK = TrainSettings(learning_rate=3e-3, max_epochs=30, patience=5)
