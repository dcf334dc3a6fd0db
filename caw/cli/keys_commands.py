"""`caw keys`: manage who may use a service and which keys mark its texts."""

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
from caw.cli.command import command, options_of
from caw.cli.errors import complain, user_errors
from caw.cli.policy_choice import build_recommended, choose_watermark
from caw.cli.registry_options import RegistryUrl, opened, read_time, shown_time
from caw.io.show import shown_variable
from caw.requirements import require
from caw.serve.contracts import MarkRules
from caw.watermarks.keys import parse_key

if TYPE_CHECKING:
    from caw.registry import Registry
    from caw.watermarks import Signature

DAY, MINUTE = 10, 16  # letters of a time, as far as there is room for it
WIDE = 100  # letters of a line
TIME = "Time in UTC like 2027-01-31T12:00"
USUAL = "that of the other keys; recommended; kgw if an option of kgw is given"


@command(options={**opt.OF_TEST, **opt.OF_STRENGTH, **options_of(opt.MarkOptions, "vocab_size")})
def create(
    *,
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Tenant; created if new.")],
    registry: RegistryUrl = None,
    api: Annotated[bool, typer.Option("--api", help="Create an API key instead of a marking key.")] = False,
    opt_out: Annotated[bool, typer.Option("--opt-out", help="With --api: the key may request unmarked text.")] = False,
    public: Annotated[bool, typer.Option("--public", help="Marking key: anyone may test texts for its mark.")] = False,
    begin: Annotated[str | None, typer.Option("--from", help=f"Marking key: its start. {TIME} [now].")] = None,
    until: Annotated[str | None, typer.Option("--until", help=f"End of its validity. {TIME} [never].")] = None,
    key_env: Annotated[str | None, typer.Option(help="Marking key: variable that holds it [a new random key].")] = None,
    watermark: Annotated[str | None, opt.panel(opt.MARK, f"Watermark of the key [{USUAL}].", "--watermark",
                                               metavar="|".join(opt.WATERMARKS))] = None,
    options: dict[str, Any],
    target: Annotated[float | None, opt.panel(
        opt.MARK, "recommended: p-value at which the marking of a greedy text may stop.", "--target")] = None,
    evaluator: Annotated[str | None, opt.panel(
        opt.MARK, "recommended: evaluator of greedy texts, a shipped name or a .safetensors file.", "--evaluator"
    )] = None,
) -> None:  # fmt: skip
    """Create a marking key for a tenant, or an API key with --api.

    A marking key stores its watermark permanently: servers mark with it, and detection needs nothing else. An API key's
    token is printed once, alone on stdout, and is not stored. The registry is created if it does not exist.

    Examples:

    - export CAW_MASTER_KEY=$(caw keys master-key) CAW_REGISTRY=sqlite:///keys.db
    - caw keys create acme
    - caw keys create acme --api > acme.token
    - caw keys create acme --from 2027-01-01 --until 2028-01-01 --public
    - caw keys create acme --watermark exp --top-k-exp 5
    """
    with user_errors():
        window = read_time("--from", begin), read_time("--until", until)
        of_greedy = {"target": target, "evaluator": evaluator}
        others = {"--public": public, "--from": begin is not None, "--key-env": key_env is not None}
        others |= {opt.as_typed(name): value is not None for name, value in {**options, **of_greedy}.items()}
        strange = next((name for name, given in others.items() if given), None) if api else "--opt-out" * opt_out
        if strange:
            raise ValueError(f"{strange} is only for {'marking' if api else 'API'} keys; leave it out")
        given = None if key_env is None else _key_of(key_env)
        found = opened(registry, create=True)
        if api:
            made, token = found.api.create(tenant, may_opt_out=opt_out, not_after=window[1])
            print(token)
            complain(f"API key {made.id} of {tenant}; its token, above, is shown only once")
            return
        mark = found.marking.create(
            tenant, key=given, not_before=window[0], not_after=window[1], public=public,
            watermark=_watermark_of(found, watermark, options, of_greedy),
        )  # fmt: skip
        print(f"marking key {mark.id} of {tenant}, from {shown_time(mark.not_before)} UTC{_end(mark.not_after)}")
        _warn_of_others(found)


def rotate(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Tenant or key id.")],
    registry: RegistryUrl = None,
    at: Annotated[str | None, typer.Option(help=f"When the new key takes over. {TIME} [now].")] = None,
) -> None:
    """Replace a marking key or an API key by a new one.

    The old marking key stops marking; its texts remain detectable. An old API key is valid until --at.

    Examples:

    - caw keys rotate acme --at 2027-01-01
    - caw keys rotate 4f1c22a90d3e --at 2027-01-08 > acme.token
    """
    with user_errors():
        found, moment = opened(registry), read_time("--at", at)
        if _is_api_key(found, name):
            _, new, token = found.api.rotate(name, moment)
            print(token)
            complain(f"API key {new.id} of {new.tenant} instead of {name}; its token, above, is shown only once")
            return
        old, mark = found.marking.rotate(name, moment)
        print(f"marking key {mark.id} of {mark.tenant} instead of {old.id}, from {shown_time(mark.not_before)} UTC")


