"""The options of a command: groups of them reach it as objects or mappings, and `--help` shows the common ones."""

import copy
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields, is_dataclass
from typing import Annotated, Any, ClassVar, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from caw.flags import FLAG

GROUP, EVERY = "group", "caw.cli.command.every"
PARAGRAPHS, EXAMPLES = 2, 3  # of a command's description in its short help


def options_of(kind: type, *names: str, **defaults: Any) -> dict[str, Any]:
    """Return a dataclass's options by field, `names` or all: (annotation, default), or a group of further ones."""
    hints, found = get_type_hints(kind, include_extras=True), dict[str, Any]()
    for each in fields(kind):
        if names and each.name not in names:
            continue
        hint, default = hints[each.name], defaults.get(each.name, each.default)
        if FLAG in each.metadata:
            text, panel, flags, given, more = each.metadata[FLAG]
            given = given or hint
            if each.default is None or text.endswith("]."):
                given, default = given | None, defaults.get(each.name)
            flags = flags or (f"--{each.name.replace('_', '-')}",)
            hint = Annotated[given, typer.Option(*flags, help=text, rich_help_panel=panel, **more)]
            found[each.name] = hint, default
        elif get_origin(hint) is Annotated:
            found[each.name] = hint, default
        elif GROUP in each.metadata:
            found[each.name] = each.metadata[GROUP]
    return found


def group(options: Mapping[str, Any]) -> Any:
    """Return the field of a dataclass that holds the values of these options by name."""
    return field(metadata={GROUP: options})


def command(common: str = "", **groups: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator of a command. A parameter of a dataclass's type gets an object of it, made of its options; one
    that `groups` names gets the values of its options, by name.

    groups: each the options of a dataclass, or annotations by name, in a tuple with a default other than None.
    common: flags, without their dashes, that `--help` shows; "" = all, without `--help-all`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        parts: dict[str, Any] = {}
        for each in signature.parameters.values():
            part = groups.get(each.name, each.annotation)
            whole = isinstance(part, Mapping) or is_dataclass(part)
            parts[each.name] = part if whole else (each.annotation, each.default)
        parameters = [*_parameters("", {**parts, **({"help_all": HELP_ALL} if common else {})})]

        def call(**given: Any) -> None:
            given.pop("help_all", None)
            function(**_taken("", parts, given))

        functools.update_wrapper(call, function, updated=())
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        del call.__wrapped__  # type: ignore[attr-defined]
        if common:
            kind = type("Command", (Command,), {"common": {*common.split(), "help-all"}})
            call.kind = kind  # type: ignore[attr-defined]
        return call

    return decorate


def _parameters(name: str, part: Any) -> Iterator[inspect.Parameter]:
    """Return the parameters of an option, or of all in a group."""
    if is_dataclass(part) or isinstance(part, Mapping):
        for each, inner in (options_of(part) if isinstance(part, type) else part).items():  # type: ignore[union-attr]
            yield from _parameters(each, inner)
        return
    annotation, default = part if isinstance(part, tuple) else (part, None)
    yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _taken(name: str, part: Any, given: dict[str, Any]) -> Any:
    """Take from `given` what a parameter of the command gets."""
    if isinstance(part, type) and is_dataclass(part):
        return part(**_taken(name, options_of(part), given))
    if isinstance(part, Mapping):
        return {each: _taken(each, inner, given) for each, inner in part.items()}
    return given.pop(name)


class Command(TyperCommand):
    """A command whose `--help` shows what it does, some examples and its common options."""

    common: ClassVar[set[str]] = set()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; all of it for `--help-all`."""
        shown = copy.copy(self)
        if not ctx.meta.get(EVERY):
            shown.params = [_in_short(each) for each in self.params if each.opts[0].lstrip("-") in self.common]
            about, _, examples = (self.help or "").partition("Examples:\n")
            lines = [line for line in examples.splitlines() if line.startswith("- ")][:EXAMPLES]
            shown.help = "\n\n".join([*about.strip().split("\n\n")[:PARAGRAPHS], "Examples:", "\n".join(lines)])
        TyperCommand.format_help(shown, ctx, formatter)


def _in_short(option: Any) -> Any:
    """Return an option for the one table of the short help: its first sentence, with what would need rows or width."""
    brief, choices = copy.copy(option), option.metavar if "|" in (option.metavar or "") else None
    notes = [option.envvar, *([option.default] if option.default and not option.is_flag else [])]
    brief.show_default = brief.show_envvar = False
    brief.rich_help_panel, brief.secondary_opts, brief.metavar = None, [], None if choices else option.metavar
    brief.help = re.split(r"(?<!\.)\. (?=[A-Z])", option.help)[0].rstrip(".")
    brief.help += "".join(f" [{note}]" for note in notes if note) + (
        f": {', '.join(choices.split('|'))}." if choices else "."
    )
    return brief


def _show_every(context: typer.Context, asked: bool) -> None:
    if asked:
        context.meta[EVERY] = True
        typer.echo(context.get_help(), color=context.color)
        raise typer.Exit


HELP_ALL = (
    Annotated[
        bool, typer.Option("--help-all", is_eager=True, callback=_show_every, help="Show every option and exit.")
    ],
    False,
)
