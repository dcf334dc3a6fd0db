"""`caw detection-weights`: how much each token should count, from texts of other keys or from the policy alone."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli.detect_config import read_key_list
from caw.cli.errors import BAD_LINES, complain, user_errors
from caw.cli.marked_lines import MarkedLines, read_marked_lines
from caw.cli.quantised_option import FLAG, Quantised, prepare_place
from caw.defaults import THETA
from caw.io.files import check_paths
from caw.io.progress import doing
from caw.models import load_tokenizer
from caw.requirements import require

if TYPE_CHECKING:
    from caw.detection.calibration import Calibration
    from caw.detection.weights import TokenWeights
    from caw.evaluator import Evaluator


def detection_weights(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Table to write, a .safetensors file; with --reader a JSON file.")
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer of the model that wrote the texts; the table is made for it.")
    ] = None,
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", help="JSONL of marked texts, as `caw generate` writes them; - is stdin."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="YAML file of the watermarks (keys) of the texts, as for `caw detect`."),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(help="Instead of texts: copy the weights of each kind of token from this table."),
    ] = None,
    positions: Annotated[
        Path | None,
        typer.Option(help="Instead of texts: a --positions folder of `caw train-evaluator`."),
    ] = None,
    evaluator: Annotated[str | None, typer.Option(help="With --positions: the evaluator, by name or file.")] = None,
    theta: Annotated[float, typer.Option(help="With --positions: theta of the policy that will mark.")] = THETA,
    reader: Annotated[
        str | None,
        typer.Option(
            help="Instead of a table: what this model may believe of texts whose prompts it does not know, for "
            "`caw detect --weights model:NAME --calibration`."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="With --reader: cpu, cuda, ... [cuda if there is one].")] = None,
    dtype: Annotated[str | None, typer.Option(help="With --reader: precision that it runs in [auto].")] = None,
    quantised: Quantised = None,
    field: Annotated[str, typer.Option(help="Field that holds the text, or a list of token ids.")] = "tokens",
    prior: Annotated[
        float | None, typer.Option(help="How much evidence a rare token borrows from its kind [what fits best].", min=1)
    ] = None,
) -> None:
    """Make a table of weights for `caw detect --weights`, or a calibration of weights from a model.

    A policy that protects some kinds of tokens leaves no mark on them; counting them less finds the mark sooner. The
    texts must be marked with other keys than the one that will be tested, by the same policy and on text of the same
    kind; lines belong to the watermark of --config that their key_id names. With --positions no marked text is needed:
    tokens weigh as strongly as a capacity policy with this --evaluator and --theta would mark them. With --reader the
    lines say which policy marked them, all the same one.

    Examples:

    - CAW_KEY=practice caw generate --model smollm2-135m -i prompts.jsonl -o practice.jsonl
    - caw detection-weights --tokenizer smollm2-135m -i practice.jsonl --config keys.yaml -o weights.safetensors
    - caw detect --tokenizer smollm2-135m --weights weights.safetensors essay.txt
    - caw detection-weights --tokenizer ./my-model --like smollm2-135m -o my.safetensors
    - caw detection-weights --tokenizer smollm2-135m --positions seen --evaluator smollm2-135m -o weights.safetensors
    - caw detection-weights --reader smollm2-135m -i practice.jsonl --config keys.yaml -o calibration.json
    """
    bad = 0
    with user_errors():
        if config is not None:
            require("pyyaml", "--config")
        from caw.detection.weight_estimates import weights_by_kind
        from caw.detection.weights import TokenWeights
        from caw.evaluator import Evaluator

        check_paths(
            {"--input": input, "--config": config, "--like": like, "--positions": positions, "--evaluator": evaluator,
             "--tokenizer": tokenizer},
            {"--output": output},
        )  # fmt: skip
        about = {"tokenizer": tokenizer or reader, "command": shlex.join(["caw", *sys.argv[1:]])}
        if sum(given is not None for given in (like, positions, input)) > 1 or (config is not None and input is None):
            raise ValueError("--like, --positions and --input with --config are three ways, got two; choose one")
        if reader is not None and (input is None or config is None):
            raise ValueError("--reader learns from marked texts, got none; give --input and --config")
        if reader is None and any(given is not None for given in (device, dtype, quantised)):
            raise ValueError(f"--device, --dtype and {FLAG} say how --reader runs, which is missing; add it")
        if tokenizer is None and reader is None:
            raise ValueError("a table is made for a tokenizer, got none; give --tokenizer, or --reader")
        named = tokenizer or ""  # only --reader goes without, which has its own
        made: TokenWeights | Calibration
        if positions is not None:
            if evaluator is None:
                raise ValueError("--positions needs --evaluator, got none; name shipped weights or a file")
            with doing("weighing tokens"):
                made = from_positions(positions, Evaluator.load(evaluator), theta, named, about)
        elif like is not None:
            made = weights_by_kind(TokenWeights.load(like), load_tokenizer(named), about)
        else:
            if input is None or config is None:
                raise ValueError("expected --input and --config, --like, or --positions, got none; give marked texts")
            lines = read_marked_lines(input, field, {mark.key_id: mark for mark in read_key_list(config).values()})
            bad = lines.bad
            if reader is not None:
                made = learned(reader, lines, about, device, dtype, quantised)
            else:
                made = estimated(named, lines, prior, about)
        made.save(output)
        if isinstance(made, TokenWeights):
            _show(made.provenance)
        complain(f"wrote {output}")
    if bad:
        raise typer.Exit(BAD_LINES)


def from_positions(
    folder: Path, evaluator: Evaluator, theta: float, tokenizer: str, about: dict[str, Any]
) -> TokenWeights:
    """The table of the strengths that a capacity policy would have on stored positions."""
    import numpy as np

    from caw.detection.expected_weights import expected_weights, strengths_of
    from caw.fitting.pipeline import fitted
    from caw.fitting.positions import Positions
    from caw.fitting.train import predict

    stored = Positions.open(folder)
    evaluator = fitted(evaluator, tokenizer, stored)
    capacity = predict(evaluator, stored.features(evaluator.spec, np.arange(len(stored)), evaluator.token_class))
    loaded, ids = load_tokenizer(tokenizer), np.asarray(stored.arrays["token"], dtype=np.int64)
    size = max(len(loaded), int(ids.max()) + 1)
    about = {**about, "model": stored.meta["model"], "labels_sha256": stored.meta["labels_sha256"], "theta": theta}
    return expected_weights(ids, strengths_of(capacity, theta), loaded, size, about)


def estimated(tokenizer: str, lines: MarkedLines, prior: float | None, about: dict[str, Any]) -> TokenWeights:
    """The table of texts that other keys marked."""
    from caw.detection.weight_estimates import estimate_weights

    loaded = load_tokenizer(tokenizer)
    with doing("weighing tokens"):
        return estimate_weights(lines.texts, loaded, len(loaded), prior, about)


def learned(
    reader: str,
    lines: MarkedLines,
    about: dict[str, Any],
    device: str | None,
    dtype: str | None,
    quantised: str | None,
) -> Calibration:
    """What the model `reader` may believe of texts whose prompts it does not know."""
    require("scikit-learn", "--reader")
    from caw.fitting.fit_calibration import fit_calibration
    from caw.models import ModelWeights, load_model

    dtype = dtype or "auto"
    place = prepare_place(reader, device, None, dtype, quantised)
    texts, policy = lines.as_strong(), lines.one_policy(reader)
    with doing(f"loading {reader}"):
        model, tokenizer = load_model(reader, device=place, dtype=dtype, weights=quantised)
    return fit_calibration(texts, ModelWeights(model, tokenizer, policy=policy), about)


def _show(about: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    means = about.get("mean_by_kind") or about["mean_strength_by_kind"]
    table = Table("kind of token", "green (or mean score) where marked" if "mean_by_kind" in about else "mean strength")
    for kind, mean in means.items():
        table.add_row(kind, f"{mean:.3f}")
    Console().print(table)
    whence = f"{about['tokens']} tokens" if "tokens" in about else f"kinds of {about['by_kind_from']}"
    Console().print(f"{whence}, keys {', '.join(about['key_ids']) or 'none'}", highlight=False)
