"""`caw audit report --html`: the report as one self-contained page without scripts."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from caw.detection.html_report import STYLE
from caw.detection.null_rates import Rate
from caw.detection.power import PowerRow
from caw.io.files import write_text
from caw.io.pages import content_policy, template
from caw.registry.report import Report

OWN_STYLE = """
h1 + p { margin-top: 0; } body > h2 { margin-top: 1.6rem; } code { overflow-wrap: anywhere; font-size: .88em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: .6rem 0; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; } article p { margin: .3rem 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: 1.1rem 0 .4rem; }
caption { text-align: left; font-weight: 650; padding-bottom: .2rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1.4rem .3rem 0; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; white-space: nowrap; font-weight: 400; } thead th { color: var(--soft); }
@media (max-width: 34rem) { body { padding: 1.2rem 1rem 2rem; } dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .5rem; } th, td { padding-right: .9rem; } }
"""
WHOLE_STYLE = STYLE + OWN_STYLE
WIDE = 3  # times the level: an interval that reaches further does not show that a promise is kept
EDITS = {"": "as they left", "word-d:0.1": "10 % of the words deleted", "word-d:0.3": "30 % of the words deleted"}


def write_page(path: str | Path, report: Report) -> None:
    """Write the page; names and reasons are escaped. OSError if it cannot be written."""
    write_text(path, page(report))


def page(report: Report) -> str:
    made = template(
        "caw.registry", "report.html", percent=percent, share=share, kept=kept, moment=moment, counted=counted
    )
    return made.render(report=report, style=WHOLE_STYLE, policy=content_policy(WHOLE_STYLE), edits=EDITS)


def percent(value: float) -> str:
    """Format a share as per cent with significant digits."""
    return f"{100 * value:.3g} %"


def share(row: PowerRow) -> str:
    return f"{round(row.measured * row.texts)} of {row.texts}" if row.texts else "none so long"


def kept(rate: Rate) -> str:
    """Say whether a key raises no more alarms than promised, as far as this many texts can show."""
    if not rate.holds:
        return "no, more"
    return "yes" if rate.high <= WIDE * rate.level else "too few texts to tell"


def moment(text: str) -> str:
    at = datetime.fromisoformat(text)
    return f"{at.day} {at:%B %Y, %H:%M} UTC"


def counted(receipts: Mapping[str, int]) -> str:
    """Describe the receipts of a key in a sentence."""
    many = receipts["begun"]
    ends = [f"{receipts[name]} {name}" for name in ("complete", "cancelled", "failed", "open") if receipts[name]]
    tested = receipts["detected"] + receipts["undetected"]
    said = f"{receipts['detected']} of {tested} tested were detected" if tested else "none was tested"
    return f"{many} text{'s' * (many != 1)} served under it ({', '.join(ends)}); {said}."
