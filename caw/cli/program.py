"""The `caw` program: its commands and groups. A new command is one file and one entry here.

It is imported when it is called, so that `caw --help` is instant; other packages bring theirs too.
"""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

import caw
from caw.requirements import namesake

ENTRY_POINTS = "caw.commands"


@dataclass(frozen=True)
class LazyCommand:
    """The location of a command's function."""

    module: str
    function: str

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring, read from the source: importing the module takes seconds."""
        found = importlib.util.find_spec(self.module)
        assert found is not None and found.origin is not None
        tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
        command = next(e for e in tree.body if isinstance(e, ast.FunctionDef) and e.name == self.function)
        return " ".join((ast.get_docstring(command) or "").split("\n\n")[0].split())

    def load(self, name: str) -> Any:
        alone = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)
        function = getattr(importlib.import_module(self.module), self.function)
        alone.command(name, cls=getattr(function, "kind", TyperCommand))(function)
        return typer.main.get_command(alone)


class LazyGroup(TyperGroup):
    """Commands by name, each a placeholder with its summary until it is resolved."""

    lazy: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {**{name: TyperCommand(name) for name in self.lazy}, **self.commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is not None and found.help is None and cmd_name in self.lazy:
            found.help = self.lazy[cmd_name].summary
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in self.lazy:
            self.commands[args[0]] = self.lazy[args[0]].load(args[0])
        return super().resolve_command(ctx, args)


def lazy_group(commands: Mapping[str, LazyCommand]) -> type[LazyGroup]:
    """Return the group class of these commands, for `typer.Typer(cls=...)`."""
    return type("Commands", (LazyGroup,), {"lazy": commands})


@dataclass(frozen=True)
class CommandGroup:
    """Commands behind one word, such as `caw keys create`. help: of the group."""

    help: str
    commands: Mapping[str, LazyCommand]


def installed_groups() -> dict[str, CommandGroup]:
    """Return groups that other packages' entry points name ("" needs no word). One that fails is named and left out."""
    groups: dict[str, CommandGroup] = {}
    for point in entry_points(group=ENTRY_POINTS):
        try:
            groups |= point.load()
        except Exception as error:
            print(f"caw: the commands of {point.value} cannot be loaded ({error}); install it again", file=sys.stderr)
    return groups


COMMANDS = {
    "demo": LazyCommand("caw.cli.demo_command", "demo"),
    "generate": LazyCommand("caw.cli.generate_command", "generate"),
    "detect": LazyCommand("caw.cli.detect_command", "detect"),
    "serve": LazyCommand("caw.cli.serve_command", "serve"),
    "serve-detection": LazyCommand("caw.cli.detection_command", "serve_detection"),
    "benchmark": LazyCommand("caw.cli.benchmark_command", "benchmark"),
}
KEYS = {
    "create": LazyCommand("caw.cli.keys_commands", "create"),
    "rotate": LazyCommand("caw.cli.keys_commands", "rotate"),
    "revoke": LazyCommand("caw.cli.keys_commands", "revoke"),
    "list": LazyCommand("caw.cli.keys_commands", "list_keys"),
    "rules": LazyCommand("caw.cli.keys_commands", "rules"),
    "master-key": LazyCommand("caw.cli.keys_commands", "master_key"),
    "reseal": LazyCommand("caw.cli.keys_commands", "reseal"),
}
AUDITS = {
    "export": LazyCommand("caw.cli.audit_commands", "export"),
    "verify": LazyCommand("caw.cli.audit_commands", "verify"),
    "public-key": LazyCommand("caw.cli.audit_commands", "public_key"),
    "report": LazyCommand("caw.cli.audit_commands", "report"),
}
GROUPS = {
    "keys": CommandGroup("Manage a service's keys: who may use it, and which keys mark its texts.", KEYS),
    "audit": CommandGroup("Audit a service: export and verify its receipts, and measure its keys.", AUDITS),
}
# another package's commands come behind these, and replace none of them
GROUPS = {**GROUPS, **installed_groups(), **GROUPS}
COMMANDS = {**COMMANDS, **GROUPS.pop("", CommandGroup("", {})).commands, **COMMANDS}

app = typer.Typer(
    cls=lazy_group(COMMANDS),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks can print local variables, the key among them
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"caw {caw.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Watermark the output of language models, lightly where words matter, and detect it without the model.

    Exit codes: 0 success, 1 success but some input lines were bad, 2 bad usage, 130 interrupted. An error is one
    sentence on stderr; set CAW_TRACEBACK=1 for a traceback.

    Examples:

    - caw demo
    - read -rs CAW_KEY; export CAW_KEY
    - caw generate --model smollm2-135m --prompt "Why is the sky blue?" --chat
    - caw detect --tokenizer smollm2-135m --text "..."
    """
    if stranger := namesake():
        typer.echo(f"caw: {stranger}", err=True)


for _name, _group in GROUPS.items():
    app.add_typer(
        typer.Typer(cls=lazy_group(_group.commands), no_args_is_help=True, rich_markup_mode="markdown"),
        name=_name, help=_group.help,
    )  # fmt: skip