def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of a marking key or an API key.")],
    registry: RegistryUrl = None,
) -> None:
    """Revoke a key immediately and permanently.

    A revoked API key gives no access. A revoked marking key never marks again; its texts remain detectable.

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
    tenant: Annotated[str | None, typer.Option(help="List only this tenant's keys.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per key, with times to the second.")
    ] = False,
) -> None:
    """List keys with their validity periods and states; secrets are never shown.

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


@command(wanted=options_of(MarkRules))
def rules(
    *,
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose texts.")],
    registry: RegistryUrl = None,
    wanted: dict[str, Any],
    server: Annotated[bool, typer.Option("--server", help="Restore the server's default rules.")] = False,
) -> None:
    """Set a tenant's rules, which replace the server's defaults.

    Everything that is not exempted here is marked.

    Examples:

    - caw keys rules acme --detectable-at 1e-4 --exempt-tools
    - caw keys rules acme --server
    """
    with user_errors():
        found = opened(registry)
        from caw.registry.directory import set_rules

        chosen = MarkRules(**wanted)
        if server and chosen != MarkRules():
            raise ValueError("--server restores the server's rules, got other rules as well; leave them out")
        set_rules(found.database, tenant, None if server else chosen)
        print(f"{tenant}: {'the rules of the server' if server else chosen}")


def master_key() -> None:
    """Print a new random master key, for CAW_MASTER_KEY or a private file.

    The master key and the database together reveal all marking keys. Store them apart.

    Examples:

    - export CAW_MASTER_KEY=$(caw keys master-key)
    - (umask 077; caw keys master-key > master.key); export CAW_MASTER_KEY_FILE=master.key
    """
    with user_errors():
        require("cryptography", "the master key")
        from caw.registry.master_key import new_master_key

        print(new_master_key())


def reseal(registry: RegistryUrl = None) -> None:
    """Re-encrypt all secrets under the first master key, so that older ones can be removed.

    Examples:

    - export CAW_MASTER_KEY="$(caw keys master-key) $CAW_MASTER_KEY"; caw keys reseal
    """
    with user_errors():
        print(f"{opened(registry).reseal()} secrets re-encrypted")


def _watermark_of(found: Registry, name: str | None, options: dict[str, Any], of_greedy: dict[str, Any]) -> Signature:
    """Return a new key's watermark, by options or as the others' (a server marks with one), under a placeholder key."""
    from caw.watermarks.names import watermark_from

    now = found.database.clock()
    # those that mark now decide, or else those that will, or else those that did
    others = sorted(found.marking.every(), key=lambda each: {"waiting": 1, "valid": 2}.get(each.state(now), 0))
    if others and name is None and all(value is None for value in options.values()):
        mark = watermark_from(others[-1].watermark, 1)
    else:
        made = opt.build_watermark(choose_watermark(name, options), "1", options)
        if made is None:
            raise ValueError("a marking key requires a watermark, got --watermark none; choose another")
        mark = made
    given = next((option for option, value in of_greedy.items() if value is not None), None)
    if len(mark.parts) > 1:
        return build_recommended(mark, None, of_greedy)
    if given is not None:
        raise ValueError(f"--{given} is only for watermark recommended, got watermark {mark.name}; leave it out")
    return mark


def _warn_of_others(found: Registry) -> None:
    """Warn that no server starts with the keys that mark now, because they have several watermarks."""
    from caw.registry.agreement import watermark_for
    from caw.watermarks import KGW

    try:
        watermark_for(found, KGW(1), asked=False)
    except ValueError as error:
        complain(f"warning: `caw serve` will not start with these keys: {error}")


def _key_of(variable: str) -> int:
    """Read the key from an environment variable; reject a bad one before a registry is created."""
    from caw.watermarks.keys import normalize_key

    if not os.environ.get(variable):
        raise ValueError(f"{shown_variable(variable)} must hold a key, it is not set; export it")
    return normalize_key(parse_key(os.environ[variable]))


def _is_api_key(found: Registry, name: str) -> bool:
    return any(key.id == name for key in found.api.every())


def _end(moment: datetime | None) -> str:
    return f" until {shown_time(moment)} UTC" if moment is not None else ""


def _plain(key: Any) -> dict[str, Any]:
    every = dataclasses.asdict(key).items()
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in every}


def _show(rows: list[tuple[str, Any]], now: datetime) -> None:
    """Print one table per kind of key. Empty columns are left out, so that 80 columns are enough."""
    from rich.console import Console

    console = Console()
    if not rows:
        print("no keys", file=sys.stderr)
    for kind, title in (("marking", "Marking keys"), ("api", "API keys")):
        keys = [_cells(key, now, MINUTE if console.width >= WIDE else DAY) for found, key in rows if found == kind]
        if keys:
            console.print(_table(title, keys), end="\n\n")


def _cells(key: Any, now: datetime, letters: int) -> dict[str, str]:
    """Return a key's table cells by column title; times have a fixed width."""
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
