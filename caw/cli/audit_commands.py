"""`caw audit`: what a service can prove of its receipts and its keys."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from caw.cli.errors import complain, user_errors
from caw.cli.registry_options import RegistryUrl, opened
from caw.io.files import check_output, check_paths, write_text
from caw.io.inputs import open_input
from caw.io.jsonl import Row, read_rows
from caw.requirements import require


def export(
    registry: RegistryUrl = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write [stdout].")] = None,
    after: Annotated[int, typer.Option(help="Leave out entries up to this number.", min=0)] = 0,
) -> None:
    """Write the receipts as JSONL: every entry with its digest, the one before, and its signature.

    Examples:

    - caw audit export -o receipts.jsonl
    - caw audit export --after 1200 >> receipts.jsonl
    """
    with user_errors():
        if output is not None:
            check_output(output)
        found = opened(registry)
        from caw.registry.audit import export_lines

        lines = (f"{line}\n" for line in export_lines(found.database, after))
        if output is None:
            sys.stdout.writelines(lines)
        else:
            write_text(output, "".join(lines))


def verify(
    source: Annotated[str, typer.Argument(metavar="FILE", help="What `caw audit export` wrote; - is stdin.")],
    public_key: Annotated[
        str | None, typer.Option(help="Of the service, as it published it; else the file's own word is taken.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="An earlier export, with which this one has to begin.")] = None,
) -> None:
    """Check the chain and the signatures of receipts, without their database.

    Prints what they hold as JSON; exit code 2 at the first entry that does not fit.

    Examples:

    - caw audit verify receipts.jsonl --public-key $(cat service.pub)
    - caw audit verify receipts.jsonl --after last-month.jsonl
    """
    with user_errors():
        require("cryptography", "signatures")
        from caw.registry.audit import verify as verify_lines

        found = verify_lines(_lines(source), public_key, [] if after is None else _lines(after))
        if public_key is None:
            complain("no --public-key: this shows that one key signed everything, not whose it is")
        held = {"entries": found.entries, "begun": found.begun, "closed": found.closed, "open": list(found.open)}
        print(json.dumps({**held, "public_keys": list(found.signers), "chain": found.chain, "last": found.last}))


def public_key(
    registry: RegistryUrl = None,
    rotate: Annotated[bool, typer.Option("--rotate", help="Sign with a new key from now on.")] = False,
) -> None:
    """Print the public key that receipts are verified with; publish it.

    With --rotate a new key signs from now on. The old one signs for it, so the key published first stays the one to
    verify with.

    Examples:

    - caw audit public-key > service.pub
    """
    with user_errors():
        found = opened(registry)
        if rotate:
            found.receipts.rotate_signer()
        print(found.receipts.public_keys()[0])


def report(
    registry: RegistryUrl = None,
    unmarked: Annotated[str | None, typer.Option(help='JSONL of your own unmarked texts: {"text": ...}.')] = None,
    marked: Annotated[
        str | None, typer.Option(help='JSONL of texts that left: {"text": ...}; receipts or "key_id" say whose.')
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Of the model that wrote them.")] = None,
    fpr: Annotated[float, typer.Option(help="Share of unmarked texts that may be called marked.")] = 1e-3,
    html: Annotated[Path | None, typer.Option(help="Page to write.")] = None,
    every: Annotated[bool, typer.Option("--every-key", help="Also keys that mark no more.")] = False,
) -> None:
    """Measure the deployed keys: false alarms on your own unmarked texts, and how many marked texts are found.

    Marked texts are cut to 200, 300 and 400 tokens, as they are and after words were deleted. Prints JSON.

    Examples:

    - caw audit report --tokenizer smollm2-135m --unmarked corpus.jsonl --html report.html
    - caw audit report --tokenizer smollm2-135m --unmarked corpus.jsonl --marked answers.jsonl --fpr 1e-4
    """
    with user_errors():
        require("jinja2", "the report")
        check_paths({"--unmarked": unmarked, "--marked": marked}, {"--html": html})
        if unmarked is None or tokenizer is None:
            raise ValueError("expected --unmarked texts and their --tokenizer, got one or none; give both")
        found = opened(registry)
        from caw.models.tokenizer import detection_tokenizer
        from caw.registry.report import make_report
        from caw.registry.report_page import write_page

        made = make_report(
            found, detection_tokenizer(tokenizer, complain), [text for text, _ in _texts(unmarked)],
            list(_texts(marked)) if marked is not None else [], fpr=fpr, every=every,
        )  # fmt: skip
        print(json.dumps(made.as_dict()))
        if html is not None:
            write_page(html, made)
            complain(f"wrote {html}")


def _lines(source: str) -> Iterator[str]:
    with open_input(source) as file:
        for number, raw in enumerate(file, 1):
            try:
                yield raw.decode("ascii")
            except UnicodeDecodeError:
                raise ValueError(
                    f"line {number} of {source} must be an entry of `caw audit export`, it is not"
                ) from None


def _texts(source: str) -> Iterator[tuple[str, str | None]]:
    """(text, key id or None) of every line; ValueError at a bad one, because a report leaves nothing out silently."""
    with open_input(source) as file:
        for row in read_rows(file):
            value: Any = row.value if isinstance(row, Row) else {}
            text, key = value.get("text"), value.get("key_id")
            if not isinstance(text, str) or not isinstance(key, str | None):
                reason = "it has no text" if isinstance(row, Row) else row.message
                raise ValueError(f'{source}, line {row.number} must be {{"text": ...}}; {reason}')
            yield text, key
