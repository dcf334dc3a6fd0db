"""A server as a process of its own, with a tiny model and a registry, and what an attacker does to it by hand."""

import contextlib
import http.client
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve.serving import NAME, Process

from caw.registry import Registry, open_registry
from caw.registry.master_key import MasterKeys, new_master_key

FAULTS = re.compile("Traceback|Fatal error|Exception|never retrieved")


@dataclass
class Keep:
    url: str
    master: str
    tokens: dict[str, str] = field(repr=False)

    @classmethod
    def build(cls, url: str) -> "Keep":
        master = new_master_key()
        with cls(url, master, {}).opened(create=True) as registry:
            for tenant in ("acme", "other"):
                registry.marking.create(tenant, public=tenant == "acme")
            tokens = {tenant: registry.api.create(tenant)[1] for tenant in ("acme", "other")}
        return cls(url, master, tokens)

    @contextlib.contextmanager
    def opened(self, *, create: bool = False) -> Iterator[Registry]:
        registry = open_registry(self.url, MasterKeys.read({"CAW_MASTER_KEY": self.master}), create=create)
        try:
            yield registry
        finally:
            registry.close()


class Besieged(Process):
    """A server that is attacked; options: more of `caw serve`."""

    def __init__(self, model: Path, keep: Keep, *options: str) -> None:
        self.keep = keep
        super().__init__(
            "--model", str(model), "--name", NAME, "--registry", keep.url, "--threads", "1", "--max-length", "512",
            "--dtype", "float32", "--policy", "fixed", *options, CAW_MASTER_KEY=keep.master,
        )  # fmt: skip
        self.port = int(self.url.rsplit(":", 1)[1])

    def stop(self) -> None:
        super().stop()
        self.check_log()

    def check_log(self) -> None:
        log = "".join(self.said)
        assert not FAULTS.search(log), log
        assert not any(token in log for token in self.keep.tokens.values()) and self.keep.master not in log

    def connect(self, seconds: float = 60) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=seconds)

    def head(self, length: int, *, path: str = "/v1/completions", key: str = "acme") -> bytes:
        """The head of a request, after which the server is to close."""
        token = self.keep.tokens.get(key, key)
        return (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        ).encode()

    def request(self, *, key: str = "acme", path: str = "/v1/completions", **settings: Any) -> bytes:
        asked = {"model": NAME, "prompt": "the sky", "max_tokens": 8, "temperature": 0, **settings}
        body = json.dumps(asked).encode()
        return self.head(len(body), path=path, key=key) + body

    def complete(self, **settings: Any) -> str:
        with self.connect(120) as connection:
            connection.sendall(self.request(**settings))
            head, _, body = receive(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), body
        return str(json.loads(body)["choices"][0]["text"])

    def patience(self) -> float:
        started = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()
        return time.monotonic() - started

    @property
    def resident(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def metric(self, name: str) -> float:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        [value] = [float(line.split()[1]) for line in lines if line.startswith(f"{name} ")]
        return value

    def idle(self, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while self.metric("caw_active_texts") or self.metric("caw_waiting_texts"):
            assert time.monotonic() < end, "texts of nobody go on"
            time.sleep(0.05)


def receive(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)
