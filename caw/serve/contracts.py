"""Interfaces of the key registry and the receipt log; `caw.registry` implements them over a database.

All methods are called from several threads at once, never from the event loop, so they may wait for a disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from caw.checks import require_bool, require_int, require_number
from caw.flags import MARKED, flag

LEVEL = 1e-3  # share of unmarked texts that the detection service may call marked, all keys together
Key = int | str | bytes  # what a watermark takes
Ending = Literal["complete", "cancelled", "failed"]


@dataclass(frozen=True)
class MarkKey:
    """A marking key, current or former. id: names it in receipts and reports without revealing it.

    watermark: as described by `caw.watermarks.names.said_of`; empty = the server's.
    """

    id: str
    key: Key = field(repr=False)
    watermark: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MarkRules:
    """Which of a tenant's texts are marked; by default all.

    detectable_at: over all keys that detection tries, None = no test.

    Raises TypeError or ValueError naming the rule.
    """

    detectable_at: float | None = flag(
        None, "Test finished texts at this false-positive rate; unless streamed, retry with a stronger mark until "
        "detected.", MARKED,
    )  # fmt: skip
    strict: bool = flag(False, "Send only texts that are detected; streams then send finished texts.", MARKED)
    strict_from: int = flag(0, "With --strict, send shorter texts than this many tokens even undetected.", MARKED)
    strength_factor: float = flag(1.0, "Factor on the strength of the server's policy.", None)
    exempt_below: int = flag(0, "Do not mark requests for fewer new tokens than this; 0 marks all.", MARKED)
    exempt_json: bool = flag(False, "Do not mark JSON mode.", MARKED)
    exempt_tools: bool = flag(False, "Do not mark tool calls.", MARKED)
    exempt_thinking: bool = flag(False, "Do not mark the thinking section at the start of a text.", MARKED)

    def __post_init__(self) -> None:
        if self.detectable_at is not None:
            require_number("detectable_at", self.detectable_at, 0, 1, closed=False)
        require_number("strength_factor", self.strength_factor, 0, 100, closed=True)
        if self.strength_factor == 0:
            raise ValueError(
                "strength_factor must be above 0, got 0, which marks nothing; use an API key that may opt out"
            )
        require_int("exempt_below", self.exempt_below, 0, 1 << 24)
        if self.strict and self.detectable_at is None:
            raise ValueError("strict requires detectable_at; give e.g. detectable_at=1e-3, or leave it out")
        require_int("strict_from", self.strict_from, 0, 1 << 24)
        if self.strict_from and not self.strict:
            raise ValueError("strict_from requires strict; give it, or leave strict_from out")
        for name in ("strict", "exempt_json", "exempt_tools", "exempt_thinking"):
            require_bool(name, getattr(self, name))


@dataclass(frozen=True)
class Tenant:
    """The tenant of a request, and how its texts are marked.

    key: the active one. rules: None = the server's. may_opt_out: whether a request may ask for unmarked text. tried:
    number of keys that detection of its texts tries now: its own, or all public ones if key is public, whichever is
    more.
    """

    id: str
    key: MarkKey
    rules: MarkRules | None = None
    may_opt_out: bool = False
    tried: int = 1

    def __post_init__(self) -> None:
        require_int("tried", self.tried, 1, 1 << 32)


class KeyDirectory(Protocol):
    """Looks up tenants and their keys."""

    def tenant_for(self, bearer: str | None) -> Tenant | None:
        """Return the tenant of an API key (None = no key in the request); None if unknown. Constant time in the secret.

        Raises if the tenant has no active key: the request then fails, and nothing is sent unmarked.
        """

    def detection_keys(self, tenant: Tenant | None) -> Sequence[MarkKey]:
        """Return every key that may have marked a text of the tenant, including old ones, the current one first; None =
        the public's.

        Empty if there are none.
        """


@dataclass(frozen=True)
class Begun:
    """The facts about a text that are known before its first byte is sent.

    id: of the receipt, a random UUID. request: id for the client. choice: number of the text in its request. key_id: of
    the marking key, "" if unmarked. unmarked: why it is unmarked, "" if marked. watermark, policy: with their
    parameters. detectable_at: p-value that the text should reach under its key, None = no test. keys: number of keys
    that detection tried at that time; over all of them detectable_at becomes 1 - (1 - detectable_at)^keys. time: Unix,
    s. continues: receipt id of the answer that this text continues, "" if it is new.
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
    detectable_at: float | None
    time: float
    keys: int = 1
    continues: str = ""


@dataclass(frozen=True)
class Closed:
    """The facts about a finished text, before the client learns that it is complete.

    ending: "cancelled" if the client disconnected, "failed" if the server gave up; the rest is then about the part that
    was sent. finish_reason: the client's; "" if none. p_value: of the text under its key, None if it is unmarked, if
    nothing was sent, or if it could not be computed. found: result of the test, None without one; reason: why the
    generated text was not detected.
    attempts: attempts at the text. tokens: generated ones; of a continued text all of them, and digest and p_value are
    of the whole text. marked: whether the client was told that it is marked. open: of the tokens, those that the mark
    could have chosen otherwise, None = the text did not end. digest: SHA-256 of the text's UTF-8, in hex. time: Unix,
    s.
    sketch: of the text, for the registry alone, b"" = none.
    tested: the full test, in the format of `caw.generate` (`caw.detectable.receipts.Receipt.as_dict`), so that `caw
    detect --receipt` can repeat it; None if the sent text was not tested.
    """

    ending: Ending
    finish_reason: str
    p_value: float | None
    detected: bool | None
    reason: str
    attempts: int
    tokens: int
    digest: str
    time: float
    tested: Mapping[str, Any] | None = None
    marked: bool = False
    open: int | None = None
    sketch: bytes = b""

    def as_dict(self) -> dict[str, Any]:
        """Return what is signed or written for others: all but the sketch."""
        return {name: value for name, value in asdict(self).items() if name != "sketch"}


class ReceiptHandle(Protocol):
    """An open receipt."""

    def close(self, closed: Closed) -> None:
        """Write the rest durably before returning; raises if that fails. Called once."""


class ReceiptLog(Protocol):
    """Stores a receipt of every text, never the text."""

    def begin(self, begun: Begun) -> ReceiptHandle:
        """Write the beginning durably before returning; raises if that fails, and then nothing is sent."""

    def check(self) -> None:
        """Raise OSError in one sentence if no receipt could be written now; `/health` calls this."""

    def resume(self) -> int:
        """Return the number of open receipts; called at startup. ValueError if the log was tampered with."""


@dataclass(frozen=True)
class SingleTenant:
    """A `KeyDirectory` that accepts any API key, or none."""

    tenant: Tenant

    def tenant_for(self, bearer: str | None) -> Tenant:
        return self.tenant

    def detection_keys(self, tenant: Tenant | None) -> Sequence[MarkKey]:
        return (self.tenant.key,)
