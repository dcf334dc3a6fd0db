"""`caw serve-detection`: a server that only tests texts, for a host with marking keys and no right to sign receipts."""

from typing import Annotated, Any

import typer

from caw.cli.command import command, options_of
from caw.cli.errors import user_errors
from caw.cli.registry_options import RegistryUrl, opened
from caw.cli.serve_command import tell
from caw.manifest import trusted
from caw.requirements import require
from caw.serve.settings import ServerSettings

OF_SERVER = options_of(ServerSettings, "host", "port", "max_connections", "proxies", "read_timeout", "write_timeout",
                       "grace", "max_body")  # fmt: skip


@command(of_server=OF_SERVER)
def serve_detection(
    *,
    tokenizer: Annotated[str, typer.Option(help="Model whose tokenizer splits the texts: name, hub id or folder.")],
    registry: RegistryUrl = None,
    name: Annotated[str | None, typer.Option(help="Model name on the page [the value of --tokenizer].")] = None,
    c2pa_trust: Annotated[
        str | None, typer.Option(metavar="FILE", help="PEM file of certificates whose C2PA manifests are trusted.")
    ] = None,
    of_server: dict[str, Any],
) -> None:
    """Run a server that tests texts for the marks of a registry's keys, and generates none.

    Paths: the page at /, /v1/detect, /.well-known/watermark.json, /health, /metrics. It loads no model, writes nothing
    to the database, and needs no key but the marking keys.

    Examples:

    - caw serve-detection --tokenizer smollm2-135m --registry sqlite:///keys.db
    """
    with user_errors():
        require("fastapi", "`caw serve-detection`")
        require("jinja2", "its page")
        found = opened(registry)
        now = found.database.clock()
        keys = sorted(found.marking.every(), key=lambda key: (key.state(now) == "valid", key.not_before))
        if not keys:
            raise ValueError("a detector requires marking keys, the registry has none; see `caw keys create`")
        of_server["proxies"] = tuple(of_server["proxies"] or ())
        settings = ServerSettings(name=name or tokenizer, **of_server)
        found.directory.detection_keys(None)  # a custodian that gives no keys is told before anybody asks
        from caw.models.tokenizer import detection_tokenizer
        from caw.serve.desk import Desk
        from caw.serve.reading import Reading
        from caw.serve.running import server_for
        from caw.watermarks.names import watermark_from

        reader = detection_tokenizer(tokenizer, tell)
        size = 1 + max(reader.get_vocab().values())
        reading = Reading(reader, watermark_from(keys[-1].watermark, 1), settings, size)
        desk = Desk(reading, found.directory, trusted(c2pa_trust))
        server_for(desk, lambda where: tell(f"listening at {where}")).run()
