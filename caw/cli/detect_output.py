"""Output of `caw detect`: a sentence or a table for people, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caw.cli.detect_lines import Made
from caw.cli.errors import complain
from caw.io.jsonl import RowId
from caw.io.progress import Bar
from caw.io.show import format_p, is_p, visible

if TYPE_CHECKING:
    from rich.console import Console

    from caw.detection import DetectionResult
    from caw.detection.key_list import KeyListResult
    from caw.detection.null_rates import NullReport, Rate
    from caw.detection.power import PowerRow
    from caw.detection.regions import Region

    Result = DetectionResult | KeyListResult
    from caw.detection import Detector


@dataclass(frozen=True)
class Item:
    """A text (or its token ids) to test, with the prompt that it answers if a model reads it and the line has one.

    number: of its line; 0 for one of several files, whose name is its id. made: what its line says of how it was made,
    None if it does not. drawn: how a model should take it to be drawn, None = as all texts. told: more for its --json
    object.
    """

    number: int
    id: RowId
    content: str | list[int]
    prompt: str | None = None
    made: Made | None = None
    drawn: Mapping[str, Any] | None = None
    told: Mapping[str, Any] = field(default_factory=dict)

    def said(self, sentence: str, *, single: bool) -> str:
        """Prefix a sentence with the item's line or file, unless it is a single text."""
        return sentence if single else f"{f'line {self.number}' if self.number else self.id}: {sentence}"


def result_line(item: Item, result: Result) -> dict[str, Any]:
    from caw.detection.key_list import KeyListResult

    if isinstance(result, KeyListResult):
        results = {name: result_line(item, r) for name, r in result.results.items()}
        for line in results.values():
            del line["id"]
        return {
            "id": item.id, "is_watermarked": result.is_watermarked, "matches": list(result.matches),
            "p_values": result.p_values, "fpr": result.fpr, "message": result.message, "results": results, **item.told,
        }  # fmt: skip
    line = {"id": item.id, **asdict(result), **item.told}
    del line["error"], line["token_ids"], line["token_scores"]  # texts with an error are bad lines here
    if result.regions is None:
        del line["regions"], line["text_p_value"]
    if result.subkey is None:
        del line["subkey"], line["num_subkeys"]
    if result.family is None:
        del line["family"]
    return line


