"""What all tests share: seeds, the GPU rule, the demo model and the data folder."""

import math
import os
import random
import shutil
import signal
import sys
import time
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# a worker of pytest-xdist has one core to itself. Libraries count their threads when they are loaded, so this comes
# first; processes that a test starts inherit it
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

import numpy as np
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # what modules and sessions share is made before `threads` of the first test

# derandomised: the same examples in every run, here and in CI; no deadline: the machine may be shared
settings.register_profile("caw", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("caw")

# without a GPU kernels run in Triton's interpreter. Triton decides at its import, and transformers imports it (through
# torch._dynamo) as soon as any test module imports this library, so it is settled here, before all of them
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# nohup, and shells that run something in the background, let it ignore Ctrl-C, and all that a test starts inherits that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

WORKERS = pytest.StashKey[list[tuple[int, list[str]]]]()  # what each worker compared
TOOLS = {  # without which a gate is skipped
    "browser": ("chromium", "chromedriver"),
    "c2pa": ("openssl",),
    "fuzzer": ("g++",),
    "postgres": ("initdb", "pg_ctl"),
    "ray": ("initdb", "pg_ctl"),
    "sanitizers": ("g++",),
    "wheel": ("g++",),
}
CASES = 2  # of a parametrised test, and no slow test, unless --all-cases asks for them
START, TIME_IS_UP = time.monotonic(), "--minutes are over"
REQUIRE_GPU = os.environ.get("CAW_REQUIRE_GPU") == "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` without a CUDA device (CAW_REQUIRE_GPU=1: fail them), and gates without their tools."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        (pytest.fail if REQUIRE_GPU else pytest.skip)("needs CUDA")
    if time.monotonic() - START > 60 * item.config.getoption("minutes"):
        pytest.skip(TIME_IS_UP)
    if missing := [tool for tool in TOOLS.get(_gate(item) or "", ()) if shutil.which(tool) is None]:
        pytest.skip(f"needs {' and '.join(missing)}")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which a run on a bare GPU machine lacks
def pytest_xdist_auto_num_workers() -> int:
    """Workers of `-n auto`: the cores this process may use; beyond eight only the demo model's tests are waited for."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gate", metavar="NAME", help="the tests of this gate, or of `all` gates, and no others")
    parser.addoption("--cases", type=int, metavar="N", help=f"N cases of each parametrised test, {CASES} by default")
    parser.addoption("--later", type=int, default=0, metavar="K", help="other cases: each K places later")
    parser.addoption("--all-cases", action="store_true", help="every case, and slow tests too")
    parser.addoption("--minutes", type=float, default=math.inf, help="skip what is left by then, and name it")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run of one gate's tests, or of serial tests alone, imports no file that has none of them."""
    gate, serial = config.getoption("gate"), config.option.markexpr.split(" ")[0] == "serial"
    named = "mark.gate(" if gate == "all" else f'mark.gate("{gate}"'
    wanted = named if gate else "mark.serial" if serial else ""
    left_out = wanted and collection_path.is_file() and wanted not in collection_path.read_text(encoding="utf-8")
    return True if left_out else None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the gate's tests, or the quick ones of all others; pytest-xdist's share of them is ordered."""
    gate = config.getoption("gate")
    chosen = [item for item in items if (_gate(item) is not None if gate == "all" else _gate(item) == gate)]
    every = gate or config.getoption("all_cases") or any("::" in argument for argument in config.args)
    most = config.getoption("cases") or (None if every else CASES)
    if most:
        chosen = _quick(chosen, most, config.getoption("later"))
    left_out = set(items) - set(chosen)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    if "PYTEST_XDIST_WORKER" in os.environ:
        _share_out(items, math.isfinite(config.getoption("minutes")))


def _gate(item: pytest.Item) -> str | None:
    mark = item.get_closest_marker("gate")
    return mark.args[0] if mark else None


def _quick(items: list[pytest.Item], most: int, later: int) -> list[pytest.Item]:
    """At most so many cases of a function, at equal distances from another start; nothing slow; all of `every_case`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is None:
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    chosen = []
    for name, every in cases.items():
        whole = every[0].get_closest_marker("every_case") is not None
        count, first = len(every) if whole else min(most, len(every)), zlib.crc32(name.encode()) + later
        chosen += [every[(i * len(every) // count + first) % len(every)] for i in range(count)]
    return chosen


def _share_out(items: list[pytest.Item], in_order: bool) -> None:
    """What one worker must do alone, and the longest first, so that no worker ends alone."""
    groups = [_group(item) for item in items]
    for item, group in zip(items, groups, strict=True):
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
    if in_order:  # of importance, as the files were given
        return
    seconds: dict[str, float] = {}
    for item, group in zip(items, groups, strict=True):
        seconds[group or item.nodeid] = seconds.get(group or item.nodeid, 0) + _seconds(item)
    order = sorted(range(len(items)), key=lambda i: -seconds[groups[i] or items[i].nodeid])
    items[:] = [items[i] for i in order]


def _group(item: pytest.Item) -> str:
    """The demo model is loaded once, and so is what a module shares; other tests go to any worker."""
    fixtures = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    if "demo" in fixtures:
        return "demo"
    shared = any(definitions[-1].scope in ("module", "class", "package") for definitions in fixtures.values())
    return item.nodeid.split("::")[0] if shared else ""


def _seconds(item: pytest.Item) -> float:
    slow = item.get_closest_marker("slow")
    return 0.1 if slow is None else slow.kwargs.get("seconds", 5)


def _compared() -> tuple[int, list[str]]:
    """How many token lists this process compared, and each that differed where the decision was within its margin."""
    module = sys.modules.get("decoding.brute_force")
    return (0, []) if module is None else (len(module.COMPARED), module.DIFFERED)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["compared"] = _compared()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash.setdefault(WORKERS, []).append(getattr(node, "workeroutput", {}).get("compared", (0, [])))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The comparisons of this process and of all workers, and what --minutes left out."""
    every = [_compared(), *config.stash.get(WORKERS, [])]
    total, differed = sum(count for count, _ in every), [line for _, lines in every for line in lines]
    if total:
        terminalreporter.write_line(f"equal tokens: {total} comparisons, {len(differed)} within their margin")
        for line in differed:
            terminalreporter.write_line(f"  {line}")
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if TIME_IS_UP in str(r.longrepr)]
    for name in sorted({report.fspath for report in skipped}):
        terminalreporter.write_line(f"not run in {config.getoption('minutes'):g} minutes: tests of {name}")


@pytest.fixture(autouse=True)
def seed() -> int:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    return 0


@pytest.fixture(scope="session", autouse=True)
def models_with_parts() -> Iterator[weakref.WeakSet[Any]]:
    from caw.models.parts import ModelParts

    models: weakref.WeakSet[Any] = weakref.WeakSet()
    own = ModelParts.__init__

    def noted(self: ModelParts, model: Any) -> None:
        models.add(model)
        own(self, model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelParts, "__init__", noted)
        yield models


@pytest.fixture(autouse=True)
def parts_end_with_a_test(models_with_parts: weakref.WeakSet[Any]) -> Iterator[None]:
    """Nothing derived from a model outlives a test: many share one, and some replace what it is derived with."""
    yield
    from caw.models.parts import NAME

    for model in list(models_with_parts):
        model.__dict__.pop(NAME, None)
    models_with_parts.clear()


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """One thread: where others use the machine, two threads that wait for each other took 10 to 25 times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def demo() -> tuple[Any, Any]:
    """(model, tokenizer) of the demo model in float32, loaded once; threads as given."""
    from caw.models import DEMO_MODEL, load_model

    try:
        return load_model(DEMO_MODEL, device="cpu", dtype="float32")
    except (FileNotFoundError, ImportError) as error:
        pytest.skip(f"needs the demo model: {error}")


@pytest.fixture(scope="session")
def demo_model(demo: tuple[Any, Any]) -> Any:
    return demo[0]


@pytest.fixture(scope="session")
def demo_tokenizer() -> Any:
    from caw.models import DEMO_MODEL, load_tokenizer

    try:
        return load_tokenizer(DEMO_MODEL)
    except (FileNotFoundError, ImportError) as error:
        pytest.skip(f"needs the demo model's tokenizer: {error}")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The data folder: CAW_DATA_DIR, or `../shared/data` beside the checkout."""
    given = os.environ.get("CAW_DATA_DIR")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the data folder; set CAW_DATA_DIR")
    return folder
