"""`caw detect`: is a text marked with this key? Loads a tokenizer, never a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from caw.cli import options as opt
from caw.cli.errors import BAD_LINES, complain, user_errors
from caw.cli.generate_command import open_lines
from caw.detection import DetectionResult, Detector
from caw.jsonl import Row, RowId, read_rows, text_field
from caw.models import DEMO_MODEL, load_tokenizer
from caw.show import format_p, visible

CHUNK = 256  # texts handed to the detector at once


@dataclass(frozen=True)
class Item:
    """One text (or its token ids) to test."""

    number: int
    id: RowId
    content: str | list[int]


def detect(
    source: Annotated[str | None, typer.Argument(metavar="FILE", help="A text file; - is stdin.")] = None,
    text: Annotated[str | None, typer.Option(help="The text itself.")] = None,
    input: Annotated[
        str | None, typer.Option("--input", "-i", help='JSONL, a text a line: {"text": ..., "id": ...}; - is stdin.')
    ] = None,
    field: Annotated[str, typer.Option(help="Field of --input that holds the text, or a list of token ids.")] = "text",
    tokenizer: Annotated[
        str | None,
        typer.Option(help=f"Of the model that wrote the text: {DEMO_MODEL}, a .gguf file, a folder or a hub id."),
    ] = None,
    watermark: opt.MarkName = "kgw",
    key: opt.Key = None,
    gamma: opt.Gamma = None,
    seeding: opt.Seeding = None,
    context_width: opt.ContextWidth = None,
    fpr: Annotated[float, typer.Option(help="Share of unmarked texts that may be called watermarked.")] = 1e-3,
    mode: Annotated[
        str,
        typer.Option(help="Count evidence once, or as the other system of the format does.", metavar="exact|compat"),
    ] = "exact",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a text on stdout.")] = False,
    scores: Annotated[bool, typer.Option("--scores", help="Add each token's id and score to the JSON.")] = False,
) -> None:
    """Test texts for a watermark, without the model and without the prompt.

    Give the key, watermark and parameters that the text was generated with. The p-value is the probability that a text
    without this watermark scores as high. The exit code says whether the test ran, not what it found: 0 it ran, 1 some
    lines of --input were bad, 2 bad usage.

    Examples:

    - export CAW_KEY=...
    - caw detect --tokenizer smollm2-135m --text "..."
    - caw detect --tokenizer smollm2-135m essay.txt --fpr 1e-5
    - caw detect --tokenizer smollm2-135m --input out.jsonl --json > results.jsonl
    - caw detect --input out.jsonl --field tokens
    """
    with user_errors():
        _require_known(watermark)
        mark = opt.build_watermark(watermark, key, {"gamma": gamma, "seeding": seeding, "context-width": context_width})
        assert mark is not None
        Detector(None, mark, fpr, mode)  # type: ignore[arg-type]  # checks its arguments before anything is loaded
        if scores and not as_json:
            raise ValueError("--scores belongs to --json, which is missing; add --json")
        items, bad = read_items(source, text, input, field)
        loaded = None
        if any(isinstance(item.content, str) for item in items):
            if tokenizer is None:
                raise ValueError("text needs the --tokenizer of the model that wrote it, got none; name the model")
            loaded = load_tokenizer(tokenizer)
        detector = Detector(loaded, mark, fpr, mode)  # type: ignore[arg-type]
        results = []
        for item, result in run_detection(detector, items):
            if isinstance(result, str):
                bad += 1
                complain(f"line {item.number}: {result}")
            elif as_json:
                print(json.dumps(result_line(item, result, scores)), flush=True)
            else:
                results.append((item, result))
        if not as_json:
            show(results, single=input is None)
    if bad:
        raise typer.Exit(BAD_LINES)


def _require_known(watermark: str) -> None:
    if watermark not in opt.WATERMARKS:
        raise ValueError(
            f"watermark must be one of {', '.join(opt.WATERMARKS)}, got {watermark!r}; name the one to look for"
        )


def read_items(source: str | None, text: str | None, lines: str | None, field: str) -> tuple[list[Item], int]:
    """Items from exactly one of FILE, --text and --input, and how many lines were bad (each reported)."""
    given = [name for name, value in (("FILE", source), ("--text", text), ("--input", lines)) if value is not None]
    if len(given) != 1:
        raise ValueError(f"expected one of FILE, --text and --input, got {' and '.join(given) or 'none'}; give one")
    if text is not None:
        return [Item(1, 1, text)], 0
    if source is not None:
        return [Item(1, 1, _read_text(source))], 0
    assert lines is not None
    items, bad = [], 0
    with open_lines(lines) as stream:
        for row in read_rows(stream):
            try:
                if not isinstance(row, Row):
                    raise ValueError(row.message)
                value = row.value.get(field)
                content = value if isinstance(value, list) else text_field(row.value, field)
                items.append(Item(row.number, row.id, content))
            except ValueError as error:
                bad += 1
                complain(f"{lines}, line {row.number}: {error}")
    return items, bad


def _read_text(source: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{source} must be UTF-8 text, it is not; convert it") from None


def run_detection(detector: Detector, items: Sequence[Item]) -> Iterator[tuple[Item, DetectionResult | str]]:
    """Result of each item, or one sentence why it has none; texts first, then ids."""
    for kind in (str, list):
        chosen = [item for item in items if isinstance(item.content, kind)]
        for start in range(0, len(chosen), CHUNK):
            yield from _detect_chunk(detector, chosen[start : start + CHUNK])


def _detect_chunk(detector: Detector, items: Sequence[Item]) -> Iterator[tuple[Item, DetectionResult | str]]:
    """One call for all; one by one only if something among them is refused."""
    try:
        results = detector([item.content for item in items])
    except (TypeError, ValueError) as error:
        if len(items) == 1:
            yield items[0], str(error)
            return
        for item in items:
            yield from _detect_chunk(detector, [item])
        return
    assert isinstance(results, list)
    yield from zip(items, results, strict=True)


def result_line(item: Item, result: DetectionResult, scores: bool) -> dict[str, Any]:
    """What --json prints of one text."""
    line = {"id": item.id, **asdict(result)}
    if not scores:
        del line["token_ids"], line["token_scores"]
    return line


def show(results: Sequence[tuple[Item, DetectionResult]], *, single: bool) -> None:
    """Results for people, on stdout."""
    console = Console()
    if single:
        for _, result in results:
            style = "bold green" if result.is_watermarked else "bold"
            console.print(result.message, style=style, highlight=False, markup=False)
            console.print(
                f"p-value {format_p(result.p_value)}, z-score {result.z_score:.2f}, "
                f"{result.num_scored} of {result.num_tokens} tokens counted, "
                f"{result.watermark} key {result.key_id}",
                highlight=False,
            )  # fmt: skip
        return
    table = Table("id", "watermarked", "p-value", "z-score", "counted / tokens", "remark")
    for item, result in results:
        verdict = "[green]yes[/]" if result.is_watermarked else "no"
        table.add_row(
            Text(visible(str(item.id))), verdict, format_p(result.p_value), f"{result.z_score:.2f}",
            f"{result.num_scored} / {result.num_tokens}", "" if result.num_scored else "too short to score",
        )  # fmt: skip
    if results:
        console.print(table)
        found = sum(result.is_watermarked for _, result in results)
        console.print(
            f"{found} of {len(results)} texts are watermarked at a false-positive rate of {results[0][1].fpr:g}"
        )
