"""Products by AMX tiles on a processor without them: the tiles are plain C++ (amx_tiles.hpp)."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
FLAGS = [flag for flag in runpy.run_path(str(CSRC / "build_flags.py"))["CXX_FLAGS"] if not flag.startswith("-D")]
SOURCES = ("cpu/quantised_generic.cpp", "cpu/quantised_vnni.cpp", "cpu/activations.cpp")


CPU = Path("/proc/cpuinfo")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.skipif(not CPU.exists() or "avx512_vnni" not in CPU.read_text(), reason="needs AVX-512 with VNNI")
def test_tiles_give_the_bits_of_plain_code(tmp_path: Path) -> None:
    program = tmp_path / "amx_products"
    objects = []
    for name in ("cpu/quantised_amx.cpp", *SOURCES):
        target = tmp_path / f"{Path(name).stem}.o"
        tiles = ["-include", str(HERE / "amx_tiles.hpp")] if "amx" in name else []
        subprocess.run(
            ["g++", *FLAGS, "-O1", *tiles, f"-I{CSRC}", "-c", str(CSRC / name), "-o", str(target)], check=True
        )
        objects.append(str(target))
    subprocess.run(
        ["g++", *FLAGS, "-O1", f"-I{CSRC}", str(HERE / "amx_products.cpp"), *objects, "-o", str(program)], check=True
    )
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith(" 0 differ\n"), done.stdout + done.stderr
    assert int(done.stdout.split()[0]) == 10 * 3 * 3 * 5 * 2 * 2
