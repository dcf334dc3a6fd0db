"""`bench_kernels.py` and `bench_cpu_ops.py` under pytest-benchmark: each kernel beside torch's way, its floor in the
extra figures."""

import functools
import time
from collections.abc import Callable
from typing import Any

import bench_cpu_ops
import bench_kernels
import pytest
import torch

from caw import ops


@functools.cache
def bandwidth(device: str, smoke: bool) -> float:
    return bench_kernels.read_bandwidth(device, smoke)


@functools.cache
def kernel_cases(device: str, smoke: bool) -> list[Any]:
    with torch.inference_mode():
        return list(bench_kernels.cases(device, smoke))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    smoke = metafunc.config.getoption("--size") == "smoke" or not torch.cuda.is_available()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if metafunc.function is test_kernel:
        cases = kernel_cases(device, smoke)
        found = [pytest.param(c, side, device, smoke, id=f"{c.name}-{side}") for c in cases for side in c.sides]
        metafunc.parametrize(("case", "side", "device", "smoke"), found)
    elif metafunc.function is test_cpu_op:
        builds = cpu_builds(metafunc.config.getoption("--size"))
        found = []
        for build in builds if not ops.missing_extension() else []:
            torch.manual_seed(0)
            for name, variants in build().items():
                found += [pytest.param(build.__name__, name, v, id=f"{name}-{v}") for v in variants]
        metafunc.parametrize(("build", "case", "variant"), found)


def cpu_builds(size: str) -> list[Callable[[], dict[str, Any]]]:
    if size == "smoke":
        return [bench_cpu_ops.step_cases]
    return [bench_cpu_ops.topk_cases, bench_cpu_ops.step_cases, bench_cpu_ops.sampling_cases]


@functools.cache
def kernel_row(number: int, device: str, smoke: bool, rounds: int) -> dict[str, Any]:
    with torch.inference_mode():
        case = kernel_cases(device, smoke)[number]
        return bench_kernels.run(case, rounds, bandwidth(device, smoke), device, smoke)


def test_kernel(
    benchmark: Any, replay: Any, case: Any, side: str, device: str, smoke: bool, pytestconfig: pytest.Config
) -> None:
    rounds = 2 if pytestconfig.getoption("--size") == "smoke" else 10
    number = next(i for i, other in enumerate(kernel_cases(device, smoke)) if other is case)
    row = kernel_row(number, device, smoke, rounds)
    if side in row["wrong"]:
        pytest.fail(row["wrong"][side])
    extra = {name: row[name] for name in ("floor_us", "share_of_bandwidth", "aim")}
    replay.play(benchmark, f"{device}: {row['case']}", [us / 1e6 for us in row["rounds_us"][side]], **extra)


@functools.cache
def cpu_times(build: str, name: str, rounds: int) -> dict[str, list[float]]:
    torch.manual_seed(0)
    variants = getattr(bench_cpu_ops, build)()[name]
    return bench_cpu_ops.rounds_of(variants, rounds, time.thread_time)


def test_cpu_op(benchmark: Any, replay: Any, build: str, case: str, variant: str, pytestconfig: pytest.Config) -> None:
    torch.set_num_threads(1)
    rounds = 2 if pytestconfig.getoption("--size") == "smoke" else 20
    times = cpu_times(build, case, rounds)
    replay.play(benchmark, f"cpu: {case}", times[variant])
