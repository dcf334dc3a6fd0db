"""Products by instructions that this processor has not, AMX tiles and AVX-VNNI: others stand in for them."""

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
FLAGS = [flag for flag in runpy.run_path(str(CSRC / "build_flags.py"))["CXX_FLAGS"] if not flag.startswith("-D")]
CPU = Path("/proc/cpuinfo")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.skipif(not CPU.exists() or "avx512_vnni" not in CPU.read_text(), reason="needs AVX-512 with VNNI")
@pytest.mark.parametrize("kernel, header, names", [
    ("Amx", "amx_tiles.hpp", ("quantized_amx", "quantized_vnni")), ("AvxVnni", "dots.hpp", ("quantized_avxvnni",)),
])  # fmt: skip
def test_instructions_give_the_bits_of_plain_code(
    kernel: str, header: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    program = tmp_path / "products"
    flags = [*FLAGS, "-O1", f"-I{CSRC}", "-include", str(HERE / header), f"-DCAW_TESTED=kQuantized{kernel}"]
    sources = [str(CSRC / "cpu" / f"{name}.cpp") for name in (*names, "quantized_generic", "activations")]
    subprocess.run(["g++", *flags, *sources, str(HERE / "emulated_products.cpp"), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith(" 0 differ\n"), done.stdout + done.stderr
    assert int(done.stdout.split()[0]) == 10 * 3 * 3 * 5 * 2 * 2
