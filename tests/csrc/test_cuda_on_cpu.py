"""Kernels of csrc/cuda as C++ in shuffled orders against the CPU's operators; the gate plants faults to be found."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from csrc.cuda_on_cpu import OnCPU, build, translated

from csrc import cuda_on_cpu

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SEEDS = (0, 1, 17)  # 0: in the order of their numbers
# what a bound one too far becomes: (as it stands, changed), in memory of a tensor and of a block
BOUNDS = [
    ("i < size; i += kListThreads) order[i]", "i <= size; i += kListThreads) order[i]"),
    ("if (i >= count) return;", "if (i > count) return;"),
    ("i < 4 && counter * 4 + i < vocab_size", "i < 4 && counter * 4 + i <= vocab_size"),
    ("j < row.size; j += kThreads", "j <= row.size; j += kThreads"),
    ("token < row.vocab_size; token += kThreads", "token <= row.vocab_size; token += kThreads"),
    ("picks[threadIdx.x + half]", "picks[threadIdx.x + half + 1]"),
    ("(j + 1) % kStateSize]", "j + 1]"),
]
# the lines before barriers whose absence changes no result: another one comes before the first read; and what the next
# round writes is never below what a late thread compares it to, because targets only grow
HARMLESS = ["const int draws = targets_in_parallel(state, size, first, count, target);", "found = hit < stop;"]


@pytest.fixture(scope="module")
def source() -> str:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return cuda_on_cpu.SOURCE.read_text()


def barriers(source: str) -> list[int]:
    return [number for number, line in enumerate(source.splitlines(), 1) if "__syncthreads();" in line]


@pytest.mark.slow(seconds=8)
def test_every_kernel_in_shuffled_orders(source: str, tmp_path: Path) -> None:
    """Equal to the CPU's operators; a barrier left out is found."""
    kernels = OnCPU(build(tmp_path, translated(source)))
    assert [kernels.differences(seed) for seed in SEEDS] == [[]] * len(SEEDS)
    line = next(n for n in barriers(source) if "picks[threadIdx.x]" in source.splitlines()[n - 2])
    assert any(kernels.differences(seed, line) for seed in SEEDS)
    assert source.count("__global__") == 6, "a kernel more: give it a call in cuda_on_cpu.py"


def test_a_launch_that_cannot_be_translated_is_refused() -> None:
    with pytest.raises(ValueError, match="expected launches as name<<<blocks"):
        translated("kernel<<<1, 2>>>(x);")


def run(library: Path, *arguments: int, watched: bool = True) -> subprocess.CompletedProcess[str]:
    """The calls in a process of their own; watched: with the sanitizer's library first."""
    environment = runpy.run_path(str(ROOT / "tests" / "csrc" / "sanitize.py"))["environment"](ROOT) if watched else None
    command = [sys.executable, str(HERE / "cuda_on_cpu.py"), str(library), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


@pytest.mark.gate("cuda-on-cpu")
def test_nothing_is_out_of_bounds(source: str, tmp_path: Path) -> None:
    done = run(build(tmp_path, translated(source), sanitize=True), 5)
    assert done.returncode == 0 and "AddressSanitizer:" not in done.stderr, done.stdout + done.stderr[-3000:]


@pytest.mark.gate("cuda-on-cpu")
def test_every_barrier_is_missed(source: str, tmp_path: Path) -> None:
    """Left out one at a time: other results, threads at different barriers, or a crash, under some order."""
    library, lines = build(tmp_path, translated(source)), barriers(source)
    assert len(lines) > 10 and run(library, 1, watched=False).returncode == 0
    unnoticed = [n for n in lines if all(run(library, seed, n, watched=False).returncode == 0 for seed in SEEDS)]
    assert [source.splitlines()[n - 2].strip() for n in unnoticed] == HARMLESS


@pytest.mark.gate("cuda-on-cpu")
@pytest.mark.parametrize("sound, wrong", BOUNDS, ids=[str(i) for i in range(len(BOUNDS))])
def test_a_bound_one_too_far_is_found(source: str, tmp_path: Path, sound: str, wrong: str) -> None:
    assert source.count(sound) == 1
    done = run(build(tmp_path, translated(source.replace(sound, wrong)), sanitize=True), 0)
    assert done.returncode != 0 and "ERROR: AddressSanitizer" in done.stderr, done.stdout + done.stderr[-2000:]
