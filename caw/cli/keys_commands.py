"""`caw keys`: who may use a service, and with which keys it marks."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli import options as opt
from caw.cli.errors import complain, user_errors
from caw.cli.registry_options import RegistryUrl, opened, read_time, shown_time
from caw.requirements import require

if TYPE_CHECKING:
    from caw.registry import Registry

TIME = "A time like 2027-01-31T12:00, in UTC"


def create(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose key; made if new.")],
    registry: RegistryUrl = None,
    api: Annotated[bool, typer.Option("--api", help="An API key, not a marking key.")] = False,
    opt_out: Annotated[bool, typer.Option("--opt-out", help="--api: it may ask for text without a mark.")] = False,
    public: Annotated[bool, typer.Option("--public", help="Marking key: anyone may ask for its mark.")] = False,
    begin: Annotated[str | None, typer.Option("--from", help=f"Marking key: {TIME}, from which on it marks.")] = None,
    until: Annotated[str | None, typer.Option("--until", help=f"{TIME}, from which on it is over.")] = None,
    key_env: Annotated[
        str | None, typer.Option(help="Marking key: variable that holds a key in use already [a random one].")
    ] = None,
    watermark: Annotated[
        str, opt.panel(opt.MARK, "With which the key marks.", "--watermark", metavar="|".join(opt.WATERMARKS))
    ] = "kgw",
    gamma: opt.Gamma = None,
    delta: opt.Delta = None,
    seeding: opt.Seeding = None,
    context_width: opt.ContextWidth = None,
    format: opt.FormatName = None,
    vocab_size: opt.VocabSize = None,
    top_k_exp: opt.TopKExp = None,
    strength_exp: opt.StrengthExp = None,
) -> None:
    """Make a marking key for a tenant, or with --api an API key.

    A marking key knows its watermark for good: servers mark with it, and whatever reads needs no more. The token of an
    API key is printed once, alone on stdout, and kept nowhere. A registry that is not there is made.

    Examples:

    - export CAW_MASTER_KEY=$(caw keys master-key) CAW_REGISTRY=sqlite:///keys.db
    - caw keys create acme
    - caw keys create acme --api > acme.token
    - caw keys create acme --from 2027-01-01 --until 2028-01-01 --public
    - caw keys create acme --watermark exp --top-k-exp 5
    """
    with user_errors():
        window = read_time("--from", begin), read_time("--until", until)
        options = {
            "gamma": gamma, "delta": delta, "seeding": seeding, "context-width": context_width, "format": format,
            "vocab-size": vocab_size, "top-k-exp": top_k_exp, "strength-exp": strength_exp,
        }  # fmt: skip
        others = {"--public": public, "--from": begin is not None, "--key-env": key_env is not None,
                  **{f"--{name}": value is not None for name, value in options.items()}}  # fmt: skip
        strange = next((name for name, given in others.items() if given), None) if api else "--opt-out" * opt_out
        if strange:
            raise ValueError(
                f"{strange} belongs to {'marking' if api else 'API'} keys, got the other kind; leave it out"
            )
        given = None if key_env is None else _key_of(key_env)
        found = opened(registry, create=True)
        if api:
            made, token = found.api.create(tenant, may_opt_out=opt_out, not_after=window[1])
            print(token)
            complain(f"API key {made.id} of {tenant}; the token above is shown this once")
            return
        made_with = opt.build_watermark(watermark, "1", options)
        if made_with is None:
            raise ValueError("a marking key marks, got --watermark none; choose another")
        mark = found.marking.create(
            tenant, key=given, not_before=window[0], not_after=window[1], public=public, watermark=made_with
        )
        print(f"marking key {mark.id} of {tenant}, from {shown_time(mark.not_before)} UTC{_end(mark.not_after)}")


def rotate(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A tenant, or the id of a key.")],
    registry: RegistryUrl = None,
    at: Annotated[str | None, typer.Option(help=f"{TIME}, at which the new one takes over [now].")] = None,
) -> None:
    """Let a new key take over from one that marks, or from an API key.

    The old marking key marks no more, and what it marked is still found. An old API key is valid until --at.

    Examples:

    - caw keys rotate acme --at 2027-01-01
    - caw keys rotate 4f1c22a90d3e --at 2027-01-08 > acme.token
    """
    with user_errors():
        found, moment = opened(registry), read_time("--at", at)
        if _is_api_key(found, name):
            _, new, token = found.api.rotate(name, moment)
            print(token)
            complain(f"API key {new.id} of {new.tenant} instead of {name}; the token above is shown this once")
            return
        old, mark = found.marking.rotate(name, moment)
        print(f"marking key {mark.id} of {mark.tenant} instead of {old.id}, from {shown_time(mark.not_before)} UTC")


def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="Of a marking key or an API key.")],
    registry: RegistryUrl = None,
) -> None:
    """End a key at once, for good.

    A revoked API key opens nothing more. A revoked marking key never marks again; what it marked is still found.

    Examples:

    - caw keys revoke 1a2b3c4d
    - caw keys revoke 4f1c22a90d3e
    """
    with user_errors():
        found = opened(registry)
        ended: Any = found.api.revoke(id) if _is_api_key(found, id) else found.marking.revoke(id)
        print(f"{id} of {ended.tenant}, revoked {shown_time(ended.revoked)} UTC")


def list_keys(
    registry: RegistryUrl = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a key.")] = False,
) -> None:
    """List keys with their windows and states, never their secrets.

    Examples:

    - caw keys list
    - caw keys list --tenant acme --json
    """
    with user_errors():
        found = opened(registry)
        now = found.database.clock()
        rows: list[tuple[str, Any]] = [("marking", key) for key in found.marking.every(tenant)]
        rows += [("api", key) for key in found.api.every(tenant)]
        if as_json:
            for kind, key in rows:
                print(json.dumps({"kind": kind, **_plain(key), "state": key.state(now)}))
        else:
            _show(rows, now)


def rules(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose texts.")],
    registry: RegistryUrl = None,
    found_at: Annotated[float | None, typer.Option(help="Test texts before they leave, at this p-value.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Let no text leave that is not found.")] = False,
    strength_factor: Annotated[float, typer.Option(help="Times the strength of the server's policy.")] = 1.0,
    exempt_below: Annotated[int, typer.Option(help="Leave requests for fewer new tokens than this unmarked.")] = 0,
    exempt_json: Annotated[bool, typer.Option("--exempt-json", help="Leave JSON mode unmarked.")] = False,
    exempt_tools: Annotated[bool, typer.Option("--exempt-tools", help="Leave tool calls unmarked.")] = False,
    exempt_thinking: Annotated[bool, typer.Option("--exempt-thinking", help="Leave thinking unmarked.")] = False,
    server: Annotated[bool, typer.Option("--server", help="Back to the server's own rules.")] = False,
) -> None:
    """Say what of a tenant's texts is marked, in place of the server's own rules.

    All is marked that is not exempt here.

    Examples:

    - caw keys rules acme --found-at 1e-4 --exempt-tools
    - caw keys rules acme --server
    """
    with user_errors():
        found = opened(registry)
        from caw.registry.tenants import set_rules
        from caw.serve.contracts import MarkRules

        wanted = MarkRules(
            found_at=found_at, strict=strict, strength_factor=strength_factor, exempt_below=exempt_below,
            exempt_json=exempt_json, exempt_tools=exempt_tools, exempt_thinking=exempt_thinking,
        )  # fmt: skip
        if server and wanted != MarkRules():
            raise ValueError("--server takes the server's rules, got others as well; leave them out")
        set_rules(found.database, tenant, None if server else wanted)
        print(f"{tenant}: {'the rules of the server' if server else wanted}")


def master_key() -> None:
    """Print a new random master key, for CAW_MASTER_KEY or a private file.

    Whoever has it and the database has all marking keys. Keep it where the database is not.

    Examples:

    - export CAW_MASTER_KEY=$(caw keys master-key)
    - (umask 077; caw keys master-key > master.key); export CAW_MASTER_KEY_FILE=master.key
    """
    with user_errors():
        require("cryptography", "the master key")
        from caw.registry.master_key import new_master_key

        print(new_master_key())


def reseal(registry: RegistryUrl = None) -> None:
    """Seal all secrets under the first master key, so that the others can go.

    Examples:

    - export CAW_MASTER_KEY="$(caw keys master-key) $CAW_MASTER_KEY"; caw keys reseal
    """
    with user_errors():
        print(f"{opened(registry).reseal()} secrets sealed anew")


def _key_of(variable: str) -> int | str:
    if not os.environ.get(variable):
        raise ValueError(f"expected a key in {variable}, got none; export it")
    return opt.parse_key(os.environ[variable])


def _is_api_key(found: Registry, name: str) -> bool:
    return any(key.id == name for key in found.api.every())


def _end(moment: datetime | None) -> str:
    return f" until {shown_time(moment)} UTC" if moment is not None else ""


def _plain(key: Any) -> dict[str, Any]:
    every = dataclasses.asdict(key).items()
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in every}


def _show(rows: list[tuple[str, Any]], now: datetime) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    if not rows:
        print("no keys", file=sys.stderr)
        return
    table = Table(
        "kind", Column("id", no_wrap=True), "tenant", "watermark", "state", "from (UTC)", "until (UTC)", "rights"
    )
    for kind, key in rows:
        begin = key.not_before if kind == "marking" else key.created
        rights = ("anyone may ask" if key.public else "") if kind == "marking" else "may opt out" * key.may_opt_out
        ends = shown_time(key.revoked or key.not_after)
        mark = key.watermark["name"] if kind == "marking" else ""
        table.add_row(kind, key.id, key.tenant, mark, key.state(now), shown_time(begin), ends, rights)
    Console().print(table)
