"""The server of `caw serve` as a deployment of Ray Serve: replicas over one registry and one receipt log.

    serve run caw.serve.ray:app config=service.json

{
  "model": "smollm2-135m",
  "registry": "postgresql+psycopg://caw@db/caw",
  "watermark": {"name": "recommended"},
  "settings": {"name": "house-model", "batch": 8, "max_length": 2048},
  "replicas": {"least": 1, "most": 4, "requests": 8, "gpus": 1}
}
"""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caw.checks import require_int, require_number
from caw.integrations.profiles import named
from caw.io.json_files import read_settings
from caw.io.show import shown
from caw.policies.names import POLICIES, make_policy
from caw.requirements import require
from caw.watermarks import KGW
from caw.watermarks.names import WATERMARKS, watermark_from

if TYPE_CHECKING:
    from caw.serve.service import Service

LOG = logging.getLogger("caw.ray_serve")
VARIABLE = "CAW_RAY_SERVE_CONFIG"
ARGUMENT = "config"
EVERYWHERE = "0.0.0.0"  # Ray's proxies listen, and clients name them: no host is the server's own
OF_RAY = ("host", "port", "proxies", "max_connections", "read_timeout", "write_timeout")  # what its proxies decide
LAST = 60.0  # seconds for the last receipts, after those of running requests


@dataclass(frozen=True)
class Replicas:
    """Numbers of servers by the queue (least to most), of requests at once for each, and its gpus and cpus."""

    least: int = 1
    most: int = 1
    requests: int = 8
    gpus: float = 0
    cpus: float = 1

    def __post_init__(self) -> None:
        require_int("least", self.least, 1, 1 << 16)
        require_int("most", self.most, self.least, 1 << 16)
        require_int("requests", self.requests, 1, 1 << 16)
        require_number("gpus", self.gpus, 0, 64, closed=True)
        require_number("cpus", self.cpus, 0, 1 << 12, closed=True)


@dataclass(frozen=True)
class RayService:
    """A service, as its file says; replicas build it, so it holds no key.

    Args:
        model, device, dtype, quantization: as in `caw.load_model`. registry: its database; all replicas' keys and
            receipts are there, and CAW_MASTER_KEY of their nodes opens it.
        watermark: its name and arguments; None = that of the registry's keys, kgw if there are none.
        policy: its name and arguments; None = the watermark's own, or full strength.
        settings: of `caw.serve.settings.ServerSettings`, but for what Ray's proxies decide; rules: of its `rules`.
        replicas: see `Replicas`. threads: of each replica; None = PyTorch's own.

    Raises TypeError or ValueError, in one sentence, for what cannot be.
    """

    model: str
    registry: str = field(repr=False)
    watermark: Mapping[str, Any] | None = None
    policy: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    rules: Mapping[str, Any] = field(default_factory=dict)
    replicas: Replicas = field(default_factory=Replicas)
    device: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("model", "registry"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name} must be given as text, got {shown(getattr(self, name))}; see docs/deploy.md")
        if taken := sorted(set(self.settings) & {*OF_RAY, "rules"}):
            raise ValueError(f"settings must leave {taken[0]} to Ray or to its own field, got it; leave it out")
        if self.threads is not None:
            require_int("threads", self.threads, 1, 1 << 12)
        self.server_settings()
        self.made_policy()
        if self.watermark is not None:
            watermark_from(named(self.watermark, "watermark", WATERMARKS), 1)

    def server_settings(self) -> Any:
        from caw.serve.contracts import MarkRules
        from caw.serve.settings import ServerSettings

        said = {"name": Path(self.model).name, **self.settings}
        return _made(
            ServerSettings, "settings", {**said, "host": EVERYWHERE, "rules": _made(MarkRules, "rules", self.rules)}
        )

    def made_policy(self) -> Any:
        return None if self.policy is None else make_policy(**named(self.policy, "policy", POLICIES))

    def service(self) -> Service:
        """Load the model and open the registry, in a replica."""
        import torch

        from caw.models import load_model
        from caw.registry import open_registry
        from caw.registry.agreement import watermark_for
        from caw.serve.planning import Planned
        from caw.serve.service import Service

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        registry = open_registry(self.registry)
        nobodys = secrets.randbits(63)  # every text brings its tenant's key
        asked = None if self.watermark is None else watermark_from(self.watermark, nobodys)
        mark, remarks = watermark_for(registry, asked or KGW(nobodys), asked=asked is not None)
        registry.receipts.check()
        for remark in remarks:
            LOG.warning(remark)
        model, tokenizer = load_model(self.model, device=self.device, dtype=self.dtype, quantization=self.quantization)
        planned = Planned(model, tokenizer, mark, self.made_policy(), self.server_settings())
        return Service(planned, registry.directory, registry.receipts, registry.secret)


def app(arguments: Mapping[str, Any]) -> Any:
    """The application that `serve run caw.serve.ray:app config=FILE` runs.

    arguments: `config`, the file's path; without it, CAW_RAY_SERVE_CONFIG names it. Raises ImportError without Ray
    Serve, ValueError in one sentence for a file that cannot be served.
    """
    if unknown := sorted(set(arguments) - {ARGUMENT}):
        raise ValueError(f"expected {ARGUMENT}=FILE, got {shown(unknown[0])}; leave it out")
    path = arguments.get(ARGUMENT) or os.environ.get(VARIABLE)
    if not path:
        raise ValueError(f"expected {ARGUMENT}=FILE or {VARIABLE}, got neither; see docs/deploy.md")
    return application(read_service(path))


def application(service: RayService) -> Any:
    require("ray", "caw.integrations.ray_serve")
    from ray import serve

    settings, replicas = service.server_settings(), service.replicas

    @serve.ingress()
    class Caw:
        """A replica: the application of `caw serve`, with its own model and engine."""

        def __init__(self, made: RayService) -> None:
            self.service = made.service()

        def __serve_build_asgi_app__(self) -> Any:
            from caw.serve.app import make_app

            return make_app(self.service)

        def check_health(self) -> None:
            """Raise if its engine has failed; Ray then starts another replica."""
            if self.service.engine.failed:
                raise RuntimeError("the engine has failed")

    scaling = {
        "min_replicas": replicas.least, "max_replicas": replicas.most, "target_ongoing_requests": replicas.requests,
    }  # fmt: skip
    deployment = serve.deployment(
        Caw,
        name="caw",
        autoscaling_config=scaling,
        # those beyond the batch wait in the replica, which answers 429 where too many do
        max_ongoing_requests=max(replicas.requests, settings.batch + settings.max_waiting),
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        graceful_shutdown_timeout_s=settings.grace + LAST,
        health_check_period_s=10,
    )
    return deployment.bind(service)


def read_service(path: str | Path) -> RayService:
    """Read the file of a service. ValueError, in one sentence, for one that is missing or says what cannot be."""
    said = read_settings(Path(path), "the file of a service", "see docs/deploy.md")
    try:
        said["replicas"] = _made(Replicas, "replicas", said.get("replicas", {}))
        found: RayService = _made(RayService, "the file", said)
        return found
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _made(kind: Any, what: str, said: Any) -> Any:
    """An object of these fields; ValueError for a field that there is not."""
    if not isinstance(said, Mapping):
        raise ValueError(f"{what} must be an object, got {type(said).__name__}; see docs/deploy.md")
    known = [each.name for each in dataclasses.fields(kind)]
    if unknown := sorted(set(said) - set(known)):
        raise ValueError(f"{what} may have {', '.join(known)}, got {shown(unknown[0])}; leave it out")
    missing = [each.name for each in dataclasses.fields(kind)
               if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
               and each.name not in said]  # fmt: skip
    if missing:
        raise ValueError(f"{what} must have {missing[0]}, found none; add it")
    return kind(**said)
