"""Options of the commands that use a registry, and the format of its times."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from caw.requirements import require

if TYPE_CHECKING:
    from caw.registry import Registry

URL_HELP = "Registry database: sqlite:///keys.db, postgresql+psycopg://user@host/name, or any other SQLAlchemy URL."
RegistryUrl = Annotated[str | None, typer.Option("--registry", envvar="CAW_REGISTRY", metavar="URL", help=URL_HELP)]


def opened(url: str | None, *, create: bool = False) -> Registry:
    """Open the registry of --registry or CAW_REGISTRY. Raises ValueError, OSError or ImportError in one sentence."""
    for package in ("sqlalchemy", "cryptography"):
        require(package, "the registry")
    if url is None:
        raise ValueError("a registry is required, got none; give --registry sqlite:///keys.db or set CAW_REGISTRY")
    from caw.registry import open_registry

    return open_registry(url, create=create)


def read_time(option: str, text: str | None) -> datetime | None:
    """Parse a time like 2027-01-31 or 2027-01-31T12:00+01:00, in UTC by default. ValueError for anything else."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.removesuffix("Z") + "+00:00" * text.endswith("Z"))
    except ValueError:
        raise ValueError(f"{option} must be a time, got {text!r}; write e.g. 2027-01-31T12:00") from None
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment


def shown_time(moment: datetime | None) -> str:
    """Format a time in UTC, to the second; "" for None."""
    return "" if moment is None else moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
