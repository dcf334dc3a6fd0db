"""`caw benchmark`: the cost of watermarking on this machine, in time and memory, relative to plain decoding."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.benchmark.sizes import SHAPES, SIZES
from caw.cli import options as opt
from caw.cli.errors import BAD_LINES, INTERRUPTED, complain, user_errors
from caw.cli.quantization_option import FLAG, prepare_place, quantization_option
from caw.defaults import THETA
from caw.io.files import check_paths, write_text
from caw.io.progress import Bar
from caw.models import DEMO_MODEL
from caw.requirements import require

if TYPE_CHECKING:
    from caw.benchmark.compare import Change

CASES, OUTPUT = "Cases", "Output"
MODES_HELP = (
    "WATERMARK[+POLICY[/BRANCHING]] of plain, kgw, unigram, exp, synthid with entropy or caw; plain/drawn, kgw/drawn, "
    "kgw+caw/drawn, exp/drawn, synthid/drawn (temperature .7, top-p .95); transformers, "
    "transformers-static, transformers-kgw, as-transformers-kgw; default; all."
)


def benchmark(
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
    memory: Annotated[
        bool | None,
        opt.panel(CASES, "Measure peak memory on a GPU.", "--memory/--no-memory"),
    ] = None,
    allow_differences: Annotated[
        bool, opt.panel(CASES, "Continue if modes that must give the same tokens differ.", "--allow-differences")
    ] = False,
    theta: Annotated[float, opt.panel(opt.POLICY, "Importance threshold: tokens above it stay unmarked.")] = THETA,
    beta: opt.Beta = None,
    evaluator: opt.EvaluatorName = None,
    json_file: Annotated[
        Path | None, opt.panel(OUTPUT, "Write all measurements as JSON.", "--json")
    ] = None,
    plot_file: Annotated[
        Path | None, opt.panel(OUTPUT, "Image file (SVG, PNG) for bars of time and memory.", "--plot")
    ] = None,
    compare_file: Annotated[
        Path | None,
        opt.panel(OUTPUT, "Saved run (JSON) to compare with; shows changes beyond noise.", "--compare"),
    ] = None,
    dtype: opt.DType = "auto",
    device: opt.Device = None,
    threads: opt.Threads = None,
    quantization: Annotated[
        str | None,
        quantization_option(CASES, remark=" With --shapes: fp8, int8 or int4, on a GPU."),
    ] = None,
) -> None:  # fmt: skip
    """Measure the cost of watermarking on this machine.

    All modes take turns in every round. Results are medians, with quartiles in brackets, relative to this library's own
    unwatermarked decoding in the same round. The first run of each mode is a warm-up. Modes that must give the same
    tokens (in float32) are checked first. Time per token excludes the prompt and graph capture.

    Sizes: quick takes less than two minutes on two cores; standard has more modes, tokens and rounds;
    full runs every mode with several batch sizes and prompt lengths, which takes hours. --json is written after each
    round. After an interruption, the rounds that all modes completed are shown and saved ("complete" is false).

    Exit code 1: slower than --compare by more than noise, or modes with different tokens.

    Examples:

    - caw benchmark --dtype float32 --threads 1
    - caw benchmark --size standard --json now.json
    - caw benchmark --quantization file --threads 1
    - caw benchmark --batch 1,8 --prompt 128,1024 --tokens 200 --json now.json --plot now.svg
    - caw benchmark --modes kgw+caw,exp+caw --no-memory
    - caw benchmark --shapes llama-2-7b --dtype float16 --batch 1,8,32 --prompt 1024 --compare before.json
    """
    with user_errors():
        cases = _names(modes) if modes is not None else None, _numbers("--batch", batch), _numbers("--prompt", prompt)
        if plot_file is not None:
            require("matplotlib", "--plot")
        from caw.benchmark import BenchmarkSettings, run
        from caw.benchmark.compare import compare, read
        from caw.benchmark.equality import DifferentTokensError

        settings = BenchmarkSettings(
            model, shapes, evaluator, theta=theta, beta=beta,
            dtype=dtype, device=_place(model, shapes, device, threads, dtype, quantization), threads=threads,
            allow_differences=allow_differences, weights=quantization,
            **_sized(size, {
                **dict(zip(("modes", "batches", "prompts"), cases, strict=True)), "tokens": tokens, "rounds": rounds,
                "memory": memory, "max_seconds": max_seconds,
            }),
        )  # fmt: skip
        check_paths(
            {"--model": model, "--evaluator": evaluator, "--compare": compare_file},
            {"--json": json_file, "--plot": plot_file},
        )
        before = read(compare_file) if compare_file is not None else None
        shown: list[dict[str, Any]] = []

        def finished(sofar: dict[str, Any]) -> None:
            """Show and save each case at once: a run may take an hour."""
            shown.append(last := sofar["rows"][-1])
            show_case(last["batch"], last["prompt"], sofar["rows"])
            _save(json_file, sofar)

        try:
            with Bar(None, "starting") as bar:
                found = run(settings, bar.note, finished, had_first_round, partial(_save, json_file))
        except DifferentTokensError as error:
            complain(str(error))
            raise typer.Exit(BAD_LINES) from None
        except KeyboardInterrupt:
            complain(f"interrupted{f'; results so far are saved in {json_file}' if shown and json_file else ''}")
            raise typer.Exit(INTERRUPTED) from None
        _finish(found, json_file, plot_file)
        worse = before is not None and show_changes(compare(before, found))
    if worse or _differ(found):
        raise typer.Exit(BAD_LINES)


def _place(
    model: str, shapes: str | None, device: str | None, threads: int | None, dtype: str, quantization: str | None
) -> str:
    """Return the device to measure on, one that supports these weights."""
    if shapes is None:
        return prepare_place(model, device, threads, dtype, quantization)
    place = opt.prepare_device(device, threads)
    if quantization is not None and not place.startswith("cuda"):
        raise ValueError(f"{FLAG} with --shapes requires a GPU, found {place}; use --model instead of --shapes")
    return place


def _differ(found: dict[str, Any]) -> bool:
    """Return whether modes that must agree gave different tokens."""
    return any(check["first"] for check in found["checks"] if found["arguments"]["dtype"] == "float32")


def had_first_round(case: str, mode: str, seconds: float) -> None:
    """Print a line as soon as there is something to report; the table follows after all rounds of all modes."""
    complain(f"{case}: {mode} {1e3 * seconds:.2f} ms/token in its first round")


def _finish(found: dict[str, Any], json_file: Path | None, plot_file: Path | None) -> None:
    """Print the notes under the tables, draw the picture, and say which files were written."""
    from caw.benchmark.plot import plot

    show_notes(found)
    if plot_file is not None:
        plot(found, plot_file)
    for file in filter(None, (json_file, plot_file)):
        complain(f"wrote {file}")


def _save(file: Path | None, found: dict[str, Any]) -> None:
    """Save after each round: a device crash ends the process without a word."""
    if file is not None:
        write_text(file, json.dumps(found, indent=1) + "\n")


def _sized(size: str, given: dict[str, Any]) -> dict[str, Any]:
    """Apply --size, except where other options override it."""
    if size not in SIZES:
        raise ValueError(f"--size must be one of {', '.join(SIZES)}, got {size!r}; choose one")
    return {**asdict(SIZES[size]), **{name: value for name, value in given.items() if value is not None}}


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
    for batch, prompt in dict.fromkeys((row["batch"], row["prompt"]) for row in found["rows"]):
        show_case(batch, prompt, found["rows"])
    show_notes(found)


def show_notes(found: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console()
    for line in notes(found):
        console.print(line, highlight=False)


def show_case(batch: int, prompt: int, rows: list[dict[str, Any]]) -> None:
    """Print the table of one case."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    title = f"batch {batch}, prompt of {prompt} tokens"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("mode", no_wrap=True)
    for name in ("ms/token", "of plain", "tokens/s", "first, ms", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    errors = {}
    for row in rows:
        if (row["batch"], row["prompt"]) != (batch, prompt):
            continue
        name = row["mode"]
        if "error" in row:
            errors[name] = row["error"]
        else:
            table.add_row(name, *_cells(row))
    if errors:
        table.caption = "\n".join(f"{name} does not work here: {reason}" for name, reason in errors.items())
        table.caption_justify = "left"
    Console().print(table)


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
    """Format a number in at most four characters below 100: a disturbed run must not widen the table beyond 80
    columns.
    """
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
    lines += [
        f"{row['mode']}, batch {row['batch']}: {row['tokens_per_pass']:.2f} tokens and "
        f"{row['rows_per_pass']:.1f} rows a forward, {row['acceptance']:.0%} of drafts right"
        for row in rows
        if "tokens_per_pass" in row
    ]
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


def show_changes(changes: list[Change]) -> bool:
    """Print changes beyond noise. Return whether anything got worse."""
    from rich.console import Console
    from rich.table import Table

    flagged = [change for change in changes if change.beyond_noise]
    console = Console()
    if not flagged:
        console.print(f"{len(changes)} figures, no change beyond noise", highlight=False)
        return False
    table = Table("changed beyond noise", "figure", "before", "now", "factor")
    for change in sorted(flagged, key=lambda c: -abs(c.factor - 1)):
        word = "worse" if change.worse else "better"
        table.add_row(
            change.row, change.figure, f"{change.before:.3f}", f"{change.after:.3f}", f"{change.factor:.2f} {word}"
        )
    console.print(table)
    return any(change.worse for change in flagged)
