"""What mkdocs runs while it builds the site: measured tables, reports and the command line, written into the pages.

A line of a page is replaced where it is one of these:

    <!-- table: NAME -->         a table of `result_tables`
    <!-- report: RUN -->         the report of a published run
    <!-- commands -->            every command with its options
    <!-- operators -->           every operator with its schema
    <!-- references: FOLDER -->  the references of operators

Figures beside the results are at `figures/`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from addresses import fetches
from command_line import command_line
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from operators import operators, references
from result_files import RESULTS
from result_tables import table
from run_tables import report

MARKER = re.compile(r"^<!-- (table|report|commands|operators|references):? ?(.*?) -->$", re.MULTILINE)
# as the sources link them, so that they are shown there as well
FIGURE = re.compile(r"\]\((?:\.\./)+benchmarks/results/([^)]+\.svg)\)")
MAKERS = {
    "table": table,
    "report": report,
    "commands": lambda name: command_line(),
    "operators": lambda name: operators(),
    "references": references,
}


def on_files(files: Any, config: Any) -> Any:
    """The figures of the results become files of the site."""
    for path in sorted(RESULTS.rglob("*.svg")):
        place = f"figures/{path.relative_to(RESULTS).as_posix()}"
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **rest: Any) -> str:
    """The page with its tables in it; PluginError names the page and the marker."""

    def made(found: re.Match[str]) -> str:
        try:
            return MAKERS[found[1]](found[2])
        except (KeyError, ValueError, OSError) as error:
            raise PluginError(f"{page.file.src_uri}: {found[0]} cannot be made: {error}") from error

    up = "../" * page.file.src_uri.count("/")
    return FIGURE.sub(rf"]({up}figures/\1)", MARKER.sub(made, markdown))


def on_post_build(config: Any) -> None:
    """PluginError where a page would fetch anything from elsewhere when it is opened."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        for fetched in fetches(path.read_text(encoding="utf-8")):
            raise PluginError(f"{path.name} would fetch {fetched} when opened; keep the site to its own files")
