"""What the server asks of a registry of keys and of a log of receipts; `caw.registry` has those that keep a database.

Everything here is called from several threads at once, never from the event loop, so it may wait for a disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from caw.checks import require_bool, require_int, require_number

LEVEL = 1e-3  # share of unmarked texts that the detection service may call marked, all keys together
Key = int | str | bytes  # what a watermark takes
Ending = Literal["complete", "cancelled", "failed"]


@dataclass(frozen=True)
class MarkKey:
    """A key that marks, or did once. id: names it in receipts and reports, and says nothing of it.

    watermark: with which it marks, as `caw.watermarks.registry.said_of` tells it; empty = the server's.
    """

    id: str
    key: Key = field(repr=False)
    watermark: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MarkRules:
    """What of a tenant's texts is marked; by default all of it.

    found_at: p-value at which finished texts are tested, over all keys that detection tries, None = no test; those that
    are not sent while they are made are made again, more strongly, where they are not found. strict: no text leaves
    that is not found, so that none is sent while it is made. strength_factor: of the policy's strength. exempt_below:
    requests whose greatest number of new tokens is smaller are not marked. exempt_json, exempt_tools, exempt_thinking:
    whether answers in JSON mode, tool calls and thinking sections are left unmarked.

    Raises TypeError or ValueError naming the rule.
    """

    found_at: float | None = None
    strict: bool = False
    strength_factor: float = 1.0
    exempt_below: int = 0
    exempt_json: bool = False
    exempt_tools: bool = False
    exempt_thinking: bool = False

    def __post_init__(self) -> None:
        if self.found_at is not None:
            require_number("found_at", self.found_at, 0, 1, closed=False)
        require_number("strength_factor", self.strength_factor, 0, 100, closed=True)
        if self.strength_factor == 0:
            raise ValueError("strength_factor must be above 0, got 0, which marks nothing; use a key that may opt out")
        require_int("exempt_below", self.exempt_below, 0, 1 << 24)
        if self.strict and self.found_at is None:
            raise ValueError("strict belongs to found_at, which is missing; give e.g. found_at=1e-3, or leave it out")
        for name in ("strict", "exempt_json", "exempt_tools", "exempt_thinking"):
            require_bool(name, getattr(self, name))


@dataclass(frozen=True)
class Tenant:
    """Who asks, and how their texts are marked.

    key: the one that marks now. rules: None = the server's. may_opt_out: whether a request may ask for no mark.
    tried: how many keys a detection of its texts tries now: its own, or all public ones where key is public, whichever
    are more.
    """

    id: str
    key: MarkKey
    rules: MarkRules | None = None
    may_opt_out: bool = False
    tried: int = 1

    def __post_init__(self) -> None:
        require_int("tried", self.tried, 1, 1 << 32)


class KeyDirectory(Protocol):
    """Who may ask, and which keys are theirs."""

    def tenant_for(self, bearer: str | None) -> Tenant | None:
        """The tenant of an API key (None = the request had none); None for a stranger. Constant time in the secret.

        Raises where the tenant has no key that marks now: the request then fails, and nothing leaves unmarked.
        """

    def detection_keys(self, tenant: Tenant | None) -> Sequence[MarkKey]:
        """Every key that a text of the tenant may be marked with, old ones too, the current first; None = the public's.

        Empty where there are none.
        """


@dataclass(frozen=True)
class Begun:
    """What is known of a text before its first byte leaves.

    id: of the receipt, a random UUID. request: id that the client gets. choice: number of the text in its request.
    key_id: of the key that marks, "" where nothing does. unmarked: why nothing marks, "" where something does.
    watermark, policy: with their numbers. found_at: p-value that the text is to reach under its key, None = no test.
    keys: how many a detection of the text tried then; over all of them found_at makes 1 - (1 - found_at)^keys.
    time: Unix, s.
    """

    id: str
    request: str
    choice: int
    tenant: str
    key_id: str
    model: str
    watermark: str
    policy: str
    unmarked: str
    found_at: float | None
    time: float
    keys: int = 1


@dataclass(frozen=True)
class Closed:
    """What is known of a text once all of it has been decided, before the client learns that it is complete.

    ending: "cancelled" where the client left, "failed" where the server gave up; then the rest is of what was sent.
    finish_reason: the client's; "" where there is none. p_value: that the text reaches under its key, None where
    nothing marked it, nothing was sent, or it could not be told. found: what the test said of it, None without one;
    reason: why the text that was made was not found.
    attempts: how often the text was made. tokens: new ones. digest: SHA-256 of the text's UTF-8, in hex. time: Unix, s.
    tested: all of the test, as `caw.generate` tells it of its own texts (`caw.found.receipts.Receipt.as_dict`), so that
    `caw detect --receipt` can repeat it; None without a test of the text that was sent.
    """

    ending: Ending
    finish_reason: str
    p_value: float | None
    found: bool | None
    reason: str
    attempts: int
    tokens: int
    digest: str
    time: float
    tested: Mapping[str, Any] | None = None


class ReceiptHandle(Protocol):
    """A receipt that has begun."""

    def close(self, closed: Closed) -> None:
        """Make the rest durable before returning; raises where that fails. Called once."""


class ReceiptLog(Protocol):
    """Keeps a receipt of every text, never the text."""

    def begin(self, begun: Begun) -> ReceiptHandle:
        """Make the beginning durable before returning; raises where that fails, and then no byte leaves."""

    def check(self) -> None:
        """Raise OSError in one sentence where no receipt could be written now; `/health` asks."""

    def resume(self) -> int:
        """How many receipts are open; called when a server starts. ValueError where the log was tampered with."""
