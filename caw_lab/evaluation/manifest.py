"""The manifest of a cell: everything its texts share and depend on, according to the config."""

from pathlib import Path
from typing import Any

from caw.decoding.plan_defaults import marks_eos
from caw.settings import Settings
from caw_lab.evaluation.config import WEIGHTS, CellPlan, Config


def planned_manifest(config: Config, plan: CellPlan) -> dict[str, Any]:
    """Return the part of cell.json that needs no model. All processes and runs of a cell agree on it; it has no key."""
    task, settings = config.tasks[plan.task], config.settings(plan)
    model = config.models[plan.model]
    made: dict[str, Any] = {
        "model": plan.model,
        "source": Path(model.source).name,
        **({} if model.quantization is None else {"quantization": model.quantization}),
        "task": plan.task,
        "data_sha256": task.sha256,
        "split": task.split,
        "shots": task.shots,
        "stop": list(task.stop),
        "generation": _of_text(settings),
    }
    if plan.watermark is None or plan.policy is None:
        return {**made, "watermark": None, "policy": None, "key": None, "key_id": None}
    spec = config.watermarks[plan.watermark]
    _, strength = config.policies[plan.policy].for_watermark(plan.watermark, spec.kind)
    parameters = config.policy_parameters(plan)
    if parameters.get("evaluator"):
        parameters["evaluator"] = Path(str(parameters["evaluator"])).name
    marked_ends = marks_eos(settings.mark_eos, config.watermark(plan).part_for(settings), config.policy(plan))
    return {
        **made,
        "generation": {**made["generation"], "mark_eos": marked_ends, **tested(config, plan)},
        "watermark": plan.watermark,
        "watermark_parameters": {"kind": spec.kind, **spec.parameters, **strength},
        "policy": plan.policy,
        "policy_parameters": {"kind": config.policies[plan.policy].kind, **parameters},
        "key": plan.key,
        "key_id": config.watermark(plan).key_id,
    }


def tested(config: Config, plan: CellPlan) -> dict[str, Any]:
    """Return how a marked cell's texts are tested and retried; empty if they are not."""
    assert plan.policy is not None
    settings = config.settings(plan).tested()
    if not settings:
        return {}
    # a function is what the config calls it
    named = {"select": config.policies[plan.policy].found["select"]} if callable(settings["select"]) else {}
    weights = config.tested_with(plan)
    return {**settings, **named, **({} if weights is None else {WEIGHTS: Path(weights).name})}


def _of_text(settings: Settings) -> dict[str, Any]:
    """Return the settings that every text of a cell depends on, marked or not."""
    sampling = ("temperature", "top_k", "top_p", "seed") if settings.do_sample else ()
    names = ("max_new_tokens", "min_new_tokens", "do_sample", "chat", *sampling)
    filtered = {"min_p": settings.min_p} if settings.do_sample and settings.min_p else {}
    return {**{name: getattr(settings, name) for name in names}, **filtered, **settings.penalties()}
