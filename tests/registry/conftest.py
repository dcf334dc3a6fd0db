"""A registry of its own for every test, and a clock that the test sets."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from caw.registry import Registry, open_registry
from caw.registry.master_key import MasterKeys

START = datetime(2026, 12, 1, 12, tzinfo=timezone.utc)


@dataclass
class Clock:
    now: datetime = START

    def __call__(self) -> datetime:
        return self.now

    def later(self, **time: float) -> datetime:
        self.now += timedelta(**time)
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def masters() -> MasterKeys:
    return MasterKeys((bytes(range(32)),))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'keys.db'}"


@pytest.fixture
def registry(url: str, masters: MasterKeys, clock: Clock) -> Iterator[Registry]:
    opened = open_registry(url, masters, create=True, clock=clock)
    yield opened
    opened.close()
