"""Settings of a server: one frozen, validated set."""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from caw.checks import require_bool, require_choice, require_int, require_number
from caw.flags import LIMITS, MARKED, RUNNING, SERVING, flag
from caw.guard import Guard, read_guard
from caw.io.inputs import read_text
from caw.manifest import Signer
from caw.serve.contracts import MarkRules
from caw.settings import KEEPS

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class ServerSettings:
    """Settings of one server; each is explained by the help of its option.

    name: of the model in the API. rules: default rules of tenants.

    Raises TypeError or ValueError naming the setting.
    """

    name: str
    host: str = flag("127.0.0.1", "Address to listen on; 127.0.0.1 accepts only local connections.", SERVING)
    port: int = flag(8000, "Port to listen on; 0 picks a free port.", SERVING)
    rules: MarkRules = field(default_factory=MarkRules)
    batch: int = flag(8, "Batch size: texts decoded together.", LIMITS, "--batch-size")
    max_length: int = flag(2048, "Maximum tokens per text, including the prompt.", LIMITS)
    max_waiting: int = flag(256, "Maximum queued texts; beyond that, requests get status 429.", LIMITS)
    max_choices: int = flag(16, "Maximum choices per request.", LIMITS)
    max_connections: int = flag(1000, "Maximum open connections.", LIMITS)
    proxies: tuple[str, ...] = flag(
        (), "Address or network of a trusted proxy, whose X-Forwarded-For is used; repeatable.", SERVING, "--proxy",
        kind=list[str],
    )  # fmt: skip
    c2pa_certificate: str | None = flag(
        None, "PEM file with a certificate and its issuers': answers carry C2PA manifests.", SERVING, metavar="FILE"
    )
    c2pa_key: str | None = flag(None, "PEM file with the certificate's private key.", SERVING, metavar="FILE")
    aigc_producer: str | None = flag(
        None, "The provider's code: label texts as China's GB 45438-2025 asks.", SERVING, metavar="CODE"
    )
    drafts: bool = flag(
        True, "Speculative decoding by n-gram lookup; texts do not change.", RUNNING, "--drafts/--no-drafts"
    )
    sampling: str = flag(
        "openai", "Default sampling of requests: temperature 1 (openai), or the model's generation config (model).",
        SERVING, metavar="openai|model",
    )  # fmt: skip
    max_attempts: int = flag(4, "Maximum attempts per text.", MARKED)
    guard: Guard | None = flag(
        None, "Change greedy texts that are tested only where they keep this of the unmarked text.",
        MARKED, kind=str, metavar=KEEPS,
    )  # fmt: skip
    max_factor: float = flag(
        1.0, "Maximum strength of a retry, as a multiple of the policy's strength.", MARKED, "--max-strength-factor"
    )
    timeout: float = flag(600.0, "Request timeout in seconds.", LIMITS)
    read_timeout: float = flag(20.0, "Read timeout: seconds to receive a complete request.", LIMITS)
    write_timeout: float = flag(
        30.0, "Write timeout: seconds without the client reading before it is disconnected.", LIMITS
    )
    grace: float = flag(30.0, "Grace period for running requests at shutdown, in seconds.", SERVING)
    max_body: int = flag(1 << 20, "Maximum request size in bytes.", LIMITS)

    def __post_init__(self) -> None:
        if not self.name or not self.host:
            raise ValueError(f"name and host must not be empty, got {self.name!r} and {self.host!r}; leave them out")
        for name, low, high in (
            ("port", 0, 65535), ("batch", 1, 1 << 16), ("max_length", 2, 1 << 24), ("max_waiting", 0, 1 << 20),
            ("max_choices", 1, 1024), ("max_connections", 1, 1 << 20),
            ("max_attempts", 1, 100), ("max_body", 1024, 1 << 30),
        ):  # fmt: skip
            require_int(name, getattr(self, name), low, high)
        if (self.c2pa_certificate is None) != (self.c2pa_key is None):
            raise ValueError("c2pa_certificate and c2pa_key require each other, got one; give both or none")
        if self.aigc_producer is not None and not self.aigc_producer.strip():
            raise ValueError("aigc_producer must be the provider's code, got a blank text; leave it out for no labels")
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

    def signer(self) -> Signer | None:
        """Return what signs manifests, None = nothing. ImportError, OSError or ValueError if its files do not fit."""
        if self.c2pa_certificate is None or self.c2pa_key is None:
            return None
        return Signer(read_text(Path(self.c2pa_certificate)), read_text(Path(self.c2pa_key)))

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK
