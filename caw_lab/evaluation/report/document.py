"""The report of a run: Markdown with SVG figures."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caw.io.figures import save_figure
from caw.io.files import write_text
from caw.requirements import require
from caw_lab.evaluation.report import plots, tables
from caw_lab.evaluation.report.data import ReportData
from caw_lab.evaluation.report.robustness import robustness
from caw_lab.evaluation.report.tables import Table

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
    commands = dict.fromkeys(str(row["command"]) for row in data.rows if row.get("command"))
    yield Section("Commands", lines=tuple(commands))


def _drawn(name: str, figure: Any | None) -> tuple[tuple[str, Any], ...]:
    return () if figure is None else ((name, figure),)


def write_report(data: ReportData, output: str | Path, title: str = "Evaluation") -> None:
    """Write report.md and figures/NAME.svg into a folder, which is made if it is not there; replaces what is there.

    Deterministic for one version of matplotlib; report.md for all versions. Raises ImportError without matplotlib,
    OSError if the folder cannot be written.
    """
    require("matplotlib", "the figures of a report")
    folder = Path(output)
    made = [section for section in sections(data) if not section.empty]
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for name, figure in (each for section in made for each in section.figures):
        save_figure(figure, folder / "figures" / f"{name}.svg")
    write_text(folder / "report.md", markdown(title, made))


def markdown(title: str, made: list[Section]) -> str:
    parts = [f"# {title}"]
    for section in made:
        parts.append(f"## {section.title}")
        code = "`" if section.title == "Commands" else ""
        parts += ["\n".join(f"- {code}{line}{code}" for line in section.lines)] if section.lines else []
        parts += [table.markdown().rstrip() for table in section.tables if table.rows]
        parts += [f"![{section.title}](figures/{name}.svg)" for name, _ in section.figures]
        parts += [section.caption] if section.caption and section.figures else []
    return "\n\n".join(parts) + "\n"