def show(results: Sequence[tuple[Item, Result]], *, single: bool) -> None:
    """Print results for people: sentences for a single text, a table for several."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from caw.detection.key_list import KeyListResult

    console = Console()
    if single:
        for item, result in results:
            _show_one(console, item, result)
        return
    if not results:
        return
    first = results[0][1]
    many = isinstance(first, KeyListResult)
    own = [list(r.results.values()) if isinstance(r, KeyListResult) else [r] for _, r in results]
    payloads = any(one.payload is not None for ones in own for one in ones)
    corrected = many or any(_is_corrected(one) for ones in own for one in ones)
    columns = ["id", "watermarked", f"{'corrected ' * corrected}p-value"]
    columns += ["watermark"] if many else [_z_score(own[0][0]), "tokens scored"]
    table = Table(*columns, *["payload (least certain bit)"] * payloads, "remark")
    for item, result in results:
        verdict = "[green]yes[/]" if result.is_watermarked else "no"
        cells = _cells_of_many(result) if isinstance(result, KeyListResult) else _cells(result)
        table.add_row(
            Text(visible(str(item.id))), verdict, *cells[: 2 if many else 3], *cells[-2 if payloads else -1 :]
        )
    console.print(table)
    found = sum(result.is_watermarked for _, result in results)
    rate = f"{found} of {len(results)} texts are watermarked at a false-positive rate of {first.fpr:g}"
    console.print(f"{rate} for each text", highlight=False)
    if any(one.mostly_repetition for ones in own for one in ones):
        console.print("mostly repetition: repeated text counts once, so there is little evidence")


def _is_corrected(result: DetectionResult) -> bool:
    """Return whether the p-value is that of several tests."""
    several = result.num_readings > 1 or result.num_subkeys > 1 or result.family is not None
    return several or result.regions is not None


def _cells(result: DetectionResult) -> list[str]:
    return [
        format_p(result.p_value), f"{result.z_score:.2f}", f"{result.num_scored} of {result.num_tokens}",
        _payload(result), _remark(result),
    ]  # fmt: skip


def _cells_of_many(result: KeyListResult) -> list[str]:
    """Return the p-value, and names, payloads and remarks of the watermarks that matched."""
    matched = [result.results[name] for name in result.matches]
    one = matched or list(result.results.values())[:1]
    return [
        format_p(min(result.p_values.values())), visible(", ".join(result.matches)),
        ", ".join(filter(None, map(_payload, matched))), "; ".join(filter(None, map(_remark, one))),
    ]  # fmt: skip


def _payload(result: DetectionResult) -> str:
    if result.payload is None or result.payload_confidence is None:
        return ""
    return f"{result.payload} ({100 * min(result.payload_confidence):.3g} %)"


def _remark(result: DetectionResult) -> str:
    """Return what else the reader of a row should know."""
    from caw.detection.message import listed

    said = []
    if not result.num_scored:
        said.append("empty" if not result.num_tokens else "too short to score")
    elif result.mostly_repetition:
        said.append("mostly repetition")
    elif result.is_undecided:
        said.append("too short to decide")
    if result.num_readings > 1:
        said.append(f"contains {listed(result.undone)}")
    if result.regions:
        said.append(f"marked: {', '.join(_tokens(region, result) for region in result.regions)}")
    elif result.text_p_value is not None and result.text_p_value <= result.fpr:
        said.append(f"whole text alone: {is_p(result.text_p_value)}")
    return ", ".join(said)


def _z_score(result: DetectionResult) -> str:
    """Return the label of the z-score: that of the whole text if regions contribute to the decision."""
    return "z-score" if result.regions is None else "z-score of the whole text"


def _tokens(region: Region, result: DetectionResult) -> str:
    if (region.start, region.end) == (0, result.num_tokens):
        return "all of it"
    return f"tokens {region.start} to {region.end}"


def _show_one(console: Console, item: Item, result: Result) -> None:
    from rich.table import Table
    from rich.text import Text

    from caw.detection import DetectionResult

    style = "bold green" if result.is_watermarked else "bold"
    console.print(result.message, style=style, highlight=False, markup=False)
    if isinstance(result, DetectionResult):
        console.print(
            f"{_z_score(result)} {result.z_score:.2f}, {result.watermark} key {result.key_id}", highlight=False
        )
        _show_findings(console, item, result)
        return
    table = Table("watermark", "key", "p-value", "corrected for all of them", "watermarked")
    for name, one in result.results.items():
        verdict = "[green]yes[/]" if name in result.matches else "no"
        table.add_row(Text(visible(name)), one.key_id, format_p(one.p_value), format_p(result.p_values[name]), verdict)
    console.print(table)
    for name in result.matches:
        _show_findings(console, item, result.results[name], f"{name}: ")


def _show_findings(console: Console, item: Item, result: DetectionResult, name: str = "") -> None:
    lines = []
    if result.payload is not None and result.payload_confidence is not None:
        least = 100 * min(result.payload_confidence)
        lines.append(f"payload {result.payload}, least certain bit {least:.3g} %")
    for region in result.regions or ():
        where = _tokens(region, result)
        if where != "all of it" and region.start_char is not None and isinstance(item.content, str):
            where += f" of {result.num_tokens}, characters {region.start_char} to {region.end_char}"
            where += f" of the text {result.reading}" * (result.num_readings > 1)
        several = f" ({is_p(region.p_value)})" if len(result.regions or ()) > 1 else ""
        lines.append(f"marked part: {where}{several}")
    for line in lines:
        console.print(visible(name) + line, highlight=False, markup=False)


def show_null_reports(reports: dict[str, NullReport]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for name, report in reports.items():
        named = f"{name}: " if name != report.watermark else ""
        title = f"{named}{report.watermark} key {report.key_id}, {report.texts} unmarked texts, {report.tokens} tokens"
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
            silent = f"texts without evidence (p = 1): {report.without_evidence}; rates over all texts: {every}"
            console.print(silent, highlight=False)
        console.print(f"uniform with evidence counted once: p = {report.uniform_p:.3g}", highlight=False)
    console.print(
        "rate: share of texts with a p-value at or below the level; above: more than chance explains. Evidence once "
        "in the corpus: a phrase that several texts share counts only in the first.",
        highlight=False,
    )


def _rate(rate: Rate) -> str:
    text = f"{rate.rate:.3g} ({rate.low:.3g} - {rate.high:.3g})"
    return text if rate.holds else f"[red]{text} above[/]"


def show_power(rows: Sequence[PowerRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("tokens", "false-positive rate", "expected", "measured (95 % interval)", "texts")
    for row in rows:
        measured = f"{row.measured:.3f} ({row.low:.3f} - {row.high:.3f})" if row.texts else "-"
        table.add_row(
            str(row.tokens), f"{row.fpr:g}", f"{row.expected:.3f}" if row.expected == row.expected else "-", measured,
            str(row.texts),
        )  # fmt: skip
    console = Console()
    console.print(table)
    console.print(
        "Share of texts detected when truncated to this many tokens; expected: for texts with the same mean score per "
        "token"
    )


def report_null(detectors: Mapping[str, Detector], items: Sequence[Item], qq: Path | None, *, as_json: bool) -> None:
    """Print how often each detector calls unmarked texts marked. qq: file for the plot."""
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
    """Print each detector's detection rate by text length."""
    from caw.detection.power import LENGTHS, power_table

    with Bar(len(items) * len(detectors) * (1 + len(LENGTHS)), "testing", "tests") as bar:
        tables = [power_table([i.content for i in items], d, done=bar.finish) for d in detectors.values()]
    for detector, rows in zip(detectors.values(), tables, strict=True):
        if as_json:
            for row in rows:
                print(json.dumps({"key_id": detector.watermark.key_id, **row.as_dict()}), flush=True)
        else:
            show_power(rows)
