"""What a cell's texts share and depend on, as far as the config says it; and whether texts were made that way."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from caw.decoding.plan import marks_eos
from caw.evaluation.config import CellPlan, Config
from caw.evaluation.publishing import is_published
from caw.evaluation.store import Store


def planned_manifest(config: Config, plan: CellPlan) -> dict[str, Any]:
    """The part of cell.json that needs no model: equal for all processes and runs of a cell, and without keys."""
    task = config.tasks[plan.task]
    made: dict[str, Any] = {
        "model": plan.model,
        "source": Path(config.models[plan.model].source).name,
        "task": plan.task,
        "data_sha256": task.sha256,
        "split": task.split,
        "shots": task.shots,
        "stop": list(task.stop),
        "generation": config.generation.of_text,
    }
    if plan.watermark is None or plan.policy is None:
        return {**made, "watermark": None, "policy": None, "key": None, "key_id": None}
    spec = config.watermarks[plan.watermark]
    _, strength = config.policies[plan.policy].for_watermark(plan.watermark, spec.kind)
    parameters = config.policy_parameters(plan)
    if parameters.get("evaluator"):
        parameters["evaluator"] = Path(str(parameters["evaluator"])).name
    marked_ends = marks_eos(config.generation.mark_eos, config.watermark(plan))
    return {
        **made,
        "generation": {**made["generation"], "mark_eos": marked_ends},
        "watermark": plan.watermark,
        "watermark_parameters": {"kind": spec.kind, **spec.parameters, **strength},
        "policy": plan.policy,
        "policy_parameters": {"kind": config.policies[plan.policy].kind, **parameters},
        "key": plan.key,
        "key_id": config.watermark(plan).key_id,
    }


def check_cells(config: Config, store: Store, plans: Iterable[CellPlan]) -> None:
    """Raise ValueError for a cell whose texts were made otherwise than the config says now, and for a published copy.

    Detection reads the config: under another key or gamma the clearest mark is not there, and nothing would tell why.
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
