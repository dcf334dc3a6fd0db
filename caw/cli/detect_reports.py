"""What `caw detect` says of many texts together: false alarms of unmarked ones, the share found of marked ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from caw.cli.detect_output import Item, show_null_reports, show_power
from caw.cli.errors import complain
from caw.io.progress import Bar

if TYPE_CHECKING:
    from caw.detection import Detector


def report_null(detectors: Mapping[str, Detector], items: Sequence[Item], qq: Path | None, *, as_json: bool) -> None:
    """Print how often each detector finds a mark in unmarked texts; qq: file for the plot."""
    from caw.detection.null_rates import null_report, plot_qq

    with Bar(len(items) * len(detectors), "testing", "texts") as bar:
        reports = {name: null_report([i.content for i in items], d, done=bar.finish) for name, d in detectors.items()}
    if as_json:
        for name, report in reports.items():
            print(json.dumps({"name": name, **report.as_dict()}), flush=True)
    else:
        show_null_reports(reports)
    if qq is not None:
        plot_qq(list(reports.values()), qq)
        complain(f"wrote {qq}")


def report_power(detectors: Mapping[str, Detector], items: Sequence[Item], *, as_json: bool) -> None:
    """Print the share of marked texts that each detector finds, by length."""
    from caw.detection.power import LENGTHS, power_table

    with Bar(len(items) * len(detectors) * (1 + len(LENGTHS)), "testing", "tests") as bar:
        tables = [power_table([i.content for i in items], d, done=bar.finish) for d in detectors.values()]
    for detector, rows in zip(detectors.values(), tables, strict=True):
        if as_json:
            for row in rows:
                print(json.dumps({"key_id": detector.watermark.key_id, **row.as_dict()}), flush=True)
        else:
            show_power(rows)
