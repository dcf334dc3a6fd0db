"""`caw tune`: theta and beta of the capacity policy for your own prompts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caw.cli import options as opt
from caw.cli.errors import BAD_LINES, complain, user_errors
from caw.cli.generate_jobs import read_jobs
from caw.cli.quantised_option import Quantised, prepare_place
from caw.io.files import check_paths, write_text
from caw.io.progress import doing
from caw.models import load_model
from caw.requirements import require

if TYPE_CHECKING:
    from caw.fitting.tuning import Point, Tuned

TARGET, OUTPUT = "Target", "Output"
LEGEND = {
    "theta": "tokens that the evaluator calls more important than this stay unmarked (--theta)",
    "beta": "how strongly a token of no importance is marked, in the watermark's own strength (--beta)",
    "protected": "share of the {tokens} tokens of the unmarked texts that stay unmarked",
    "power": "share of marked texts of {length} tokens expected to be found where {fpr:g} of unmarked ones are, too",
    "found": "share of the {texts} texts written with this setting that were found",
    "mean score": "what a token adds to the test on average: of kgw and unigram the share of green tokens",
    "changed": "share of tokens that the mark chose and the model alone would not have",
}
SAID_SETTINGS = ("max_new_tokens", "do_sample", "temperature", "seed")
MEASURED = ("power", "found", "mean score", "changed")  # blank where no text was written with a setting


def tune_command(
    model: Annotated[str, typer.Option(help="smollm2-135m, a .gguf file, a folder or a hub id.")],
    input: Annotated[
        str | None, typer.Option("--input", "-i", help='JSONL, a prompt a line: {"prompt": ...}; - is stdin.')
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="A single prompt; several give better estimates.")] = None,
    field: Annotated[str, typer.Option(help="Field of --input that holds the prompt.")] = "prompt",
    max_prompts: Annotated[int, typer.Option(help="Use at most this many, from the start.", min=1)] = 16,
    protect: Annotated[
        float | None, opt.panel(TARGET, "Share of tokens that should stay unmarked.", metavar="SHARE")
    ] = None,
    power: Annotated[
        float | None, opt.panel(TARGET, "Share of marked texts that should be found.", metavar="SHARE")
    ] = None,
    fpr: Annotated[float, opt.panel(TARGET, "Share of unmarked texts that may be called watermarked.")] = 1e-3,
    tokens: Annotated[
        int | None, opt.panel(TARGET, "Text length that --power refers to [--max-new-tokens].", min=1)
    ] = None,
    beta: Annotated[
        float | None,
        opt.panel(
            TARGET, "Strength for tokens of no importance [as for generate]; chosen for you if both targets are given."
        ),
    ] = None,
    watermark: opt.MarkName = "kgw",
    key: opt.Key = None,
    gamma: opt.Gamma = None,
    delta: opt.Delta = None,
    seeding: opt.Seeding = None,
    context_width: opt.ContextWidth = None,
    top_k_exp: opt.TopKExp = None,
    strength_exp: opt.StrengthExp = None,
    evaluator: opt.EvaluatorName = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of a text.", rich_help_panel=opt.DECODING)] = 200,
    chat: Annotated[
        bool, typer.Option("--chat", help="Wrap prompts in the model's chat template.", rich_help_panel=opt.DECODING)
    ] = False,
    sample: Annotated[
        bool, typer.Option("--sample", help="Sample instead of decoding greedily.", rich_help_panel=opt.DECODING)
    ] = False,
    temperature: Annotated[float, typer.Option(rich_help_panel=opt.DECODING)] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.", rich_help_panel=opt.DECODING)] = 0,
    json_file: Annotated[Path | None, opt.panel(OUTPUT, "Write everything that was found as JSON.", "--json")] = None,
    plot_file: Annotated[Path | None, opt.panel(OUTPUT, "Draw the curve to an SVG or image file.", "--plot")] = None,
    dtype: opt.DType = "auto",
    quantised: Quantised = None,
    device: opt.Device = None,
    threads: opt.Threads = None,
) -> None:
    """Choose theta (and beta) for `caw generate --policy capacity` on your own prompts.

    --protect SHARE: the theta that leaves this share of tokens unmarked; one unwatermarked pass, no key needed.
    --power SHARE: the most protection whose mark is still found in this share of texts, at --fpr. With both, theta
    comes from --protect and the least beta that reaches --power is chosen; beta multiplies the watermark's full
    strength (delta of kgw and unigram). Power takes up to five runs over the prompts; exit code 1 if no setting
    reaches it.

    Examples:

    - caw tune --model smollm2-135m --input prompts.jsonl --chat --protect 0.6
    - read -rs CAW_KEY; export CAW_KEY
    - caw tune --model smollm2-135m --input prompts.jsonl --chat --power 0.95 --fpr 1e-3 --plot curve.svg
    - caw tune --model smollm2-135m --input prompts.jsonl --protect 0.6 --power 0.95 --json tuned.json
    """
    with user_errors():
        if plot_file is not None:
            require("matplotlib", "--plot")
        from caw.fitting.tuning import Tuner, encode, plot, tune
        from caw.policies import CapacityPolicy
        from caw.settings import Settings

        if protect is not None and power is not None and beta is not None:
            raise ValueError("--protect and --power together choose beta, got --beta as well; leave one out")
        check_paths(
            {"--input": input, "--model": model, "--evaluator": evaluator}, {"--json": json_file, "--plot": plot_file}
        )
        mark = None
        if power is not None:
            mark = opt.build_watermark(
                watermark, key,
                {"gamma": gamma, "delta": delta, "seeding": seeding, "context-width": context_width,
                 "top-k-exp": top_k_exp, "strength-exp": strength_exp},
            )  # fmt: skip
        policy = opt.build_policy("capacity", {"evaluator": evaluator, "beta": beta}, model)
        assert isinstance(policy, CapacityPolicy)
        settings = Settings(max_new_tokens, do_sample=sample, temperature=temperature, seed=seed)  # before loading
        jobs, bad = read_jobs(prompt, input, field)
        if not jobs:
            raise ValueError("expected at least one prompt, got none; give --input or --prompt")
        on = prepare_place(model, device, threads, dtype, quantised)
        with doing(f"loading {model}"):
            network, tokenizer = load_model(model, device=on, dtype=dtype, weights=quantised)
        ids = encode(network, tokenizer, [job.prompt for job in jobs[:max_prompts]], chat=chat)
        tuner = Tuner(network, tokenizer, ids, policy.network, settings, mark, fpr, tokens or max_new_tokens, tell)
        tuned = tune(tuner, share=protect, power=power, beta=policy.beta)
        _show(tuned, fpr, tuner.tokens)
        if json_file:
            about = {
                "model": model, "watermark": opt.describe(mark), "fpr": fpr, "length": tuner.tokens,
                "wanted": {"protected": protect, "power": power},
                "settings": {name: getattr(settings, name) for name in SAID_SETTINGS} | {"chat": chat},
            }  # fmt: skip
            write_text(json_file, json.dumps({**tuned.as_dict(), **about}, indent=1) + "\n")
            complain(f"wrote {json_file}")
        if plot_file:
            plot(tuned, plot_file)
            complain(f"wrote {plot_file}")
        if not tuned.reached:
            complain(
                f"no setting tried reaches power {power}, the strongest has {tuned.chosen.power}; raise --beta, "
                "--tokens or --fpr, or protect less"
            )
    if bad or not tuned.reached:
        raise typer.Exit(BAD_LINES)


def tell(what: str) -> None:
    """Say what is generated next, at a terminal."""
    if sys.stderr.isatty():
        complain(what)


def _show(tuned: Tuned, wanted_fpr: float = 0.0, length: int = 0) -> None:
    """Print the curve, other settings that were tried, and the choice; then what the columns mean."""
    from rich.console import Console
    from rich.table import Table

    table = Table("theta", "beta", "protected", "power", "found", "mean score", "changed", "")
    rows = {(p.theta, p.beta): p for p in (*tuned.curve, *tuned.tried, tuned.chosen)}
    for point in sorted(rows.values(), key=lambda p: (p.theta, p.beta)):
        table.add_row(*_cells(point), "chosen" if point == tuned.chosen and tuned.reached else "")
    Console().print(table)
    for column, meaning in LEGEND.items():
        if tuned.tried or column not in MEASURED:
            said = meaning.format(fpr=wanted_fpr, length=length, texts=tuned.prompts, tokens=tuned.tokens)
            Console().print(f"{column:<10}  {said}", highlight=False)
    if tuned.reached:
        Console().print(
            f"--theta {tuned.chosen.theta} --beta {tuned.chosen.beta}: {tuned.chosen.protected:.0%} of "
            f"{tuned.tokens} tokens of {tuned.prompts} prompts stay unmarked",
            highlight=False,
        )


def _cells(point: Point) -> list[str]:
    measured = (point.power, point.found, point.score, point.changed)
    figures = ["" if value is None else f"{value:.3f}" for value in measured]
    return [f"{point.theta:.4f}", f"{point.beta:g}", f"{point.protected:.3f}", *figures]
