"""`caw keys`: who may use a service, and with which keys it marks."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli import options as opt
from caw.cli.errors import complain, user_errors
from caw.cli.registry_options import RegistryUrl, named, opened, read_time, shown_time
from caw.requirements import require

if TYPE_CHECKING:
    from caw.registry import Registry
    from caw.watermarks import Watermark

DAY, MINUTE = 10, 16  # letters of a time, as far as there is room for it
WIDE = 100  # letters of a line
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
        mark = found.marking.create(
            tenant, key=given, not_before=window[0], not_after=window[1], public=public,
            watermark=_made_with(watermark, options),
        )  # fmt: skip
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a key, with times to the second.")
    ] = False,
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


def upgrade(
    registry: RegistryUrl = None,
    watermark: Annotated[
        str,
        opt.panel(
            opt.MARK,
            "With which the server marked, where keys do not say it.",
            "--watermark",
            metavar="|".join(opt.WATERMARKS),
        ),
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
    """Bring the registry of an earlier version to this one's form: keep a copy, stop its servers, then run this.

    Before form 2 a marking key did not say with which watermark it marked: say it here as it was said to `caw serve`,
    or old texts will not be found. Receipts stay as they are, and verify as before.

    Examples:

    - caw keys upgrade
    - caw keys upgrade --watermark exp --top-k-exp 5
    """  # fmt: skip
    with user_errors():
        options = {
            "gamma": gamma, "delta": delta, "seeding": seeding, "context-width": context_width, "format": format,
            "vocab-size": vocab_size, "top-k-exp": top_k_exp, "strength-exp": strength_exp,
        }  # fmt: skip
        url, mark = named(registry), _made_with(watermark, options)
        from caw.registry.upgrade import upgrade_registry

        done = upgrade_registry(url, mark)
        if done.before == done.after:
            print(f"the registry has form {done.after} already")
        else:
            print(f"the registry has form {done.after} now, it had {done.before}; {done.keys} keys mark with {mark}")


def _made_with(name: str, options: dict[str, Any]) -> Watermark:
    """The watermark of the options, under a key that is none. Raises ValueError for a bad one."""
    mark = opt.build_watermark(name, "1", options)
    if mark is None:
        raise ValueError("a marking key marks, got --watermark none; choose another")
    return mark


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
    """A table of each kind. Columns that would be empty are left out, so that 80 letters are enough."""
    from rich.console import Console

    console = Console()
    if not rows:
        print("no keys", file=sys.stderr)
    for kind, title in (("marking", "Marking keys"), ("api", "API keys")):
        keys = [_cells(key, now, MINUTE if console.width >= WIDE else DAY) for found, key in rows if found == kind]
        if keys:
            console.print(_table(title, keys), end="\n\n")


def _cells(key: Any, now: datetime, letters: int) -> dict[str, str]:
    """What the table says of a key, by the head of its column; times with so many letters."""
    marks = hasattr(key, "watermark")
    return {
        "id": key.id, "tenant": key.tenant, "watermark": key.watermark["name"] if marks else "",
        "state": key.state(now), "from (UTC)": shown_time(key.not_before if marks else key.created)[:letters],
        "until (UTC)": shown_time(key.revoked or key.not_after)[:letters],
        "rights": "public" * key.public if marks else "may opt out" * key.may_opt_out,
    }  # fmt: skip


def _table(title: str, rows: Sequence[Mapping[str, str]]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    heads = [head for head in rows[0] if any(row[head] for row in rows)]
    for head in heads:
        table.add_column(head, overflow="fold", no_wrap=head != "tenant", min_width=max(len(row[head]) for row in rows)
                         if head != "tenant" else 8)  # fmt: skip
    for row in rows:
        table.add_row(*(row[head] for head in heads))
    return table
