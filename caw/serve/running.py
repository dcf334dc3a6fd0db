"""The server process: sockets, signals, and graceful shutdown."""

import contextlib
import resource
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from caw.serve.app import make_app
from caw.serve.connections import protocol_for
from caw.serve.desk import Desk

OWN_FILES = 256  # files of a server besides its connections: libraries, receipts, databases


def server_for(service: Desk, tell: Callable[[str], None] = lambda where: None) -> "QuietServer":
    """Return a uvicorn server of a service; `.run()` serves until SIGINT, SIGTERM or SIGHUP, then finishes what runs.

    tell: called with its URL once it listens. ValueError if a process may not have that many connections.
    """
    settings = service.settings
    _allow_files(settings.max_connections)
    config = uvicorn.Config(
        make_app(service), host=settings.host, port=settings.port, http=protocol_for(settings), ws="none",
        loop="asyncio", log_level="warning", access_log=False, server_header=False, date_header=False,
        proxy_headers=bool(settings.proxies), forwarded_allow_ips=list(settings.proxies),
        timeout_keep_alive=int(settings.read_timeout) or 1, timeout_graceful_shutdown=int(settings.grace),
        limit_concurrency=None, backlog=1024,
    )  # fmt: skip
    return QuietServer(config, tell)


class QuietServer(uvicorn.Server):
    """Reports its address, and exits normally on a signal instead of raising it again."""

    def __init__(self, config: uvicorn.Config, tell: Callable[[str], None]) -> None:
        super().__init__(config)
        self.tell = tell

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.tell(self.url)

    @property
    def url(self) -> str:
        """Its URL; known once it has started."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup; a closed terminal ends it well
            numbers.append(signal.SIGHUP)
        try:
            before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        except ValueError:  # not in the main thread: whoever runs it there ends it by `should_exit`
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _allow_files(connections: int) -> None:
    """Raise this process's file limit for this many connections. ValueError if the system does not allow it."""
    least, (soft, hard) = connections + OWN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < least:
        raise ValueError(
            f"max_connections must be at most {hard - OWN_FILES}, as many files as a process may have here, got "
            f"{connections}; choose fewer, or raise the limit (`ulimit -Hn`)"
        )
    if soft != resource.RLIM_INFINITY and soft < least:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))
