"""`caw audit`: export and verify receipts, and measure the deployed keys."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from caw.cli.errors import complain, user_errors
from caw.cli.options import quieten
from caw.cli.registry_options import RegistryUrl, opened
from caw.io.files import check_output, check_paths, write_text
from caw.io.inputs import line_count, open_input
from caw.io.jsonl import Row, read_rows
from caw.io.progress import watched
from caw.manifest import bare
from caw.requirements import require

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress.", callback=quieten)]


def export(
    registry: RegistryUrl = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Output file [stdout].")] = None,
    after: Annotated[int, typer.Option(help="Skip entries up to this number.", min=0)] = 0,
    quiet: Quiet = False,
) -> None:
    """Export the receipt log as JSONL: each entry with its digest, the previous digest and its signature.

    Examples:

    - caw audit export -o receipts.jsonl
    - caw audit export --after 1200 >> receipts.jsonl
    """
    with user_errors():
        if output is not None:
            check_output(output)
        found = opened(registry)
        from caw.registry.audit import count_entries, export_lines

        seen = output is None and sys.stdout.isatty()  # the entries themselves are what moves there
        entries = watched(
            export_lines(found.database, after), "exporting", "entries", enabled=not seen, announced=True,
            total=count_entries(found.database, after),
        )  # fmt: skip
        lines = (f"{line}\n" for line in entries)
        if output is None:
            sys.stdout.writelines(lines)
        else:
            write_text(output, "".join(lines))


def verify(
    source: Annotated[str, typer.Argument(metavar="FILE", help="Output of `caw audit export`; - reads stdin.")],
    public_key: Annotated[
        str | None,
        typer.Option(help="Public key that the service published. Without it, the key in the file is trusted."),
    ] = None,
    after: Annotated[str | None, typer.Option(help="Earlier export that this one must extend.")] = None,
    quiet: Quiet = False,
) -> None:
    """Verify the hash chain and the signatures of exported receipts; no database is needed.

    Print a summary as JSON. Exit with code 2 at the first entry that does not verify.

    Examples:

    - caw audit verify receipts.jsonl --public-key $(cat service.pub)
    - caw audit verify receipts.jsonl --after last-month.jsonl
    """
    with user_errors():
        require("cryptography", "signatures")
        from caw.registry.audit import verify as verify_lines

        entries = watched(_lines(source), "verifying", "entries", announced=True, total=line_count(source))
        found = verify_lines(entries, public_key, [] if after is None else _lines(after))
        if not found.entries:
            complain("the log is empty; nothing was verified")
        if public_key is None:
            complain("without --public-key this shows only that one key signed everything, not whose key it is")
        held = {"entries": found.entries, "begun": found.begun, "closed": found.closed, "open": list(found.open)}
        print(json.dumps({**held, "public_keys": list(found.signers), "chain": found.chain, "last": found.last}))


def public_key(
    registry: RegistryUrl = None,
    rotate: Annotated[bool, typer.Option("--rotate", help="Create a new signing key and use it from now on.")] = False,
) -> None:
    """Print the public key that verifies receipts, for you to publish.

    With --rotate, sign with a new key from now on. The old key certifies the new one, so the key that you published
    first still verifies everything.

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
    unmarked: Annotated[
        str | None, typer.Option(help='JSONL of your own unmarked texts: {"text": ..., "language": ...}.')
    ] = None,
    marked: Annotated[
        str | None,
        typer.Option(help='JSONL of texts that were served, alike; the key comes from a receipt or "key_id".'),
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Tokenizer of the model that wrote the texts.")] = None,
    fpr: Annotated[float, typer.Option(help="False-positive rate: the detection threshold on the p-value.")] = 1e-3,
    html: Annotated[Path | None, typer.Option(help="HTML page to write.")] = None,
    every: Annotated[bool, typer.Option("--every-key", help="Include retired keys.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure the false-positive rate and the detection rate of the deployed keys on your own texts.

    Marked texts are tested at 200, 300 and 400 tokens, unchanged and with words deleted, and by language and by the
    share of tokens that the mark could choose, where lines and receipts say them. Prints JSON.

    Examples:

    - caw audit report --tokenizer smollm2-135m --unmarked corpus.jsonl --html report.html
    - caw audit report --tokenizer smollm2-135m --unmarked corpus.jsonl --marked answers.jsonl --fpr 1e-4
    """
    with user_errors():
        require("jinja2", "the report")
        check_paths({"--unmarked": unmarked, "--marked": marked}, {"--html": html})
        if unmarked is None or tokenizer is None:
            raise ValueError("--unmarked and --tokenizer are both required, got one or none; give both")
        found = opened(registry)
        from caw.models.tokenizer import detection_tokenizer
        from caw.registry.report import Given, make_report
        from caw.registry.report_page import write_page

        made = make_report(
            found, detection_tokenizer(tokenizer, complain), [Given(*line) for line in _texts(unmarked)],
            [] if marked is None else [Given(*line) for line in _texts(marked)], fpr=fpr, every=every, progress=True,
        )  # fmt: skip
        print(json.dumps(made.as_dict(), indent=2))
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
                    f"line {number} of {source} must be an entry of `caw audit export`, and is not; export the log "
                    "again"
                ) from None


def _texts(source: str) -> Iterator[tuple[str, str | None, str]]:
    """Return (text as its receipt knows it, key id or None, language or "") of every line. ValueError at a bad one."""
    with open_input(source) as file:
        for row in read_rows(file, field="text"):
            value: Any = row.value if isinstance(row, Row) else {}
            text, key, language = value.get("text"), value.get("key_id"), value.get("language", "")
            if not isinstance(text, str) or not isinstance(key, str | None) or not isinstance(language, str):
                reason = "text, key_id and language must be texts" if isinstance(row, Row) else row.message
                raise ValueError(f'{source}, line {row.number} must be {{"text": ...}}; {reason}')
            yield bare(text), key, language
