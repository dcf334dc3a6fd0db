"""Options are listed once, beside the fields that they set; the short help shows the common ones."""

from dataclasses import dataclass, fields
from typing import Any

import pytest
import typer
from cli.running import run
from typer.testing import CliRunner

from caw.cli.command import command, group, options_of
from caw.cli.program import COMMANDS
from caw.flags import FLAG, flag
from caw.serve.contracts import MarkRules
from caw.serve.settings import ServerSettings
from caw.settings import Settings

LONG = ("generate", "detect", "serve")


def params_of(name: str) -> dict[str, Any]:
    return {each.name: each for each in COMMANDS[name].load(name).params}


@pytest.mark.parametrize(
    ("name", "kind", "others"),
    [("generate", Settings, {}), ("serve", ServerSettings, {"max_factor": 4.0}),
     ("serve", MarkRules, {"strength_factor": None})],
)  # fmt: skip
def test_a_command_has_the_fields_with_their_defaults(name: str, kind: type, others: dict[str, Any]) -> None:
    params = params_of(name)
    flagged = [each for each in fields(kind) if FLAG in each.metadata]
    assert len(flagged) > 5
    for each in flagged:
        if others.get(each.name, 0) is None:
            assert each.name not in params
        elif "[" not in params[each.name].help:  # else None, which the settings' own default replaces
            assert params[each.name].default == others.get(each.name, each.default)


@pytest.mark.parametrize("name", LONG)
def test_the_short_help_fits_two_screens(name: str) -> None:
    short, every = (run(name, asked, environment={"COLUMNS": "100"}).stdout for asked in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 50 < len(every.splitlines())
    flags = [each.opts[0] for each in params_of(name).values() if each.opts[0].startswith("--")]
    assert [each for each in flags if each not in every] == []
    assert 10 < sum(each in short for each in flags) < len(flags) / 2 and "--help-all" in short


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = flag(3, "Size.", None)
    name: str | None = flag(None, "Name.", None, "--called")
    by_name: Any = group({"most": int | None})


def test_groups_become_objects_and_mappings() -> None:
    seen: list[Any] = []

    @command(settings=options_of(Settings, "seed", "top_p", seed=5))
    def take(*, inner: Inner, settings: dict[str, Any]) -> None:
        seen.append((inner, settings))

    app = typer.Typer()
    app.command()(take)
    assert CliRunner().invoke(app, ["--called", "x", "--most", "7"]).exit_code == 0
    assert seen == [(Inner(size=3, name="x", by_name={"most": 7}), {"seed": 5, "top_p": None})]
    assert CliRunner().invoke(app, ["--size", "4", "--top-p", "0.5"]).exit_code == 0
    assert seen[1] == (Inner(size=4, by_name={"most": None}), {"seed": 5, "top_p": 0.5})
