"""A server with a tiny model in a thread of this process, and OpenAI's own client."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import openai
from tiny import tiny_model, tiny_tokenizer

import caw
from caw.serve.contracts import Begun, Closed, MarkKey, MarkRules, Tenant
from caw.serve.planning import Planned
from caw.serve.running import QuietServer, server_for
from caw.serve.service import Service
from caw.serve.settings import ServerSettings
from caw.watermarks import Watermark

NAME, KEY, OTHER = "tiny", 42, "another secret"
MARK = caw.KGW(key=1)


@functools.cache
def parts() -> tuple[Any, Any]:
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


@dataclass
class Kept:
    """A receipt log in memory that can be made to fail. begun, closed: in order. fails: "begin", "close" or ""."""

    begun: list[Begun] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    fails: str = ""

    def begin(self, begun: Begun) -> "_Handle":
        if self.fails == "begin":
            raise OSError("no space left on device")
        self.begun.append(begun)
        return _Handle(self)

    def check(self) -> None:
        if self.fails:
            raise OSError("no space left on device")

    def resume(self) -> int:
        return len(self.begun) - len(self.closed)


@dataclass
class _Handle:
    log: Kept
    done: bool = False

    def close(self, closed: Closed) -> None:
        if self.log.fails == "close":
            raise OSError("no space left on device")
        assert not self.done, "closed twice"
        self.done = True
        self.log.closed.append(closed)


@dataclass
class Directory:
    """Tenants by API key; no other key is known."""

    tenants: dict[str, Tenant]

    def tenant_for(self, bearer: str | None) -> Tenant | None:
        if bearer == "lost":
            raise ValueError("tenant lost must have an active marking key, found none")
        return self.tenants.get(bearer or "")

    def detection_keys(self, tenant: Tenant | None) -> tuple[MarkKey, ...]:
        return () if tenant is None else (tenant.key,)


DIRECTORY = Directory(
    {
        "one": Tenant("one", MarkKey("k1", KEY)),
        "two": Tenant("two", MarkKey("k2", OTHER)),
        "free": Tenant("free", MarkKey("k1", KEY), may_opt_out=True),
        "short": Tenant("short", MarkKey("k1", KEY), MarkRules(exempt_below=10)),
        "strong": Tenant("strong", MarkKey("k1", KEY), MarkRules(strength_factor=50)),
        "strict": Tenant("strict", MarkKey("k1", KEY), MarkRules(detectable_at=1e-3, strict=True)),
        "long": Tenant("long", MarkKey("k1", KEY), MarkRules(1e-9, True, 30)),
        "half": Tenant("half", MarkKey("k1", KEY), MarkRules(detectable_at=1e-2, strength_factor=0.5)),
        "many": Tenant("many", MarkKey("k1", KEY), MarkRules(detectable_at=1e-2, strength_factor=0.5), tried=200),
        "found": Tenant("found", MarkKey("k1", KEY), MarkRules(detectable_at=1e-3)),
        "weak": Tenant("weak", MarkKey("k1", KEY), MarkRules(detectable_at=1e-2, strength_factor=0.1)),
    }
)


@dataclass
class Running:
    service: Service
    server: QuietServer
    log: Kept

    @property
    def port(self) -> int:
        return int(self.server.url.rsplit(":", 1)[1])

    def client(self, key: str = "one") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.server.url}/v1", api_key=key, max_retries=0, timeout=60)

    def complete(self, prompt: Any, *, key: str = "one", **settings: Any) -> Any:
        asked = {"model": NAME, "temperature": 0, **settings}
        return self.client(key).completions.create(prompt=prompt, **asked)

    def idle(self) -> None:
        engine = self.service.engine
        until(lambda: engine.inbox.under_way == engine.active == 0 and len(self.log.closed) == len(self.log.begun))


@contextlib.contextmanager
def running(
    watermark: Watermark = MARK, policy: Any = None, directory: Any = DIRECTORY, log: Any = None, **settings: Any
) -> Iterator[Running]:
    """A server, stopped at the end of the block; settings: of `ServerSettings`."""
    chosen = ServerSettings(**{"name": NAME, "port": 0, "max_length": 256, "grace": 5.0, **settings})
    log = Kept() if log is None else log
    service = Service(Planned(*parts(), watermark, policy, chosen), directory, log)
    started = threading.Event()
    server = server_for(service, lambda url: started.set())
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert started.wait(60)
    try:
        yield Running(service, server, log)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def until(reached: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def alone(prompt: Any, *, count: int = 1, key: Any = KEY, **settings: Any) -> list[str]:
    """What `caw.generate` gives for the same request by itself; key None: unmarked."""
    mark = None if key is None else MARK.with_key(key)
    return list(caw.generate(*parts(), [prompt] * count, watermark=mark, progress=False, **settings).texts)


def chat_ids(*messages: dict[str, str]) -> list[int]:
    _, tokenizer = parts()
    text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


class Process:
    """`caw serve` in a process of its own, whose log is read all the while. secrets: of its environment."""

    def __init__(self, *arguments: str, command: str = "serve", **secrets: str) -> None:
        self.said: list[str] = []
        inherited = {name: value for name, value in os.environ.items() if name not in ("CAW_KEY", "CAW_REGISTRY")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "caw.cli", command, "--port", "0", *arguments],
            env={**inherited, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **secrets}, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self.listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.listening.wait(120), "".join(self.said)
        [self.url] = [line.split("listening at ")[1].strip() for line in self.said if "listening at " in line]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if "listening at " in line:
                self.listening.set()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(90) == 0, "".join(self.said)
        self._reader.join(10)
