"""`caw tune`: theta and beta of the capacity policy on your own prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from caw.cli import options as opt
from caw.cli.command import command, options_of
from caw.cli.errors import BAD_LINES, complain, user_errors
from caw.cli.generate_prompts import read_prompts
from caw.cli.place import Place
from caw.flags import DECODING
from caw.io.files import check_paths, write_text
from caw.io.progress import doing
from caw.settings import Settings

if TYPE_CHECKING:
    from caw_lab.training.tuning import Point, Tuned

TARGET, OUTPUT = "Target", "Output"
LEGEND = {
    "theta": "importance threshold; tokens above it stay unmarked (--theta)",
    "beta": "strength of tokens with zero importance, relative to the watermark's own (--beta)",
    "protected": "share of the {tokens} tokens of the unmarked texts that stay unmarked",
    "power": "expected detection rate of marked texts of {length} tokens, at a false-positive rate of {fpr:g}",
    "found": "measured detection rate of the {texts} texts generated with this setting",
    "mean score": "mean score per token; for kgw and unigram the share of green tokens",
    "changed": "share of tokens that the mark changed",
}
SAID_SETTINGS = ("max_new_tokens", "do_sample", "temperature", "seed")
MEASURED = ("power", "found", "mean score", "changed")  # blank where no text was written with a setting


@command(
    of_mark=options_of(opt.MarkOptions, "gamma", "delta", "seeding", "context_width", "top_k_exp", "strength_exp"),
    evaluator=options_of(opt.PolicyOptions, "evaluator"),
    settings=options_of(Settings, "max_new_tokens", "chat", "seed"),
)
def tune_command(
    *,
    model: opt.ModelName,
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", help='JSONL file, one prompt per line: {"prompt": ...}; - reads stdin.'),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Single prompt; several give better estimates.")] = None,
    field: Annotated[str, typer.Option(help="Field of --input that holds the prompt.")] = "prompt",
    max_prompts: Annotated[int, typer.Option(help="Maximum prompts to use, from the start.", min=1)] = 16,
    protect: Annotated[float | None, opt.panel(TARGET, "Share of tokens to leave unmarked.", metavar="SHARE")] = None,
    power: Annotated[float | None, opt.panel(TARGET, "Share of marked texts to detect.", metavar="SHARE")] = None,
    fpr: Annotated[float, opt.panel(TARGET, "False-positive rate: the detection threshold on the p-value.")] = 1e-3,
    tokens: Annotated[
        int | None, opt.panel(TARGET, "Text length in tokens for --power [--max-new-tokens].", min=1)
    ] = None,
    beta: Annotated[
        float | None,
        opt.panel(
            TARGET,
            "Strength of tokens with zero importance [as for generate]; chosen automatically if both targets are "
            "given.",
        ),
    ] = None,
    watermark: Annotated[
        str, opt.panel(opt.MARK, "Watermark whose strength is tuned.", "--watermark", metavar="kgw|unigram|exp|synthid")
    ] = "kgw",
    key: opt.Key = None,
    of_mark: dict[str, Any],
    evaluator: dict[str, Any],
    settings: dict[str, Any],
    sample: Annotated[bool, opt.panel(DECODING, "Sample instead of decoding greedily.", "--sample")] = False,
    temperature: Annotated[float, opt.panel(DECODING, "With --sample: temperature.")] = 1.0,
    json_file: Annotated[Path | None, opt.panel(OUTPUT, "Write the full result as JSON.", "--json")] = None,
    place: Place,
    quiet: opt.Quiet = False,
) -> None:
    """Choose theta and beta of the capacity policy on your own prompts.

    --protect SHARE: choose the theta that leaves this share of tokens unmarked; one unwatermarked pass, no key needed.
    --power SHARE: choose the greatest protection that still detects this share of texts at --fpr. With both, theta
    comes from --protect, and the smallest beta that reaches --power is chosen; beta multiplies the watermark's full
    strength (delta of kgw and unigram). --power takes up to five runs over the prompts. The exit code is 1 if no
    setting reaches it.

    Examples:

    - caw tune --model smollm2-135m --input prompts.jsonl --chat --protect 0.6
    - read -rs CAW_KEY; export CAW_KEY
    - caw tune --model smollm2-135m --input prompts.jsonl --chat --power 0.95 --fpr 1e-3
    - caw tune --model smollm2-135m --input prompts.jsonl --protect 0.6 --power 0.95 --json tuned.json
    """
    with user_errors():
        from caw.policies import CapacityPolicy
        from caw_lab.training.tuning import Tuner, encode, tune

        if protect is not None and power is not None and beta is not None:
            raise ValueError("--protect with --power chooses beta, got --beta as well; leave it out")
        check_paths({"--input": input, "--model": model, "--evaluator": evaluator["evaluator"]}, {"--json": json_file})
        mark = None
        if power is not None:
            mark = opt.build_watermark(watermark, key, of_mark)
        policy = cast(CapacityPolicy, opt.build_policy("capacity", {**evaluator, "beta": beta}, model))
        # before loading
        chosen = Settings(**settings, do_sample=sample, temperature=temperature)
        entries, bad = read_prompts(prompt, input, field, chat=chosen.chat)
        if not entries:
            raise ValueError("at least one prompt is required, got none; give --input or --prompt")
        on = place.prepare(model)
        with doing(f"loading {model}", announced=True):
            network, tokenizer = place.load(model, on)
        ids = encode(network, tokenizer, [entry.prompt for entry in entries[:max_prompts]], chat=chosen.chat)
        tuner = Tuner(
            network,
            tokenizer,
            ids,
            policy.serving(tokenizer).network,
            chosen,
            None if mark is None else mark.part_for(chosen),
            fpr,
            tokens or chosen.max_new_tokens,
        )
        tuned = tune(tuner, share=protect, power=power, beta=policy.beta)
        _show(tuned, fpr, tuner.tokens)
        if json_file:
            about = {
                "model": model, "watermark": opt.describe(mark), "fpr": fpr, "length": tuner.tokens,
                "wanted": {"protected": protect, "power": power},
                "settings": {name: getattr(chosen, name) for name in (*SAID_SETTINGS, "chat")},
            }  # fmt: skip
            write_text(json_file, json.dumps({**tuned.as_dict(), **about}, indent=1) + "\n")
            complain(f"wrote {json_file}")
        if not tuned.reached:
            complain(
                f"no setting reaches power {power}, the strongest has {tuned.chosen.power}; raise --beta, --tokens or "
                "--fpr, or lower --protect"
            )
    if bad or not tuned.reached:
        raise typer.Exit(BAD_LINES)


def _show(tuned: Tuned, wanted_fpr: float = 0.0, length: int = 0) -> None:
    """Print the curve, the other settings tried, the choice, and the meaning of the columns."""
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
