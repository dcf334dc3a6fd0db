"""`caw audit report --html`: the report as one page, without scripts and without anything from elsewhere."""

from __future__ import annotations

from pathlib import Path

from caw.detection.html_report import STYLE
from caw.detection.power import PowerRow
from caw.io.files import write_text
from caw.io.pages import content_policy, template
from caw.registry.report import Report

EDITS = {"": "as they left", "word-d:0.1": "a tenth of the words deleted", "word-d:0.3": "three tenths deleted"}


def write_page(path: str | Path, report: Report) -> None:
    """Write the page; whatever names and reasons hold is shown as text. Raises OSError where it cannot be written."""
    write_text(path, page(report))


def page(report: Report) -> str:
    """The page, HTML."""
    made = template("caw.registry", "report.html", percent=percent, share=share)
    return made.render(report=report, style=STYLE, policy=content_policy(STYLE), edits=EDITS)


def percent(value: float) -> str:
    """A share as per cent, with as many digits as say something."""
    return f"{100 * value:.3g} %"


def share(row: PowerRow) -> str:
    """What was found at one length; nothing where no text is that long."""
    if not row.texts:
        return "no text is that long"
    return f"{percent(row.measured)} of {row.texts} ({percent(row.low)} to {percent(row.high)})"
