"""`caw label`: a label file of key segments for reference answers: offsets only, one document per line."""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from caw.cli import options as opt
from caw.cli.errors import BAD_LINES, INTERRUPTED, complain, user_errors
from caw.io.files import check_paths, write_text
from caw.io.json_files import read_json
from caw.io.jsonl import JsonlWriter
from caw.io.progress import Bar
from caw.io.show import shown_variable
from caw.requirements import require
from caw_lab.training.endpoint import Endpoint
from caw_lab.training.labelers import EndpointLabeler, Labeler, LabelError, LexicalLabeler
from caw_lab.training.labelers.base import label_documents, label_line, read_documents
from caw_lab.training.labelers.lexical import KINDS
from caw_lab.training.labels import LabelledText

LABELERS = ("lexical", "openai")
LINE_START = b'{"dataset": '
DOCUMENTS, ENDPOINT = "Documents", "Labeler openai"
# names of this machine: a server there usually asks for no key
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def label(
    data_dir: Annotated[
        Path,
        typer.Option(
            envvar="CAW_DATA_DIR", help="Folder of the texts, as DATASET/SPLIT.jsonl with question and answer."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Label file to write, ending in .jsonl.")],
    labeler: Annotated[str, typer.Option(help="Labeler to use.", metavar="|".join(LABELERS))] = "lexical",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted --output.")] = False,
    dataset: Annotated[str, opt.panel(DOCUMENTS, "Dataset: a folder inside --data-dir.")] = "gsm8k",
    split: Annotated[str, opt.panel(DOCUMENTS, "Split: a file inside that folder.")] = "train",
    limit: Annotated[int | None, opt.panel(DOCUMENTS, "Maximum documents to label.", min=1)] = None,
    kinds: Annotated[str, opt.panel("Labeler lexical", "Kinds of key segments to label.")] = ",".join(KINDS),
    model: Annotated[str | None, opt.panel(ENDPOINT, "Model name at the endpoint.")] = None,
    base_url: Annotated[
        str | None, opt.panel(ENDPOINT, "Base URL of the endpoint [OpenAI].", "--base-url", envvar="OPENAI_BASE_URL")
    ] = None,
    key_env: Annotated[str, opt.panel(ENDPOINT, "Environment variable that holds the API key.")] = "OPENAI_API_KEY",
    timeout: Annotated[float, opt.panel(ENDPOINT, "Request timeout in seconds.")] = 60.0,
    retries: Annotated[int, opt.panel(ENDPOINT, "Maximum retries of a failed request.", min=0)] = 5,
    workers: Annotated[int, opt.panel(ENDPOINT, "Maximum concurrent requests.", min=1, max=64)] = 4,
    rate: Annotated[float | None, opt.panel(ENDPOINT, "Maximum requests per minute.", "--requests-per-minute")] = None,
    schema: Annotated[
        bool,
        opt.panel(
            ENDPOINT,
            "Request replies that follow a JSON schema; turn off for endpoints without support.",
            "--schema/--no-schema",
        ),
    ] = True,
    yes: Annotated[bool, opt.panel(ENDPOINT, "Start without confirmation.", "--yes", "-y")] = False,
    quiet: opt.Quiet = False,
) -> None:
    """Label the key segments of reference answers, for `caw train-evaluator`.

    Labelers: lexical (numbers, operators, currency, names, answer letters; no model), openai (a language model behind
    any OpenAI-compatible endpoint). Lines hold offsets, never texts; OUTPUT.json records the settings. Documents that
    could not be labelled are reported and skipped (exit code 1). After an interruption, --resume with the same command
    labels the missing ones.

    Examples:

    - caw label --data-dir data --labeler lexical -o labels.jsonl
    - OPENAI_API_KEY=... caw label --data-dir data --labeler openai --model NAME --limit 700 -o labels.jsonl
    """
    with user_errors():
        if labeler not in LABELERS:
            raise ValueError(f"labeler must be one of {', '.join(LABELERS)}, got {labeler!r}; choose one")
        if labeler == "openai":
            require("openai", "--labeler openai")
        if output.suffix != ".jsonl":
            raise ValueError(f"--output must end in .jsonl, got {str(output)!r}; add the extension")
        check_paths(
            {"--data-dir": data_dir / dataset / f"{split}.jsonl"},
            {"--output": output, "OUTPUT.json": output.with_suffix(".json")},
        )
        chosen = read_documents(data_dir, dataset, split)[:limit]
        # before money is spent
        with JsonlWriter(
            output, resume=resume, line_start=LINE_START, made_by="caw label", keep=_place, unique=_place
        ) as writer:
            marker: Labeler
            if labeler == "lexical":
                marker = LexicalLabeler(tuple(kinds.split(",")))
            else:
                if model is None:
                    raise ValueError("labeler openai requires --model, got none; name the endpoint's model")
                key = _endpoint_key(key_env, base_url)
                endpoint = Endpoint(
                    model, key, base_url, timeout=timeout, retries=retries, requests_per_minute=rate,
                    purpose="labels from an endpoint",
                )  # fmt: skip
                marker = EndpointLabeler(endpoint, schema)
            todo = _missing(writer, marker, chosen)
            if isinstance(marker, EndpointLabeler) and todo:
                _confirm(len(todo), yes)
            made = {"made_by": marker.describe(), "command": shlex.join(["caw", *sys.argv[1:]])}
            write_text(output.with_suffix(".json"), json.dumps(made, indent=1) + "\n")
            failed = run(marker, todo, writer, workers)
        if isinstance(marker, EndpointLabeler) and todo:
            used = marker.endpoint.used
            complain(f"endpoint usage: {used[0]} input tokens, {used[1]} output tokens")
        complain(f"{output} holds {len(chosen) - failed} of {len(chosen)} documents")
    if failed:
        raise typer.Exit(BAD_LINES)


def run(marker: Labeler, todo: Sequence[LabelledText], writer: JsonlWriter, workers: int) -> int:
    """Label and write each document as soon as it is done. Return how many failed (each reported)."""
    failed = done = 0
    try:
        with Bar(len(todo), "labelling", "documents", announced=True) as advance:
            for document, outcome in label_documents(marker, todo, workers):
                if isinstance(outcome, LabelError):
                    failed += 1
                    complain(f"{document.name}: {outcome}")
                else:
                    writer.write(label_line(document, outcome))
                    done += 1
                advance()
    except KeyboardInterrupt:
        complain(f"interrupted: {done} of {len(todo)} documents are written; continue with --resume")
        raise typer.Exit(INTERRUPTED) from None
    return failed


def _endpoint_key(name: str, base_url: str | None) -> str:
    key = os.environ.get(name)
    if key:
        return key
    if base_url and urlsplit(base_url).hostname in LOOPBACK:
        return "none"
    raise ValueError(
        f"{shown_variable(name)} must hold the endpoint's API key, it is not set; set it or give --key-env"
    )


def _place(line: dict[str, Any]) -> tuple[Any, ...]:
    """Return the document that a line labels."""
    return tuple(line.get(name) for name in ("dataset", "split", "index"))


def _missing(writer: JsonlWriter, marker: Labeler, chosen: Sequence[LabelledText]) -> list[LabelledText]:
    """Return the documents that the label file lacks. Raise ValueError if its lines were made with other settings."""
    if not writer.existing:
        return list(chosen)
    about = writer.path.with_suffix(".json")
    there = read_json(about)
    found = None if there is None else there.get("made_by")
    if found != marker.describe():
        raise ValueError(
            f"{writer.path} was made by {found or f'an unknown labeler (no {about.name})'}, this run is "
            f"{marker.describe()}; resume with the same options, or use another --output"
        )
    done = set(writer.existing)
    return [d for d in chosen if (d.dataset, d.split, d.index) not in done]


def _confirm(documents: int, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError("the run needs confirmation, but stdin is not a terminal; add --yes")
    typer.confirm(f"Send {documents} documents to the endpoint?", abort=True, err=True)
