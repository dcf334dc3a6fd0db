"""The demo on a terminal."""

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from caw.demo.outputs import Demo, DemoText, Kind
from caw.demo.wording import INTRODUCTION, P_VALUE, facts, legend, settings
from caw.io.show import visible

BESIDE = {200: 4, 100: 2}  # terminal columns from which so many texts stand beside each other
STYLES: dict[Kind, str] = {
    "marked": "bold black on green",
    "kept": "bold black on bright_cyan",
    "protected": "bright_cyan",
    "green": "green",
    "plain": "",
}


def render(demo: Demo, console: Console) -> None:
    """Print the demo: side by side on wide terminals, otherwise one below the other."""
    console.print(Padding(Text(f"{INTRODUCTION}\n{P_VALUE}", style="dim"), (0, 0, 1, 0)))
    console.print(Text.assemble(("prompt  ", "bold"), visible(demo.prompt)))
    console.print(Text.assemble(("model   ", "bold"), settings(demo)))
    panels = [_panel(text) for text in demo.texts]
    beside = next((count for least, count in BESIDE.items() if console.width >= least), 1)
    if beside > 1:
        console.print(Columns(panels, equal=True, expand=True, width=console.width // beside - 1))
    else:
        console.print(*panels, sep="\n")
    console.print(_legend(demo))


def _panel(text: DemoText) -> Panel:
    body = Text()
    for token in text.tokens:
        body.append(visible(token.text), style=STYLES[token.kind])
    table = Table.grid(padding=(0, 2))
    for name, value in facts(text):
        table.add_row(Text(name, style="dim"), Text(value, style="bold" if name in ("p-value", "verdict") else ""))
    content: RenderableType = Group(body, Text(), table)
    return Panel(content, title=Text(f" {text.title}: {text.subtitle} "), title_align="left")


def _legend(demo: Demo) -> Table:
    table = Table.grid(padding=(0, 2))
    for kind, meaning in legend(demo):
        table.add_row(Text(f" {kind} ", style=STYLES[kind]), meaning)
    return table
