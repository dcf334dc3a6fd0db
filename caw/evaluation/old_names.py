"""Names that older configs and cells use, and defaults that have changed since they were written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS = {"logit_delta": "logit-delta"}
PARAMETERS = {"entropy": {"threshold": "nats"}, "logit-delta": {"threshold": "gap"}}
# what older cells used where their config was silent; newer ones always say it
DEFAULTS_THEN = {"capacity": {"theta": 0.5, "beta": 1.0}}


def kind_now(kind: Any) -> Any:
    """Today's name of a policy's kind; anything else as it is."""
    return KINDS.get(kind, kind) if isinstance(kind, str) else kind


def names_now(kind: str, parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A policy's parameters by today's names; raises ValueError if one is given by both its old and its new name."""
    renamed: dict[str, Any] = {}
    for name, value in parameters.items():
        today = PARAMETERS.get(kind, {}).get(name, name)
        if today in renamed or (today != name and today in parameters):
            raise ValueError(f"{where} has both {name} and {today}, which mean the same; leave {name} out")
        renamed[today] = value
    return renamed


def policy_of_cell(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """`policy_parameters` of a cell's manifest, in today's names and with the defaults of its time."""
    kind = kind_now(parameters.get("kind"))
    return {**DEFAULTS_THEN.get(kind, {}), **names_now(str(kind), parameters, "the cell"), "kind": kind}
