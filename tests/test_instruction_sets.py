"""The fast tests as other processors would run them: each library is told which instructions it may use.

They choose when they are loaded, so each set has processes of its own. What differs is the order of sums and the last
bit: no test may depend on it. Each set takes every case of the kernels; of other tests the plainest set takes two
cases, the others one, without what starts processes or interprets Triton's kernels.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "OPENBLAS_CORETYPE", "CAW_CPU_ISA")
SETS = {
    "generic": ("default", "SSE41", "COMPATIBLE", "Zen", "generic"),
    "avx2": ("avx2", "AVX2", "AVX2", "Haswell", "avx2"),
    "avx512": ("avx512", "AVX512_CORE", "AVX512", "SkylakeX", "avx512"),  # without products of bfloat16
    "avx512bf16": ("avx512", "AVX512_CORE_BF16", "AVX512", "SkylakeX", "avx512bf16"),  # without tiles
}
MANY = ("-n", "auto", "--dist", "loadgroup", "--no-loadscope-reorder", "-m", "not slow and not serial")
NO_SUMS = ("tests/docs", "tests/registry", "tests/test_lazy.py", "tests/test_lint_imports.py")
ABOVE = (
    "tests/cli",
    "tests/benchmark",
    "tests/serve",
    "tests/triton_kernels",
    "tests/test_benchmarks.py",
    "tests/test_gpu_check.py",
)


HAS = torch.backends.cpu.get_cpu_capability().lower()
RUNNABLE = {"avx2": ("generic", "avx2"), "avx512": tuple(SETS)}.get(HAS, ("generic",))


# a processor has the sets below its own
@pytest.mark.gate("isa")
@pytest.mark.parametrize("name", RUNNABLE)
def test_fast_tests_with_the_instructions_of(name: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment |= dict(zip(NAMES, SETS[name], strict=True))
    whole = name == "generic"
    left_out = ("tests/csrc", *NO_SUMS) if whole else ("tests/csrc", *NO_SUMS, *ABOVE)
    others = ["--cases", "2" if whole else "1", "--later", str(list(SETS).index(name))]
    others += [f"--ignore={path}" for path in left_out]
    for phase in ((*MANY, "--all-cases", "tests/csrc"), (*MANY, *others), ("-m", "serial and not slow")):
        command = [str(Path(sys.executable).with_name("pytest")), "-q", "-p", "no:cacheprovider", *phase]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
