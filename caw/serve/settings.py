"""Settings of a server: one frozen, validated set."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from caw.checks import require_bool, require_choice, require_int, require_number
from caw.guard import Guard, read_guard
from caw.serve.contracts import MarkRules

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class ServerSettings:
    """Settings of one server.

    name: of the model in the API. host, port: address to listen on. rules: default rules of tenants. batch: texts
    decoded together. max_length: maximum tokens of a text, including its prompt. max_waiting: maximum queued texts;
    beyond that, requests get status 429. max_choices: maximum texts per request. max_connections: maximum open
    connections. proxies: addresses of trusted proxies in front of the server. sampling: default sampling of requests:
    "openai" = temperature 1, unfiltered; "model" = the model's generation config. drafts: speculative decoding where it
    pays, which changes no text. max_attempts: maximum attempts at a tested text. guard: what greedy texts
    that are tested and not streamed must keep of the unmarked ones, None = nothing. max_factor: maximum strength factor
    of a tenant. timeout: total seconds of a request. read_timeout: seconds for a request's head, and for its body.
    write_timeout: seconds in which a client may read next to nothing. grace: seconds for running requests at shutdown.
    max_body: bytes.

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
    sampling: str = "openai"
    max_attempts: int = 4
    guard: Guard | None = None
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
        require_choice("sampling", self.sampling, ("openai", "model"), "openai")
        for name in ("timeout", "read_timeout", "write_timeout"):
            require_number(name, getattr(self, name), 0, 86400, closed=False)
        require_number("grace", self.grace, 0, 86400, closed=True)
        for proxy in self.proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise ValueError(f"proxies must be addresses or networks, got {proxy!r}; give e.g. 10.0.0.7") from None
        object.__setattr__(self, "guard", read_guard(self.guard))
        require_number("max_factor", self.max_factor, 1, 100, closed=True)

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK
