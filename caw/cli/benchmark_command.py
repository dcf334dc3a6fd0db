"""`caw benchmark`: the cost of watermarking on this machine, in time and memory, relative to plain decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.benchmark.sizes import SHAPES, SIZES
from caw.cli import options as opt
from caw.cli.command import command
from caw.cli.errors import BAD_LINES, INTERRUPTED, complain, user_errors
from caw.cli.place import Place
from caw.io.files import check_paths, write_text
from caw.io.progress import Bar
from caw.models import DEMO_MODEL

if TYPE_CHECKING:
    from rich.table import Table

CASES, OUTPUT = "Cases", "Output"
MODES_HELP = (
    "WATERMARK[+POLICY[/BRANCHING]] of plain, kgw, unigram, exp, synthid with entropy or caw; plain/drawn, kgw/drawn, "
    "kgw+caw/drawn, exp/drawn, synthid/drawn (temperature .7, top-p .95); transformers, "
    "transformers-static, transformers-kgw, as-transformers-kgw; default; all."
)


@command()
def benchmark(
    *,
    model: Annotated[str, typer.Option(help=f"{DEMO_MODEL}, a .gguf file, a folder or a hub id.")] = DEMO_MODEL,
    shapes: Annotated[
        str | None,
        typer.Option(help="Random weights of these shapes, instead of --model.", metavar="|".join(SHAPES)),
    ] = None,
    size: Annotated[
        str, opt.panel(CASES, "Amount to measure; the options below override it.", metavar="|".join(SIZES))
    ] = "quick",
    modes: Annotated[str | None, opt.panel(CASES, MODES_HELP, metavar="NAME,...")] = None,
    batch: Annotated[str | None, opt.panel(CASES, "Batch sizes.", metavar="N,...")] = None,
    prompt: Annotated[str | None, opt.panel(CASES, "Prompt lengths in tokens.", metavar="N,...")] = None,
    tokens: Annotated[int | None, opt.panel(CASES, "New tokens per sequence.")] = None,
    rounds: Annotated[int | None, opt.panel(CASES, "Rounds; each runs all modes in turn.")] = None,
    max_seconds: Annotated[
        float | None, opt.panel(CASES, "Time limit per case in seconds; no new round starts after it.")
    ] = None,
    json_file: Annotated[
        Path | None, opt.panel(OUTPUT, "Write all measurements as JSON.", "--json")
    ] = None,
    place: Place,
) -> None:  # fmt: skip
    """Measure the cost of watermarking on this machine.

    All modes take turns in every round. Results are medians, with quartiles in brackets, relative to this library's own
    unwatermarked decoding in the same round. The first run of each mode is a warm-up. Modes that must give the same
    tokens (in float32) are checked first. Time per token excludes the prompt and graph capture.

    Sizes: quick takes less than two minutes on two cores; standard has more modes, tokens and rounds;
    full runs every mode with several batch sizes and prompt lengths, which takes hours. --json is written after each
    round. After an interruption, the rounds that all modes completed are shown and saved ("complete" is false).

    Exit code 1: modes with different tokens.

    Examples:

    - caw benchmark --dtype float32 --threads 1
    - caw benchmark --size standard --json now.json
    - caw benchmark --quantization file --threads 1
    - caw benchmark --batch 1,8 --prompt 128,1024 --tokens 200 --json now.json
    - caw benchmark --shapes llama-2-7b --dtype float16 --batch 1,8,32 --prompt 1024 --modes kgw+caw,exp+caw
    """
    with user_errors():
        given = {
            "modes": None if modes is None else _names(modes), "batches": _numbers("--batch", batch),
            "prompts": _numbers("--prompt", prompt), "tokens": tokens, "rounds": rounds, "max_seconds": max_seconds,
        }  # fmt: skip
        from caw.benchmark.cases import BenchmarkSettings, run
        from caw.benchmark.equality import DifferentTokensError

        settings = BenchmarkSettings(
            model, shapes, dtype=place.dtype, device=place.prepare(model), threads=place.threads,
            weights=place.quantization, **_sized(size, given),
        )  # fmt: skip
        check_paths({"--model": model}, {"--json": json_file})
        latest: dict[str, Any] = {}

        def save(found: dict[str, Any]) -> None:
            """Save after each round: a device crash ends the process without a word."""
            latest.update(found)
            if json_file is not None:
                write_text(json_file, json.dumps(found, indent=1) + "\n")

        try:
            with Bar(None, "starting") as bar:
                run(settings, bar.note, save)
        except DifferentTokensError as error:
            complain(str(error))
            raise typer.Exit(BAD_LINES) from None
        except KeyboardInterrupt:
            if latest:
                show(latest)
            complain(f"interrupted{f'; results so far are saved in {json_file}' if latest and json_file else ''}")
            raise typer.Exit(INTERRUPTED) from None
        show(latest)
        if json_file is not None:
            complain(f"wrote {json_file}")


def _sized(size: str, given: dict[str, Any]) -> dict[str, Any]:
    if size not in SIZES:
        raise ValueError(f"--size must be one of {', '.join(SIZES)}, got {size!r}; choose one")
    return {**SIZES[size], **{name: value for name, value in given.items() if value is not None}}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(option: str, text: str | None) -> Any:
    """Parse the numbers of an option; None if it is not given."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in _names(text))
    except ValueError:
        raise ValueError(f"{option} must be integers separated by commas, got {text!r}; write e.g. 1,8") from None


