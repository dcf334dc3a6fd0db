"""Which policy `caw generate` takes where --policy says nothing, and the line that says what marks the texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from caw.cli import options as opt
from caw.policies.registry import POLICIES

if TYPE_CHECKING:
    from caw.policies import Policy
    from caw.watermarks import Watermark

CAW, PLAIN = "capacity", "fixed"
NO_EVALUATOR = "no evaluator for this model: marked at full strength; see caw train-evaluator"
# what says how strong a watermark is; the rest of its settings is in every output line
STRONG = ("delta", "top_k", "depth")


def choose_policy(name: str | None, options: Mapping[str, Any], model: str, *, marked: bool) -> tuple[str, str]:
    """(policy, remark): the one asked for by name or by options of its own; else CAW where the model has an evaluator.

    remark: why it is not CAW although no other was asked for; "" otherwise.
    """
    from caw.evaluator.network import shipped_for

    if name is not None or not marked:
        return name or PLAIN, ""
    given = {option for option, value in options.items() if value is not None}
    takes = [policy for policy, entry in POLICIES.items() if given <= set(entry.parameters)]
    if given and takes and CAW not in takes:
        return takes[0], ""
    if given - {"target"} or shipped_for(model) is not None:
        return CAW, ""
    return PLAIN, NO_EVALUATOR


def what_marks(mark: Watermark, policy: Policy, remark: str = "") -> str:
    """One line for people: watermark and policy with the numbers that decide how strongly texts are marked."""
    watermark, chosen = opt.describe(mark), opt.describe(policy)
    assert watermark is not None and chosen is not None
    strong = {name: watermark[name] for name in STRONG if name in watermark}
    line = f"marking with {_named(watermark['name'], strong)}, policy {_named(chosen.pop('name'), chosen)}"
    return f"{line}: {remark}" if remark else line


def _named(name: str, settings: Mapping[str, Any]) -> str:
    said = (f"{setting} {f'{value:g}' if isinstance(value, float) else value}" for setting, value in settings.items())
    return f"{name} ({', '.join(said)})"
