"""Checks before a run: its texts can be generated and measured, and earlier ones still match the config."""

from collections.abc import Iterable

from caw.models.device import resolve_device
from caw.models.quantization import check_quantization
from caw.models.sources import check_source, file_or_folder
from caw.requirements import require
from caw_lab.evaluation.config import CellPlan, Config
from caw_lab.evaluation.manifest import planned_manifest
from caw_lab.evaluation.publishing import is_published
from caw_lab.evaluation.store import Store


def require_for(config: Config, plans: Iterable[CellPlan], *, models: bool = False) -> None:
    """Check for the packages and files that these cells will need later.

    That is scikit-learn where texts are marked and, with `models`, every model's files and packages; weights must be
    such that they can be quantized as asked. Data sets are read first anyway. Raises ImportError, FileNotFoundError or
    ValueError in one sentence.
    """
    plans = list(plans)
    if any(plan.watermark is not None for plan in plans):
        require("scikit-learn", "the metrics of an evaluation")
    for name in dict.fromkeys(plan.model for plan in plans if models):
        spec = config.models[name]
        check_source(spec.source)
        if spec.quantization is not None:
            device = resolve_device(spec.place(None))
            check_quantization(spec.quantization, file_or_folder(spec.source), device, spec.dtype)


def check_cells(config: Config, store: Store, plans: Iterable[CellPlan]) -> None:
    """Check that the texts of these cells match the config.

    Detection reads the config: with another key or gamma it would miss the clearest mark without an error. Raises
    ValueError for a cell with other settings, and for a published copy.
    """
    if is_published(store.path):
        raise ValueError(f"{store.path} is a published copy without texts; give the run's own folder")
    for plan in {plan.name: plan for plan in plans}.values():
        cell = store.cell(plan.name)
        if known := cell.manifest:
            planned = planned_manifest(config, plan)
            cell.check(planned, known.keys() & planned.keys())
