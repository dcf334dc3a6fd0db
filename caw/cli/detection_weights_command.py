"""`caw detection-weights`: how much each kind of token should count, from texts marked under other keys."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from caw.cli.detect_config import read_candidates
from caw.cli.errors import BAD_LINES, complain, user_errors
from caw.cli.generate_command import open_lines
from caw.detection.estimate_weights import estimate_weights, weights_by_kind
from caw.detection.weights import TokenWeights
from caw.jsonl import Row, read_rows
from caw.models import load_tokenizer
from caw.watermarks import Watermark


def detection_weights(
    tokenizer: Annotated[str, typer.Option(help="Of the model that wrote the texts; the table is for it.")],
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
        typer.Option(help="Instead of texts: a table whose kinds of tokens this tokenizer's shall weigh as."),
    ] = None,
    field: Annotated[str, typer.Option(help="Field that holds the text, or a list of token ids.")] = "tokens",
    prior: Annotated[
        float | None, typer.Option(help="Evidence that a rare token borrows from its kind [what fits best].", min=1)
    ] = None,
) -> None:
    """Make a table of weights for `caw detect --weights`.

    A policy that protects some kinds of tokens leaves no mark on them; counting them less finds the mark sooner. The
    texts must be marked with other keys than the one that will be tested, by the same policy and on text of the same
    kind; lines belong to the watermark of --config that their key_id names.

    Examples:

    - CAW_KEY=practice caw generate --model smollm2-135m --policy capacity -i prompts.jsonl -o practice.jsonl
    - caw detection-weights --tokenizer smollm2-135m -i practice.jsonl --config keys.yaml -o weights.safetensors
    - caw detect --tokenizer smollm2-135m --weights weights.safetensors essay.txt
    - caw detection-weights --tokenizer ./my-model --like smollm2-135m -o my.safetensors
    """
    bad = 0
    with user_errors():
        about = {"tokenizer": tokenizer, "command": shlex.join(["caw", *sys.argv[1:]])}
        if like is not None:
            if input is not None or config is not None:
                raise ValueError(
                    "--like takes a table instead of texts, got --input or --config as well; leave them out"
                )
            table = weights_by_kind(TokenWeights.load(like), load_tokenizer(tokenizer), about)
        else:
            if input is None or config is None:
                raise ValueError(
                    "expected --input and --config, or --like, got neither; give the marked texts and keys"
                )
            marks = {mark.key_id: mark for mark in read_candidates(config).values()}
            texts, bad = read_texts(input, field, marks)
            loaded = load_tokenizer(tokenizer)
            table = estimate_weights(texts, loaded, len(loaded), prior, about)
        table.save(output)
        _show(table.provenance)
        complain(f"wrote {output}")
    if bad:
        raise typer.Exit(BAD_LINES)


def read_texts(source: str, field: str, marks: dict[str, Watermark]) -> tuple[dict[Watermark, list[Any]], int]:
    """Texts (or ids) by watermark, and how many lines were bad (each reported)."""
    texts: dict[Watermark, list[Any]] = {}
    bad = 0
    with open_lines(source) as stream:
        for row in read_rows(stream):
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
    table = Table("kind of token", "green (or mean score) where marked")
    for kind, mean in about["mean_by_kind"].items():
        table.add_row(kind, f"{mean:.3f}")
    Console().print(table)
    whence = f"{about['tokens']} tokens" if "tokens" in about else f"kinds of {about['by_kind_from']}"
    Console().print(f"{whence}, keys {', '.join(about['key_ids'])}", highlight=False)
