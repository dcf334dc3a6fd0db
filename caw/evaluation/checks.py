"""What an evaluation will need besides this library, asked for before its first text."""

from __future__ import annotations

from collections.abc import Iterable

from caw.evaluation.config import CellPlan, Config
from caw.models.sources import check_source
from caw.requirements import require


def require_for(config: Config, plans: Iterable[CellPlan], *, models: bool = False) -> None:
    """Raise ImportError or FileNotFoundError, in one sentence, for what later stages of these cells would not find.

    That is the package for the metrics of marked texts and, with `models`, files and packages of every model. Data sets
    are read first anyway.
    """
    plans = list(plans)
    if any(plan.watermark is not None for plan in plans):
        require("scikit-learn", "the metrics of an evaluation")
    for name in dict.fromkeys(plan.model for plan in plans if models):
        check_source(config.models[name].source)
