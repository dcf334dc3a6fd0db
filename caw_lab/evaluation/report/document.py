"""The report of a run: Markdown with SVG figures, and one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from caw.io.figures import save_figure
from caw.io.files import write_text
from caw.requirements import require
from caw_lab.evaluation.report import plots, tables
from caw_lab.evaluation.report.data import ReportData
from caw_lab.evaluation.report.robustness import robustness
from caw_lab.evaluation.report.tables import Table

STYLE = """
:root { color-scheme: light dark; --ink: #1c1d1f; --soft: #63676e; --line: #d9dce1; --paper: #fff; --card: #f7f8fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ec; --soft: #9aa1ab; --line: #33373e; --paper: #131417;
  --card: #1b1d21; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.5rem 3rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.soft { color: var(--soft); font-size: .9rem; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 600; }
tbody tr:hover { background: var(--card); }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; display: block; }
code { overflow-wrap: anywhere; font-size: .85rem; }
"""
ROBUST_NOTE = "Lower is more robust. Whiskers: 95 % interval over questions."


@dataclass(frozen=True)
class Section:
    """A heading with tables, figures (a file name and a matplotlib figure each), their caption, and a list of lines."""

    title: str
    tables: tuple[Table, ...] = ()
    figures: tuple[tuple[str, Any], ...] = ()
    caption: str = ""
    lines: tuple[str, ...] = field(default=())

    @property
    def empty(self) -> bool:
        return not self.figures and not self.lines and not any(table.rows for table in self.tables)


def sections(data: ReportData) -> Iterator[Section]:
    """Return the report's sections, in the paper's order; some may be empty."""
    if data.missing:
        yield Section("What is missing", lines=tuple(data.missing))
    tasks = list(dict.fromkeys(s.task for s in data.settings()))
    for task in tasks:
        yield Section(f"Accuracy and detection: {task}", (tables.main_table(data, task),))
        caption = (
            "Each point is a policy at one strength; up and to the right is better. Bars: 95 % interval of the "
            "accuracy; dashed: unmarked texts."
        )
        yield Section(f"Trade-off: {task}", (), _drawn(f"pareto-{task}", plots.pareto(data, task)), caption)
    yield Section("What marks cost", (tables.cost_table(data),))
    yield Section("Detection in detail", (tables.detection_table(data),))
    yield Section("Accuracy at equal detection", (tables.equal_detection_table(data),))
    yield Section("Paired comparisons", (tables.comparison_table(data),))
    yield Section("What was measured", (tables.run_table(data),))
    yield Section("Length and repetition", (tables.style_table(data),))
    found = robustness(data)
    drawn = [f for task in tasks for f in _drawn(f"robustness-{task}", plots.robustness_plot(data, found, task))]
    yield Section("Robustness", (tables.robustness_table(data, found),), tuple(drawn), ROBUST_NOTE)
    drawn = [f for task in tasks for f in _drawn(f"perplexity-{task}", plots.perplexity_plot(data, task))]
    caption = (
        "Boxes: middle half and median, whiskers 5 % to 95 %. p: against unmarked texts, Mann-Whitney for perplexity, "
        "paired for accuracy."
    )
    yield Section("Perplexity", (tables.perplexity_table(data),), tuple(drawn), caption)
    yield Section("Latency", (tables.latency_table(data),), _drawn("latency", plots.latency_plot(data)))
    commands = dict.fromkeys(str(row["command"]) for row in data.rows if row.get("command"))
    yield Section("Commands", lines=tuple(commands))


def _drawn(name: str, figure: Any | None) -> tuple[tuple[str, Any], ...]:
    return () if figure is None else ((name, figure),)


def write_report(
    data: ReportData,
    output: str | Path,
    title: str = "Evaluation",
    wrote: Callable[[Path], None] = lambda path: None,
    *,
    page: bool = True,
) -> None:
    """Write report.md, figures/NAME.svg and, with `page`, index.html, which holds its figures; replaces what is there.

    output: the folder; made if it is not there. wrote: called with each path. Deterministic for one version of
    matplotlib; report.md for all versions. Raises ImportError without matplotlib, OSError if the folder cannot be
    written.
    """
    require("matplotlib", "the figures of a report")
    folder = Path(output)
    made = [section for section in sections(data) if not section.empty]
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for section in made:
        for name, figure in section.figures:
            path = folder / "figures" / f"{name}.svg"
            save_figure(figure, path)
            wrote(path)
    _write(folder / "report.md", markdown(title, made), wrote)
    if page:
        _write(folder / "index.html", _page(title, made), wrote)


def _write(path: Path, text: str, wrote: Callable[[Path], None]) -> None:
    write_text(path, text)
    wrote(path)


def markdown(title: str, made: list[Section]) -> str:
    """Return the text of report.md."""
    parts = [f"# {title}"]
    for section in made:
        parts.append(f"## {section.title}")
        code = "`" if section.title == "Commands" else ""
        parts += ["\n".join(f"- {code}{line}{code}" for line in section.lines)] if section.lines else []
        parts += [table.markdown().rstrip() for table in section.tables if table.rows]
        parts += [f"![{section.title}](figures/{name}.svg)" for name, _ in section.figures]
        parts += [section.caption] if section.caption and section.figures else []
    return "\n\n".join(parts) + "\n"


def _page(title: str, made: list[Section]) -> str:
    body = []
    for section in made:
        body.append(f"<section><h2>{escape(section.title)}</h2>")
        tag = "code" if section.title == "Commands" else "span"
        if section.lines:
            body.append("<ul>" + "".join(f"<li><{tag}>{escape(li)}</{tag}></li>" for li in section.lines) + "</ul>")
        body += [table.html() for table in section.tables if table.rows]
        for name, figure in section.figures:
            label = escape(f"{section.title}; the tables hold the numbers")
            drawing = plots.inline_svg(figure, name).replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
            body.append(f"<figure>{drawing}</figure>")
        if section.caption and section.figures:
            body.append(f'<p class="soft">{escape(section.caption)}</p>')
        body.append("</section>")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{chr(10).join(body)}
</body>
</html>
"""
