"""`caw label`: reference answers in, a label file of key segments out: offsets only, a document a line."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from caw.cli import options as opt
from caw.cli.errors import BAD_LINES, INTERRUPTED, complain, user_errors
from caw.cli.quantised_option import FLAG, Quantised, prepare_place
from caw.fitting.labelers.lexical import KINDS
from caw.fitting.labels import LabelledText, read_labels
from caw.io.files import check_paths, write_text
from caw.io.inputs import read_bounded
from caw.io.jsonl import JsonlWriter
from caw.io.progress import Bar
from caw.models import load_model, load_tokenizer
from caw.models.sources import check_source
from caw.requirements import require

if TYPE_CHECKING:
    from caw.fitting.labelers import Labeler

LABELERS = ("lexical", "counterfactual", "openai")
LINE_START = b'{"dataset": '
DOCUMENTS, ENDPOINT, COUNTERFACTUAL = "Documents", "Labeler openai", "Labeler counterfactual"
# names of this machine: a server there usually asks for no key
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def label(
    data_dir: Annotated[
        Path,
        typer.Option(envvar="CAW_DATA_DIR", help="Folder with the texts, DATASET/SPLIT.jsonl of question, answer."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Label file to write, OUTPUT.jsonl.")],
    labeler: Annotated[str, typer.Option(help="What marks the segments.", metavar="|".join(LABELERS))] = "lexical",
    model: Annotated[
        str | None,
        typer.Option(help="openai: its name at the endpoint; counterfactual: a model as for `caw generate`."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue --output after the documents it already has.")
    ] = False,
    dataset: Annotated[str, opt.panel(DOCUMENTS, "Folder inside --data-dir.")] = "gsm8k",
    split: Annotated[str, opt.panel(DOCUMENTS, "File inside that folder.")] = "train",
    documents: Annotated[
        str | None, opt.panel(DOCUMENTS, "Which lines to label, counted from 0 [all].", metavar="0-99,250,...")
    ] = None,
    same_as: Annotated[Path | None, opt.panel(DOCUMENTS, "Label the documents of this label file.")] = None,
    limit: Annotated[int | None, opt.panel(DOCUMENTS, "Label at most this many.", min=1)] = None,
    compare: Annotated[Path | None, opt.panel(DOCUMENTS, "Print the agreement with this label file.")] = None,
    tokenizer: Annotated[
        str | None, opt.panel(DOCUMENTS, "For --compare (agreement of tokens) and the cost estimate (exact counts).")
    ] = None,
    kinds: Annotated[str, opt.panel("Labeler lexical", "What counts as a key segment.")] = ",".join(KINDS),
    base_url: Annotated[
        str | None, opt.panel(ENDPOINT, "The endpoint [OpenAI's own].", "--base-url", envvar="OPENAI_BASE_URL")
    ] = None,
    key_env: Annotated[str, opt.panel(ENDPOINT, "Environment variable that holds the key.")] = "OPENAI_API_KEY",
    timeout: Annotated[float, opt.panel(ENDPOINT, "Longest time for a request, in seconds.")] = 60.0,
    retries: Annotated[int, opt.panel(ENDPOINT, "How often a failed request is repeated.", min=0)] = 5,
    workers: Annotated[int, opt.panel(ENDPOINT, "How many requests run at once.", min=1, max=64)] = 4,
    rate: Annotated[
        float | None, opt.panel(ENDPOINT, "At most this many requests a minute.", "--requests-per-minute")
    ] = None,
    schema: Annotated[
        bool,
        opt.panel(
            ENDPOINT, "Ask for replies in a JSON schema; switch off for endpoints that cannot.", "--schema/--no-schema"
        ),
    ] = True,
    input_price: Annotated[float | None, opt.panel(ENDPOINT, "Price of a million tokens read.", min=0)] = None,
    output_price: Annotated[float | None, opt.panel(ENDPOINT, "Price of a million tokens written.", min=0)] = None,
    yes: Annotated[bool, opt.panel(ENDPOINT, "Start without asking.", "--yes", "-y")] = False,
    alternatives: Annotated[int, opt.panel(COUNTERFACTUAL, "How many other tokens to try in each place.", min=1)] = 2,
    horizon: Annotated[int, opt.panel(COUNTERFACTUAL, "How many following tokens count as the rest.", min=1)] = 16,
    rest_nats: Annotated[float, opt.panel(COUNTERFACTUAL, "Key if the rest loses this much log-probability.")] = 4.0,
    answer_nats: Annotated[
        float, opt.panel(COUNTERFACTUAL, "Key if the final answer loses this much log-probability.")
    ] = 0.5,
    with_answer: Annotated[
        bool, opt.panel(COUNTERFACTUAL, "Also look at the final answer; much faster without.", "--answer/--no-answer")
    ] = True,
    dtype: opt.DType = "float32",
    quantised: Quantised = None,
    device: opt.Device = None,
    threads: opt.Threads = None,
) -> None:
    """Mark the segments of reference answers that carry their quality, for `caw train-evaluator`.

    Labelers: lexical (numbers, operators, currency, names, answer letters; no model), counterfactual (tokens whose
    replacement makes a local model think the rest or the final answer less likely), openai (a language model behind any
    OpenAI-compatible endpoint). Lines hold offsets, never texts; OUTPUT.json beside them says how they were made.
    Documents that could not be labelled are named and left out (exit code 1). After an interruption, the same command
    with --resume does what is missing.

    Examples:

    - caw label --data-dir data --labeler lexical -o labels.jsonl
    - caw label --data-dir data --labeler counterfactual --model smollm2-135m --documents 0-99 -o labels.jsonl
    - OPENAI_API_KEY=... caw label --data-dir data --labeler openai --model NAME --limit 700 -o labels.jsonl
    - caw label --data-dir data --same-as theirs.jsonl --compare theirs.jsonl --tokenizer smollm2-135m -o mine.jsonl
    """
    with user_errors():
        _check_labeler(labeler, model, quantised, tokenizer)
        from caw.fitting.labelers import CounterfactualLabeler, EndpointLabeler, LexicalLabeler
        from caw.fitting.labelers.agreement import agreement
        from caw.fitting.labelers.endpoint import estimate_cost

        if output.suffix != ".jsonl":
            raise ValueError(f"output must end in .jsonl, got {str(output)!r}; add the ending")
        check_paths(
            {"--data-dir": data_dir / dataset / f"{split}.jsonl", "--same-as": same_as, "--compare": compare,
             "--model": model, "--tokenizer": tokenizer},
            {"--output": output, "OUTPUT.json": output.with_suffix(".json")},
        )  # fmt: skip
        chosen = _documents(data_dir, dataset, split, documents, same_as)[:limit]
        device = prepare_place(model or "", device, threads, dtype, quantised)
        # before a model is loaded or money is spent
        with JsonlWriter(
            output, resume=resume, line_start=LINE_START, made_by="caw label", keep=_place, unique=_place
        ) as writer:
            marker: Labeler
            if labeler == "lexical":
                marker = LexicalLabeler(tuple(kinds.split(",")))
            elif labeler == "counterfactual":
                assert model is not None
                marker = CounterfactualLabeler(
                    *load_model(model, device=device, dtype=dtype, weights=quantised), alternatives=alternatives,
                    horizon=horizon, rest_nats=rest_nats, answer_nats=answer_nats if with_answer else None,
                    quantised=quantised,
                )  # fmt: skip
            else:
                assert model is not None
                key = _endpoint_key(key_env, base_url)
                marker = EndpointLabeler(
                    model, key, base_url, timeout=timeout, retries=retries, requests_per_minute=rate, schema=schema
                )
            todo = _missing(writer, marker, chosen)
            if isinstance(marker, EndpointLabeler) and todo:
                _confirm(str(estimate_cost(todo, _counter(tokenizer), input_price, output_price)), yes)
            made = {"made_by": marker.describe(), "command": shlex.join(["caw", *sys.argv[1:]])}
            write_text(output.with_suffix(".json"), json.dumps(made, indent=1) + "\n")
            failed = run(marker, todo, writer, workers)
        if isinstance(marker, EndpointLabeler) and todo:
            complain(f"the endpoint counted {marker.used[0]} tokens in, {marker.used[1]} out")
        complain(f"{output} holds {len(chosen) - failed} of {len(chosen)} documents")
        if compare is not None:
            found = read_labels(output, data_dir)
            _show(agreement(found, read_labels(compare, data_dir), load_tokenizer(tokenizer) if tokenizer else None))
    if failed:
        raise typer.Exit(BAD_LINES)


def _check_labeler(labeler: str, model: str | None, quantised: str | None, tokenizer: str | None) -> None:
    """Raise for an unknown labeler, for one without its package or its model, for weights of a model elsewhere, and for
    a tokenizer that is not there."""
    if labeler not in LABELERS:
        raise ValueError(f"labeler must be one of {', '.join(LABELERS)}, got {labeler!r}; choose one of these")
    if labeler == "openai":
        require("openai", "--labeler openai")
    if labeler != "lexical" and model is None:
        raise ValueError(f"labeler {labeler} needs a --model, got none; name it")
    if labeler != "counterfactual" and quantised is not None:
        raise ValueError(f"{FLAG} is for labeler counterfactual, which loads a model, got {labeler}; leave it out")
    if tokenizer is not None:
        check_source(tokenizer)  # needed when everything is labelled


def run(marker: Labeler, todo: Sequence[LabelledText], writer: JsonlWriter, workers: int) -> int:
    """Label and write every document as soon as it is done; how many could not be (each reported)."""
    from caw.fitting.labelers import LabelError
    from caw.fitting.labelers.base import label_documents, label_line

    failed = done = 0
    try:
        with Bar(len(todo), "labelling", "documents") as advance:
            for document, outcome in label_documents(marker, todo, workers):
                if isinstance(outcome, LabelError):
                    failed += 1
                    complain(f"{document.name}: {outcome}")
                else:
                    writer.write(label_line(document, outcome))
                    done += 1
                advance()
    except KeyboardInterrupt:
        complain(f"interrupted: {done} of {len(todo)} documents are written; the same command with --resume continues")
        raise typer.Exit(INTERRUPTED) from None
    return failed


def _documents(
    data_dir: Path, dataset: str, split: str, places: str | None, same_as: Path | None
) -> list[LabelledText]:
    from caw.fitting.labelers.base import read_documents

    if same_as is not None:
        if places is not None:
            raise ValueError("--same-as says which documents, got --documents as well; leave one out")
        return [replace(text, spans=()) for text in read_labels(same_as, data_dir)]
    return read_documents(data_dir, dataset, split, None if places is None else _places(places))


def _places(given: str) -> list[int]:
    """0-3,7 -> 0, 1, 2, 3, 7."""
    places: list[int] = []
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"--documents must be numbers and ranges like 0-99,250, got {given!r}; write it like that")
        places += range(int(first), int(last if dash else first) + 1)
    if not places:
        raise ValueError(f"--documents must name at least one document, got {given!r}; write a range like 0-99")
    return places


def _endpoint_key(name: str, base_url: str | None) -> str:
    key = os.environ.get(name)
    if key:
        return key
    if base_url and urlsplit(base_url).hostname in LOOPBACK:
        return "none"
    raise ValueError(f"the endpoint's key must be in the environment variable {name}, it is not; set it, or --key-env")


def _place(line: dict[str, Any]) -> tuple[Any, ...]:
    """Which document a line labels."""
    return tuple(line.get(name) for name in ("dataset", "split", "index"))


def _missing(writer: JsonlWriter, marker: Labeler, chosen: Sequence[LabelledText]) -> list[LabelledText]:
    """The documents that the label file lacks. Raises ValueError if other settings made the lines there."""
    if not writer.existing:
        return list(chosen)
    about = writer.path.with_suffix(".json")
    there = json.loads(read_bounded(about)) if about.is_file() else None
    found = there.get("made_by") if isinstance(there, dict) else None
    if found != marker.describe():
        raise ValueError(
            f"{writer.path} was made by {found or f'an unknown labeler (no {about.name})'}, this run is "
            f"{marker.describe()}; resume with the same options, or name another --output"
        )
    done = set(writer.existing)
    return [d for d in chosen if (d.dataset, d.split, d.index) not in done]


def _counter(tokenizer: str | None) -> Any:
    """How to count tokens; None where no tokenizer is named."""
    if tokenizer is None:
        return None
    loaded = load_tokenizer(tokenizer)
    return lambda text: len(loaded(text)["input_ids"])


def _confirm(cost: str, yes: bool) -> None:
    complain(cost)
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError("the run must be confirmed, stdin is no terminal to ask at; add --yes")
    typer.confirm("Send these documents to the endpoint?", abort=True, err=True)


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(f"agreement, {found['documents']} documents", "precision", "recall", "F1", "key in reference")
    for name in ("characters", "tokens"):
        if name in found:
            figures = found[name]
            table.add_row(name, *(f"{figures[f]:.3f}" for f in ("precision", "recall", "f1", "base_rate")))
    Console().print(table)