def show(found: dict[str, Any]) -> None:
    """Print a table for each case, then the notes."""
    from rich.console import Console

    console = Console()
    for batch, prompt in dict.fromkeys((row["batch"], row["prompt"]) for row in found["rows"]):
        rows = [row for row in found["rows"] if (row["batch"], row["prompt"]) == (batch, prompt)]
        console.print(_table(f"batch {batch}, prompt of {prompt} tokens", rows))
    for line in notes(found):
        console.print(line, highlight=False)


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption_justify="left")
    table.add_column("mode", no_wrap=True)
    for name in ("ms/token", "of plain", "tokens/s", "first, ms", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if "error" not in row:
            table.add_row(row["mode"], *_cells(row))
    errors = [f"{row['mode']} does not work here: {row['error']}" for row in rows if "error" in row]
    table.caption = "\n".join(errors) or None
    return table


def _cells(row: dict[str, Any]) -> list[str]:
    ratio = row["ratio"]
    return [
        f"{row['ms_per_token']['median']:.2f}",
        f"{_short(ratio['median'])} ({_short(ratio['low'])}-{_short(ratio['high'])})",
        f"{row['tokens_per_second']:.1f}",
        f"{row['first_token_ms']['median']:.0f} ({_short(row['first_ratio']['median'])})",
        f"{row['peak_ratio']:.3f}" if "peak_ratio" in row else "",
    ]


def _short(ratio: float) -> str:
    """Format in at most four characters below 100: a disturbed run must not widen the table beyond 80 columns."""
    return f"{ratio:.2f}" if 0 <= ratio < 9.995 else f"{ratio:.1f}"  # negative: noise between two short runs


def notes(found: dict[str, Any]) -> list[str]:
    """Return notes: the setup, what was not counted, and where modes differ."""
    from caw.benchmark.modes import PLAIN

    arguments, machine, rows = found["arguments"], found["machine"], found["rows"]
    rounds = max((row["ratio"]["n"] for row in rows if "ratio" in row), default=0)
    kind = arguments.get("weights") or arguments["dtype"]
    lines = [
        f"{arguments['shapes'] or arguments['model']}, {kind}, {arguments['tokens']} new tokens, "
        f"{rounds} rounds, {machine.get('gpu') or machine['cpu']}, {machine['threads']} threads, "
        f"{found['clock']}; brackets: quartiles, and of plain"
    ]
    if machine.get("cuda_kernels", "built") != "built":
        lines.append(f"without part of the kernels: {machine['cuda_kernels']}")
    plain = [f"{row['peak_bytes'] / 2**20:.0f} MiB" for row in rows if row["mode"] == PLAIN and "peak_bytes" in row]
    if plain:
        lines.append(f"memory: peak over plain's, which is {', '.join(plain)}")
    preparation = max((row.get("preparation_s", 0.0) for row in rows), default=0.0)
    warm_up = max((row.get("warm_up_s", 0.0) for row in rows), default=0.0)
    lines.append(f"excluded: warm-up runs, up to {warm_up:.1f} s; graph capture, up to {preparation:.2f} s per run")
    for check in found["checks"]:
        if check["first"]:
            lines.append(
                f"{check['got']} and {check['expected']}, batch {check['batch']}, prompt {check['prompt']}: "
                f"{check['equal']} of {check['of']} sequences are equal, first difference at {check['first']}"
            )
    return lines
