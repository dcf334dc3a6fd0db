"""What configs and cells from before call otherwise, or leave to defaults that were others then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS = {"logit_delta": "logit-delta"}
PARAMETERS = {"entropy": {"threshold": "nats"}, "logit-delta": {"threshold": "gap"}}
# cells say theta and beta since these are no longer what was used where the config was silent
DEFAULTS_THEN = {"capacity": {"theta": 0.5, "beta": 1.0}}


def kind_now(kind: Any) -> Any:
    """A policy's kind by its name of today; anything else as it is."""
    return KINDS.get(kind, kind) if isinstance(kind, str) else kind


def names_now(kind: str, parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A policy's parameters by their names of today; raises ValueError for one that is given by both."""
    renamed: dict[str, Any] = {}
    for name, value in parameters.items():
        today = PARAMETERS.get(kind, {}).get(name, name)
        if today in renamed or (today != name and today in parameters):
            raise ValueError(f"{where} has both {name} and {today}, which mean the same; leave {name} out")
        renamed[today] = value
    return renamed


def policy_of_cell(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """`policy_parameters` of a cell's manifest as today's would say them."""
    kind = kind_now(parameters.get("kind"))
    return {**DEFAULTS_THEN.get(kind, {}), **names_now(str(kind), parameters, "the cell"), "kind": kind}
