"""A policy in one line, for receipts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from caw.policies.base import Policy
from caw.policies.target import Target


def policy_text(policy: Policy) -> str:
    """A policy with its numbers; of files only their names, of evaluators without a file that they are one."""
    if not dataclasses.is_dataclass(policy):
        return type(policy).__name__
    shown_as: list[str] = []
    for f in dataclasses.fields(policy):
        value = getattr(policy, f.name)
        if not f.init or not f.repr or value is None:
            continue
        if isinstance(value, (str, Path)):
            value = Path(value).name
        elif isinstance(value, Target):
            value = value.described()
        elif not isinstance(value, (int, float)):
            value = type(value).__name__
        shown_as.append(f"{f.name}={value!r}")
    return f"{type(policy).__name__}({', '.join(shown_as)})"
