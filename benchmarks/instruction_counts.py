"""Instructions of the C++ hot paths, counted by callgrind: a gate that a busy machine cannot blur.

    python benchmarks/instruction_counts.py            # compare with results/instruction_counts.json
    python benchmarks/instruction_counts.py --record   # write that file

Each case runs once in a small program without torch, on the generic kernels and, where the machine has them, on the
AVX2 ones (callgrind knows no AVX-512). A count may exceed the recorded one by BOUND. Counts depend on the compiler and
the C library: with others than the recorded ones nothing is compared. Exit status: 0 within the bound, 1 beyond it, 2
not comparable (the reason is printed).
"""

import argparse
import json
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "instruction_counts.json"
BOUND = 0.03
SETS = ("generic", "avx2")


def build(folder: Path) -> Path:
    """The program, with the flags of the extension."""
    flags = runpy.run_path(str(ROOT / "csrc" / "build_flags.py"))["CXX_FLAGS"]
    sources = [ROOT / "benchmarks" / "instruction_counts.cpp", *sorted((ROOT / "csrc" / "cpu").glob("*.cpp"))]
    program = folder / "instruction_counts"
    subprocess.run(["g++", *flags, *map(str, sources), "-o", str(program)], check=True)
    return program


def count(program: Path, case: str, isa: str, folder: Path) -> int:
    out = f"--callgrind-out-file={folder / 'callgrind.out'}"
    command = ["valgrind", "--tool=callgrind", "--toggle-collect=measured", out, str(program), case]
    done = subprocess.run(command, env={**os.environ, "CAW_CPU_ISA": isa}, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not found or not int(found[1]):
        raise RuntimeError(f"callgrind of {case!r} failed: {done.stderr[-500:]}")
    return int(found[1])


def measure() -> dict[str, int]:
    """Counts by "set: case"."""
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder)
        for isa in SETS:
            listed = subprocess.run(
                ["valgrind", "-q", "--tool=none", str(program)], env={**os.environ, "CAW_CPU_ISA": isa},
                capture_output=True, text=True, check=True,
            ).stdout.splitlines()  # fmt: skip
            if listed[0] == isa:  # otherwise this machine lacks the set
                counts |= {f"{isa}: {case}": count(program, case, isa, folder) for case in listed[1:]}
    return counts


def toolchain() -> str:
    """What decides the counts beside the sources: the compiler and the library of logarithms."""
    version = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    return " ".join(["g++", version, *platform.libc_ver()])


def missing_tool() -> str:
    """Why nothing can be counted here; empty if it can."""
    absent = [tool for tool in ("valgrind", "g++") if shutil.which(tool) is None]
    return f"needs {' and '.join(absent)}; install the Debian package of that name" if absent else ""


def compare(counts: dict[str, int], recorded: dict[str, int]) -> list[str]:
    """Sentences about cases beyond the bound or known to one side only."""
    problems = []
    for name, found in counts.items():
        if name not in recorded:
            problems.append(f"{name}: not recorded; run with --record")
        elif found > recorded[name] * (1 + BOUND):
            more = 100 * (found / recorded[name] - 1)
            problems.append(f"{name}: {found} instructions, recorded {recorded[name]} (+{more:.1f} %)")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the results file")
    options = parser.parse_args()
    if missing_tool():
        print(missing_tool(), file=sys.stderr)
        return 2
    stored = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"toolchain": "nothing", "counts": {}}
    if not options.record and stored["toolchain"] != toolchain():
        print(f"recorded with {stored['toolchain']}, found {toolchain()}: their counts do not compare; use --record")
        return 2
    counts = measure()
    for name, found in counts.items():
        before = stored["counts"].get(name)
        change = f"{100 * (found / before - 1):+7.2f} %" if before else "      new"
        print(f"{name:50} {found:>12,} {change}")
    if options.record:
        record = {
            "toolchain": toolchain(),
            "bound": BOUND,
            "command": "python benchmarks/instruction_counts.py --record",
        }
        RESULTS.write_text(json.dumps({**record, "counts": counts}, indent=1) + "\n")
        return 0
    problems = compare(counts, stored["counts"])
    print("\n".join(problems) or f"all within {100 * BOUND:g} %")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
