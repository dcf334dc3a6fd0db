"""What `caw detect` prints: a line or a table for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from caw.detection import DetectionResult
from caw.detection.candidates import CandidatesResult
from caw.detection.locate import Region
from caw.detection.null_report import NullReport, Rate
from caw.detection.power import PowerRow
from caw.jsonl import RowId
from caw.show import format_p, visible


@dataclass(frozen=True)
class Item:
    """One text (or its token ids) to test."""

    number: int
    id: RowId
    content: str | list[int]


Result = DetectionResult | CandidatesResult


def result_line(item: Item, result: Result, scores: bool, regions: Sequence[Region] | None = None) -> dict[str, Any]:
    """What --json prints of one text."""
    if isinstance(result, CandidatesResult):
        results = {name: result_line(item, r, scores) for name, r in result.results.items()}
        for line in results.values():
            del line["id"]
        return {
            "id": item.id,
            "is_watermarked": result.is_watermarked,
            "matches": list(result.matches),
            "p_values": result.p_values,
            "fpr": result.fpr,
            "message": result.message,
            "results": results,
        }
    line = {"id": item.id, **asdict(result)}
    if not scores:
        del line["token_ids"], line["token_scores"]
    if regions is not None:
        line["regions"] = [asdict(region) for region in regions]
    return line


def show(results: Sequence[tuple[Item, Result]], regions: dict[int, list[Region]], *, single: bool) -> None:
    """Results for people, on stdout; `regions` by the number of the item."""
    console = Console()
    if single:
        for item, result in results:
            _show_one(console, result)
            _show_regions(console, item, regions.get(item.number))
        return
    table = Table("id", "watermarked", "p-value", "z-score", "counted / tokens", "remark")
    for item, result in results:
        verdict = "[green]yes[/]" if result.is_watermarked else "no"
        if isinstance(result, CandidatesResult):
            least = min(result.p_values.values())
            table.add_row(Text(visible(str(item.id))), verdict, format_p(least), "", "", ", ".join(result.matches))
            continue
        remark = "" if result.num_scored else "too short to score"
        if item.number in regions:
            remark = ", ".join(f"tokens {r.start}-{r.end}" for r in regions[item.number])
        table.add_row(
            Text(visible(str(item.id))), verdict, format_p(result.p_value), f"{result.z_score:.2f}",
            f"{result.num_scored} / {result.num_tokens}", remark,
        )  # fmt: skip
    if results:
        console.print(table)
        found = sum(result.is_watermarked for _, result in results)
        console.print(
            f"{found} of {len(results)} texts are watermarked at a false-positive rate of {results[0][1].fpr:g}"
        )


def _show_one(console: Console, result: Result) -> None:
    style = "bold green" if result.is_watermarked else "bold"
    console.print(result.message, style=style, highlight=False, markup=False)
    if isinstance(result, CandidatesResult):
        table = Table("candidate", "key", "p-value", "corrected")
        for name, one in result.results.items():
            table.add_row(Text(visible(name)), one.key_id, format_p(one.p_value), format_p(result.p_values[name]))
        console.print(table)
        return
    console.print(
        f"p-value {format_p(result.p_value)}, z-score {result.z_score:.2f}, "
        f"{result.num_scored} of {result.num_tokens} tokens counted, {result.watermark} key {result.key_id}",
        highlight=False,
    )


def _show_regions(console: Console, item: Item, regions: list[Region] | None) -> None:
    if regions is None:
        return
    if not regions:
        console.print("no part of the text is marked by itself")
    for region in regions:
        where = f"tokens {region.start} to {region.end}"
        if region.start_char is not None and isinstance(item.content, str):
            where += f", characters {region.start_char} to {region.end_char}"
        console.print(f"marked: {where} (corrected p = {format_p(region.p_value)})", highlight=False)


def show_null_reports(reports: dict[str, NullReport]) -> None:
    """Rates of each key, on stdout."""
    console = Console()
    for name, report in reports.items():
        title = f"{name}: {report.watermark} key {report.key_id}, {report.texts} unmarked texts, {report.tokens} tokens"
        rate_of = "rate (95 % interval)"
        if report.without_evidence:
            rate_of += f" in {report.texts - report.without_evidence} texts with evidence"
        once_of = f"evidence once in the corpus ({report.once_texts} texts)"
        table = Table("level", rate_of, once_of, title=Text(visible(title)))
        for rate, once in zip(report.rates_with_evidence, report.once, strict=True):
            table.add_row(f"{rate.level:g}", _rate(rate), _rate(once))
        console.print(table)
        if report.without_evidence:
            every = ", ".join(f"{rate.rate:.3g} at {rate.level:g}" for rate in report.rates)
            silent = f"{report.without_evidence} texts hold no evidence (p = 1); rates among all texts: {every}"
            console.print(silent, highlight=False)
        console.print(f"uniform with evidence counted once: p = {report.uniform_p:.3g}", highlight=False)


def _rate(rate: Rate) -> str:
    text = f"{rate.rate:.3g} ({rate.low:.3g} - {rate.high:.3g})"
    return text if rate.kept else f"[red]{text} above[/]"


def show_power(rows: Sequence[PowerRow]) -> None:
    """Share of marked texts found, on stdout."""
    table = Table("tokens", "false-positive rate", "expected", "measured (95 % interval)", "texts")
    for row in rows:
        measured = f"{row.measured:.3f} ({row.low:.3f} - {row.high:.3f})" if row.texts else "-"
        table.add_row(
            str(row.tokens),
            f"{row.fpr:g}",
            f"{row.expected:.3f}" if row.expected == row.expected else "-",
            measured,
            str(row.texts),
        )
    Console().print(table)
