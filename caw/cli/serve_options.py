"""Options of `caw serve`, and who may ask it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli import options as opt
from caw.cli.options import panel

if TYPE_CHECKING:
    from caw.registry import Registry
    from caw.serve.contracts import KeyDirectory, ReceiptLog
    from caw.serve.settings import ServerSettings
    from caw.watermarks import Watermark

SERVING, LIMITS, MARKING = "Serving", "Limits", "What is marked"
ONLY = "default"  # id of the tenant where there is no registry

WatermarkName = Annotated[
    str | None,
    panel(opt.MARK, "With which texts are marked [that of the registry's keys; kgw].", "--watermark",
          metavar="|".join(opt.WATERMARKS)),
]  # fmt: skip
Host = Annotated[str, panel(SERVING, "Address to listen at; 127.0.0.1 is this machine alone.", "--host")]
Port = Annotated[int, panel(SERVING, "Port to listen at; 0 takes a free one.", "--port")]
Name = Annotated[str | None, panel(SERVING, "Name by which clients ask for the model [that of --model].", "--name")]
Receipts = Annotated[
    Path | None, panel(SERVING, "JSONL file that gets a receipt of every text, never the text.", "--receipts")
]
Grace = Annotated[float, panel(SERVING, "Seconds that requests under way have when the server is stopped.", "--grace")]

BatchSize = Annotated[int, panel(LIMITS, "Texts decoded at once.", "--batch-size")]
Drafts = Annotated[
    bool,
    panel(opt.RUNNING, "Check tokens ahead that the prompt or the text suggests; the texts stay the same.",
          "--drafts/--no-drafts"),
]  # fmt: skip
MaxLength = Annotated[int, panel(LIMITS, "Most tokens of a text, its prompt included.", "--max-length")]
MaxWaiting = Annotated[int, panel(LIMITS, "Texts that may wait; more are refused with 429.", "--max-waiting")]
MaxChoices = Annotated[int, panel(LIMITS, "Texts that one request may ask for.", "--max-choices")]
MaxConnections = Annotated[int, panel(LIMITS, "Connections of all clients together.", "--max-connections")]
Proxies = Annotated[
    list[str] | None,
    panel(SERVING, "Address or network of a proxy whose word for the client's address is taken; may be repeated.",
          "--proxy"),
]  # fmt: skip
MaxBody = Annotated[int, panel(LIMITS, "Bytes that a request may have.", "--max-body")]
Timeout = Annotated[float, panel(LIMITS, "Seconds that a request may take in all.", "--timeout")]
ReadTimeout = Annotated[float, panel(LIMITS, "Seconds in which a request must have come.", "--read-timeout")]
WriteTimeout = Annotated[
    float, panel(LIMITS, "Seconds after which a client that takes nothing is left.", "--write-timeout")
]

FoundAt = Annotated[
    float | None,
    panel(MARKING, "Test finished texts at this false-positive rate; make those that are not found again, more "
          "strongly, unless they were streamed.", "--found-at"),
]  # fmt: skip
Strict = Annotated[
    bool, panel(MARKING, "No text leaves that is not found; streams then send finished texts.", "--strict")
]
MaxAttempts = Annotated[int, panel(MARKING, "How often a text may be made in all.", "--max-attempts")]
ExemptBelow = Annotated[
    int, panel(MARKING, "Leave requests for fewer new tokens than this unmarked; 0 marks all.", "--exempt-below")
]
ExemptJson = Annotated[bool, panel(MARKING, "Leave texts in JSON mode unmarked.", "--exempt-json")]
ExemptTools = Annotated[bool, panel(MARKING, "Leave calls of functions unmarked.", "--exempt-tools")]
ExemptThinking = Annotated[
    bool, panel(MARKING, "Leave the thinking section that a text begins with unmarked.", "--exempt-thinking")
]
MaxFactor = Annotated[
    float,
    panel(MARKING, "Greatest strength of a text, as a multiple of the policy's; found texts need some.",
          "--max-strength-factor"),
]  # fmt: skip


def check_access(settings: ServerSettings, key: str | None) -> None:
    """Raise ValueError where strangers could reach a server that knows no API keys, or nothing marks."""
    if settings.proxies:
        raise ValueError("a server without a registry of API keys must not be reached by proxies, got --proxy; leave "
                         "it out")  # fmt: skip
    if not settings.local:
        raise ValueError(
            "a server without a registry of API keys must listen at this machine alone, got another --host; leave "
            "--host out"
        )
    if key is None:
        raise ValueError("the server needs a key to mark with, got none; set CAW_KEY or give --key")


def check_registry(key: str | None, receipts: Path | None) -> str:
    """A key that marks nothing, where the registry's keys mark. Raises ValueError for what a registry stands in for."""
    for option, given in (("--key or CAW_KEY", key), ("--receipts", receipts)):
        if given is not None:
            raise ValueError(f"a registry has its own keys and receipts, got {option} as well; leave it out")
    return str(secrets.randbits(63))


def tell_open(log: ReceiptLog) -> None:
    """Say what an earlier end of this or another server cut off. Raises ValueError where the log was tampered with."""
    still = log.resume()
    if still:
        tell(f"{still} receipts are open: of texts that a server which died was making, or that another makes now")


def tell_level(level: float | None) -> None:
    """Say it where a text may be found before it leaves and not be called marked by the detection of this server.

    level: --found-at.
    """
    from caw.serve.contracts import LEVEL

    if level is not None and level > LEVEL:
        tell(f"--found-at {level:g} is above {LEVEL:g}, at which this server's detection calls a text marked")


def watermark_of(found: Registry | None, name: str | None, key: str, options: dict[str, Any]) -> Watermark:
    """The watermark that is asked for, or that of the registry's keys that mark now; kgw where there are none.

    Raises ValueError for none, and where a key that marks now has another: its texts would not be found.
    """
    from caw.watermarks.registry import reads_alike, watermark_from

    asked = name is not None or any(value is not None for value in options.values())
    mark = opt.build_watermark(name or "kgw", key, options)
    if mark is None:
        raise ValueError("the server marks all it says, got --watermark none; choose another")
    if found is None:
        return mark
    now = found.database.clock()
    keys = [(each, each.state(now), watermark_from(each.watermark, mark.secret)) for each in found.marking.every()]
    valid = [own for _, state, own in keys if state == "valid"]
    if not asked and valid:
        mark = valid[0]
    for each, state, own in keys:
        unlike = not reads_alike(mark, own) or (not asked and mark != own)
        if state == "valid" and unlike:
            raise ValueError(
                f"one server marks with one watermark, got {mark} and key {each.id} of {each.tenant} with {own}; give "
                "--watermark and its options where they differ in strength alone, else a registry of its own"
            )
        if state == "waiting" and unlike:
            tell(f"key {each.id} of {each.tenant} will mark with {own} from {each.not_before}: start anew then")
    return mark


def single_tenant(key: str, watermark: Any, settings: ServerSettings) -> KeyDirectory:
    """Everybody, under one key."""
    from caw.serve.contracts import MarkKey, Tenant
    from caw.serve.single import SingleTenant

    return SingleTenant(Tenant(ONLY, MarkKey(watermark.key_id, opt.parse_key(key)), settings.rules))


def receipt_log(path: Path | None) -> ReceiptLog:
    """Where receipts go."""
    from caw.serve.receipt_files import JsonlReceipts, NoReceipts

    return NoReceipts() if path is None else JsonlReceipts(path)


def tell(line: str) -> None:
    typer.echo(f"caw: {line}", err=True)
