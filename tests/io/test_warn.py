"""Warnings name the user's line, whatever lies between it and the library."""

from collections.abc import Callable
from typing import Any

import pytest

from caw.io.warn import warn_caller


def through(module: str, call: Callable[[], Any]) -> Callable[[], Any]:
    names: dict[str, Any] = {"__name__": module, "call": call}
    exec(compile("def run():\n    call()", f"{module}.py", "exec"), names)
    run: Callable[[], Any] = names["run"]
    return run


@pytest.mark.parametrize("between", [
    ["caw.arguments"], ["caw.arguments", "caw.entrance"], ["caw.custom_generate", "transformers.generation", "torch"],
])  # fmt: skip
def test_the_line_outside_is_named(between: list[str]) -> None:
    # the library's own frame; a function of this file would be the caller itself
    names: dict[str, Any] = {"__name__": "caw.checks", "warn_caller": warn_caller}
    exec(compile("def call():\n    warn_caller('look here')", "caw.checks.py", "exec"), names)
    call = names["call"]
    for module in between:
        call = through(module, call)
    with pytest.warns(UserWarning, match="look here") as told:
        call()
    assert [warning.filename for warning in told] == [__file__]


def test_a_module_whose_name_begins_like_ours_is_a_caller() -> None:
    names: dict[str, Any] = {"__name__": "cawdor", "warn_caller": warn_caller}
    exec(compile("def call():\n    warn_caller('look here')", "cawdor.py", "exec"), names)
    with pytest.warns(UserWarning) as told:
        names["call"]()
    assert [warning.filename for warning in told] == ["cawdor.py"]
