"""`caw evaluate report`: the tables and figures of a run."""

from pathlib import Path
from typing import Annotated

import typer

from caw.cli.errors import complain, user_errors
from caw.io.files import check_paths
from caw.requirements import require


def evaluate_report_command(
    run_folder: Annotated[Path, typer.Argument(help="Output of `caw evaluate run`, or published results.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the report; created if missing.")],
    title: Annotated[str, typer.Option(help="Title of the report.")] = "Watermarks: accuracy and detection",
    anew: Annotated[
        bool,
        typer.Option("--anew", help="For published results: recompute them from answers and scores first."),
    ] = False,
) -> None:
    """Write the tables and figures of a run.

    The report shows accuracy and detection of each policy (the paper's Table 1), the trade-off between them, robustness
    to attacks, and perplexity with p-values. Files: report.md and figures/*.svg. The report of an unfinished run starts
    with what is missing.

    Examples:

    - caw evaluate report runs/first --output report
    - caw evaluate report published --output published --anew
    """
    with user_errors():
        require("matplotlib", "the figures of a report")
        if anew:
            require("scikit-learn", "the metrics of an evaluation")
        from caw_lab.evaluation.publishing import Published
        from caw_lab.evaluation.report.data import read_report_data
        from caw_lab.evaluation.report.document import write_report
        from caw_lab.evaluation.results import Results
        from caw_lab.evaluation.store import Store

        page = output / "report.md"
        written = {str(page): page} if page.exists() else {}
        check_paths({str(path): path for path in run_folder.glob("*") if path != page}, written)
        if anew:
            copy = Published(run_folder)
            Store(run_folder).write_results(Results(copy, copy.plans()).as_dict(), packed=True)
        data = read_report_data(run_folder)
        for line in data.missing:
            complain(f"missing: {line}")
        write_report(data, output, title)
        complain(f"wrote {page}")
