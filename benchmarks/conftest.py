"""The benchmarks under pytest-benchmark: `make benchmark`, or `pytest benchmarks --benchmark-json=out.json`.

--size smoke: seconds, numbers that mean nothing. normal: minutes. full: hours.

pytest-benchmark times one test after the other, and a machine that gets busy meanwhile falls to whichever runs then.
Here all sides of a case take turns first; their tests then replay what each of them took, so that its tables, JSON
files, histograms and comparisons are about interleaved measurements.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the scripts beside this file

SIZES = ("smoke", "normal", "full")


class Replay:
    """A clock that moves by recorded times, and the settings of this session."""

    def __init__(self) -> None:
        self.now = 0.0
        self.results: Path | None = None

    def play(self, benchmark: Any, group: str, seconds: Sequence[float], **extra: Any) -> None:
        """Make `benchmark` report these times, a round each, with `extra` beside them."""
        times = iter(seconds)

        def target() -> None:
            self.now += next(times)

        benchmark.group = group
        benchmark.extra_info.update(extra)
        benchmark.pedantic(target, rounds=len(seconds), iterations=1, warmup_rounds=0)


REPLAY = Replay()


def replayed() -> float:
    return REPLAY.now


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--size", choices=SIZES, default="normal", help="of the benchmarks: %(choices)s")
    parser.addoption("--results", type=Path, help="a folder for the scripts' own result files, too")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("expected pytest-benchmark, found none; run `pip install 'caw-watermark[bench]'`")
    REPLAY.results = config.getoption("--results")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The replayed clock is the timer of every test here; a case may take long."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.benchmark(timer=replayed))
            item.add_marker(pytest.mark.timeout(0))


@pytest.fixture(scope="session")
def replay() -> Replay:
    return REPLAY
