"""How a server serves: one frozen, validated set of settings."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from caw.checks import require_bool, require_int, require_number
from caw.serve.contracts import MarkRules

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class ServerSettings:
    """Settings of one server.

    name: under which clients ask for the model. host, port: where it listens.
    rules: what of a text is marked where a tenant has no rules of its own.
    batch: texts decoded at once. max_length: tokens of a text, its prompt included. max_waiting: texts that may wait
    for a row; the next one is refused with 429. max_choices: texts of one request. max_connections: of all clients.
    proxies: addresses of proxies in front of the server, whose word for the client's address is taken.
    drafts: whether tokens are guessed and checked ahead where that pays, which changes no text.
    max_attempts: how often a tested text may be made. max_factor: the greatest strength factor of a tenant.
    timeout: seconds of a request in all. read_timeout: of a request's head, and of its body. write_timeout: for which a
    client may take next to nothing. grace: for requests under way when the server is told to stop. max_body: bytes.

    Raises TypeError or ValueError naming the setting.
    """

    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    rules: MarkRules = field(default_factory=MarkRules)
    batch: int = 8
    max_length: int = 2048
    max_waiting: int = 256
    max_choices: int = 16
    max_connections: int = 1000
    proxies: tuple[str, ...] = ()
    drafts: bool = True
    max_attempts: int = 4
    max_factor: float = 1.0
    timeout: float = 600.0
    read_timeout: float = 20.0
    write_timeout: float = 30.0
    grace: float = 30.0
    max_body: int = 1 << 20

    def __post_init__(self) -> None:
        if not self.name or not self.host:
            raise ValueError(f"name and host must not be empty, got {self.name!r} and {self.host!r}; leave them out")
        for name, low, high in (
            ("port", 0, 65535), ("batch", 1, 1 << 16), ("max_length", 2, 1 << 24), ("max_waiting", 0, 1 << 20),
            ("max_choices", 1, 1024), ("max_connections", 1, 1 << 20),
            ("max_attempts", 1, 100), ("max_body", 1024, 1 << 30),
        ):  # fmt: skip
            require_int(name, getattr(self, name), low, high)
        require_bool("drafts", self.drafts)
        for name in ("timeout", "read_timeout", "write_timeout"):
            require_number(name, getattr(self, name), 0, 86400, closed=False)
        require_number("grace", self.grace, 0, 86400, closed=True)
        for proxy in self.proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise ValueError(f"proxies must be addresses or networks, got {proxy!r}; give e.g. 10.0.0.7") from None
        require_number("max_factor", self.max_factor, 1, 100, closed=True)

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK
