"""Products by AMX tiles on a processor without them: the tiles are plain C++ (amx_tiles.hpp)."""

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
FLAGS = [flag for flag in runpy.run_path(str(CSRC / "build_flags.py"))["CXX_FLAGS"] if not flag.startswith("-D")]
SOURCES = [
    CSRC / "cpu" / f"{name}.cpp" for name in ("quantized_amx", "quantized_generic", "quantized_vnni", "activations")
]
CPU = Path("/proc/cpuinfo")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.skipif(not CPU.exists() or "avx512_vnni" not in CPU.read_text(), reason="needs AVX-512 with VNNI")
def test_tiles_give_the_bits_of_plain_code(tmp_path: Path) -> None:
    program, flags = tmp_path / "amx_products", [*FLAGS, "-O1", f"-I{CSRC}", "-include", str(HERE / "amx_tiles.hpp")]
    sources = map(str, [*SOURCES, HERE / "amx_products.cpp"])
    subprocess.run(["g++", *flags, *sources, "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith(" 0 differ\n"), done.stdout + done.stderr
    assert int(done.stdout.split()[0]) == 10 * 3 * 3 * 5 * 2 * 2
