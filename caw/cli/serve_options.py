"""Options of `caw serve`, and checks on who can reach it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli import options as opt
from caw.cli.command import options_of
from caw.cli.options import panel
from caw.cli.policy_choice import choose_watermark
from caw.flags import SERVING
from caw.serve.contracts import MarkRules
from caw.serve.settings import ServerSettings

if TYPE_CHECKING:
    from caw.registry import Registry
    from caw.watermarks import Signature

DRAWS = "it draws greedy requests too, at temperature 1; --watermark recommended marks them without drawing"
ONLY = "default"  # id of the tenant where there is no registry

WatermarkName = Annotated[
    str | None,
    panel(opt.MARK, "Watermark [the registry keys' watermark; recommended; kgw if a policy or its option is given].",
          "--watermark",
          metavar="|".join(opt.WATERMARKS)),
]  # fmt: skip
Name = Annotated[str | None, panel(SERVING, "Model name in the API [the value of --model].", "--name")]
Receipts = Annotated[Path | None, panel(SERVING, "JSONL file for receipts; texts are never stored.", "--receipts")]

OF_SERVER = options_of(ServerSettings, max_factor=4.0)
RULES = {name: option for name, option in options_of(MarkRules).items() if name != "strength_factor"}


def check_access(settings: ServerSettings, key: str | None) -> None:
    """Raise ValueError if a server without API keys could be reached from outside, or if nothing marks."""
    if settings.proxies:
        raise ValueError("a server without a registry accepts only local connections, got --proxy; leave it out or "
        "give --registry")  # fmt: skip
    if not settings.local:
        raise ValueError(
            "a server without a registry accepts only local connections, got another --host; leave it out or give "
            "--registry"
        )
    if key is None:
        raise ValueError("the server requires a marking key, got none; set CAW_KEY or give --key")


def check_registry(key: str | None, receipts: Path | None) -> str:
    """Return a placeholder key for a server whose registry has the keys. Raises ValueError for options that a registry
    replaces.
    """
    for option, given in (("--key or CAW_KEY", key), ("--receipts", receipts)):
        if given is not None:
            raise ValueError(f"a registry stores keys and receipts, got {option} as well; leave it out")
    return str(secrets.randbits(63))


def tell_sampling(model: Any, sampling: str) -> None:
    """Print the default sampling of requests. sampling: of `ServerSettings`."""
    from caw.models.sampling import model_sampling, sampling_text

    suggested = f"the model's generation config has {sampling_text(model_sampling(model))}"
    if sampling == "model":
        tell(f"default sampling of requests: {suggested}")
    else:
        tell(f"default sampling of requests: temperature 1; {suggested}, see --sampling")


def watermark_of(
    found: Registry | None, name: str | None, key: str, options: dict[str, Any], policy: str | None,
    of_policy: dict[str, Any],
) -> Signature:  # fmt: skip
    """Return the requested watermark, or that of the registry's active keys; if there are none, that of
    `choose_watermark`.

    Raises ValueError for none, and if an active key has another watermark: its texts would not be detected.
    """
    asked = name is not None or any(value is not None for value in options.values())
    mark = opt.build_watermark(choose_watermark(name, options, policy, of_policy), key, options)
    if mark is None:
        raise ValueError("the server marks every response, got --watermark none; choose another")
    if found is None:
        return mark
    from caw.registry.agreement import watermark_for

    mark, remarks = watermark_for(found, mark, asked=asked)
    for remark in remarks:
        tell(remark)
    return mark


def tell(line: str) -> None:
    typer.echo(f"caw: {line}", err=True)
