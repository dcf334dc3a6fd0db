"""Who asks, and tests of their texts: a server that only detects is this, and holds neither a model nor a log."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from caw.serve.contracts import KeyDirectory, Tenant
from caw.serve.description import describe
from caw.serve.detecting import Detection
from caw.serve.errors import DENIED, ApiError
from caw.serve.log_lines import LogLines
from caw.serve.reading import Reading

LOG = logging.getLogger("caw.serve")
WORKERS = 16  # threads that wait for registries and disks


class Desk:
    """Looks up who asks, and tests texts. reading: how. directory: of tenants. trust: PEM, issuers of manifests."""

    broken = "keys cannot be read"  # what `check` found

    def __init__(self, reading: Reading, directory: KeyDirectory, trust: str = "") -> None:
        self.reading, self.settings, self.directory, self.lines = reading, reading.settings, directory, LogLines(LOG)
        self.signer = self.settings.signer()
        self.detection = Detection(reading, directory, self.lines, self.signer.certificate if self.signer else trust)
        self.workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="caw-request")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.to_thread(self.workers.shutdown)
            await asyncio.to_thread(self.detection.close)

    @cached_property
    def description(self) -> dict[str, Any]:
        """What the server says of its mark; the digest of a large vocabulary takes longer than a step."""
        return describe(self.reading)

    @property
    def state(self) -> str:
        """Whether it runs: "ok", or what it does instead."""
        return "ok"

    def check(self) -> None:
        """Raise an error in one sentence if requests would fail now."""
        self.directory.detection_keys(None)

    async def threaded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a call that may wait for a disk or a database in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.workers, function, *arguments)

    async def visitor(self) -> Tenant | None:
        """Return the tenant of a request without an API key; None for the public."""
        try:
            tenant: Tenant | None = await self.threaded(self.directory.tenant_for, None)
        except Exception as error:
            self.lines.failed("a tenant could not be looked up", error)
            return None
        return tenant

    async def tenant(self, bearer: str | None) -> Tenant:
        """Return the tenant of a request. ApiError if unknown."""
        try:
            tenant = await self.threaded(self.directory.tenant_for, bearer)
        except Exception as error:
            self.lines.failed("a tenant could not be looked up", error)
            raise ApiError(503, "there is no active marking key, so no text is generated; ask the operator") from error
        if tenant is None:
            why = "the API key is missing or unknown; send one as a bearer token"
            raise ApiError(DENIED, why, code="invalid_api_key")
        return tenant
