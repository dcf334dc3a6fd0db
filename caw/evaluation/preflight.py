"""What is checked before a run begins: that its texts can be made and measured, and that earlier ones still fit."""

from __future__ import annotations

from collections.abc import Iterable

from caw.evaluation.config import CellPlan, Config
from caw.evaluation.manifest import planned_manifest
from caw.evaluation.publishing import is_published
from caw.evaluation.store import Store
from caw.models.sources import check_source
from caw.requirements import require


def require_for(config: Config, plans: Iterable[CellPlan], *, models: bool = False) -> None:
    """Check for the packages and files that these cells will need later.

    That is scikit-learn where texts are marked and, with `models`, every model's files and packages. Data sets are read
    first anyway. Raises ImportError or FileNotFoundError in one sentence.
    """
    plans = list(plans)
    if any(plan.watermark is not None for plan in plans):
        require("scikit-learn", "the metrics of an evaluation")
    for name in dict.fromkeys(plan.model for plan in plans if models):
        check_source(config.models[name].source)


def check_cells(config: Config, store: Store, plans: Iterable[CellPlan]) -> None:
    """Check that the texts of these cells were made as the config says now.

    Detection reads the config. With another key or gamma it would miss the clearest mark, and nothing would say why.
    Raises ValueError for a cell made in another way, and for a published copy.
    """
    if is_published(store.path):
        raise ValueError(
            f"expected a run's folder, found a published copy in {store.path}, which has no texts; name the run's own"
        )
    for plan in {plan.name: plan for plan in plans}.values():
        cell = store.cell(plan.name)
        if known := cell.manifest:
            planned = planned_manifest(config, plan)
            cell.check(planned, known.keys() & planned.keys())
