"""`caw detection-weights`: how much each token should count, from texts of other keys or from the policy alone."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli.detect_config import read_key_list
from caw.cli.errors import BAD_LINES, complain, user_errors
from caw.defaults import THETA
from caw.io.files import check_paths
from caw.io.inputs import open_input
from caw.io.jsonl import Row, read_rows
from caw.io.progress import doing, watched
from caw.models import load_tokenizer
from caw.requirements import require

if TYPE_CHECKING:
    from caw.detection.weights import TokenWeights
    from caw.evaluator import Evaluator
    from caw.watermarks import Watermark


def detection_weights(
    tokenizer: Annotated[
        str, typer.Option(help="Tokenizer of the model that wrote the texts; the table is made for it.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Table to write, a .safetensors file.")],
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
    field: Annotated[str, typer.Option(help="Field that holds the text, or a list of token ids.")] = "tokens",
    prior: Annotated[
        float | None, typer.Option(help="How much evidence a rare token borrows from its kind [what fits best].", min=1)
    ] = None,
) -> None:
    """Make a table of weights for `caw detect --weights`.

    A policy that protects some kinds of tokens leaves no mark on them; counting them less finds the mark sooner. The
    texts must be marked with other keys than the one that will be tested, by the same policy and on text of the same
    kind; lines belong to the watermark of --config that their key_id names. With --positions no marked text is needed:
    tokens weigh as strongly as a capacity policy with this --evaluator and --theta would mark them.

    Examples:

    - CAW_KEY=practice caw generate --model smollm2-135m -i prompts.jsonl -o practice.jsonl
    - caw detection-weights --tokenizer smollm2-135m -i practice.jsonl --config keys.yaml -o weights.safetensors
    - caw detect --tokenizer smollm2-135m --weights weights.safetensors essay.txt
    - caw detection-weights --tokenizer ./my-model --like smollm2-135m -o my.safetensors
    - caw detection-weights --tokenizer smollm2-135m --positions seen --evaluator smollm2-135m -o weights.safetensors
    """
    bad = 0
    with user_errors():
        if config is not None:
            require("pyyaml", "--config")
        from caw.detection.weight_estimates import estimate_weights, weights_by_kind
        from caw.detection.weights import TokenWeights
        from caw.evaluator import Evaluator

        check_paths(
            {"--input": input, "--config": config, "--like": like, "--positions": positions, "--evaluator": evaluator,
             "--tokenizer": tokenizer},
            {"--output": output},
        )  # fmt: skip
        about = {"tokenizer": tokenizer, "command": shlex.join(["caw", *sys.argv[1:]])}
        if sum(given is not None for given in (like, positions, input)) > 1 or (config is not None and input is None):
            raise ValueError("--like, --positions and --input with --config are three ways, got two; choose one")
        if positions is not None:
            if evaluator is None:
                raise ValueError("--positions needs --evaluator, got none; name shipped weights or a file")
            with doing("weighing tokens"):
                table = from_positions(positions, Evaluator.load(evaluator), theta, tokenizer, about)
        elif like is not None:
            table = weights_by_kind(TokenWeights.load(like), load_tokenizer(tokenizer), about)
        else:
            if input is None or config is None:
                raise ValueError("expected --input and --config, --like, or --positions, got none; give marked texts")
            marks = {mark.key_id: mark for mark in read_key_list(config).values()}
            texts, bad = read_texts(input, field, marks)
            loaded = load_tokenizer(tokenizer)
            with doing("weighing tokens"):
                table = estimate_weights(texts, loaded, len(loaded), prior, about)
        table.save(output)
        _show(table.provenance)
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


def read_texts(source: str, field: str, marks: dict[str, Watermark]) -> tuple[dict[Watermark, list[Any]], int]:
    """Texts (or ids) by watermark, and how many lines were bad (each reported)."""
    texts: dict[Watermark, list[Any]] = {}
    bad = 0
    with open_input(source) as stream:
        for row in watched(read_rows(stream), "reading texts", "texts"):
            try:
                if not isinstance(row, Row):
                    raise ValueError(row.message)
                content, key_id = row.value.get(field), row.value.get("key_id")
                if not isinstance(content, (str, list)):
                    raise ValueError(f"{field!r} must be a text or a list of token ids, it is not; name the --field")
                if key_id not in marks:
                    known = ", ".join(marks)
                    raise ValueError(f"key_id must be one of --config's ({known}), got {key_id!r}; add that key")
                texts.setdefault(marks[key_id], []).append(content)
            except ValueError as error:
                bad += 1
                complain(f"{source}, line {row.number}: {error}")
    return texts, bad


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
