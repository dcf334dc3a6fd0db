"""Compile the CUDA sources for every architecture, without linking or running: needs nvcc and any build of torch.

python csrc/compile_cuda.py [--nvcc nvcc] [--arch 80 --arch 90]
"""

from __future__ import annotations

import argparse
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from torch.utils.cpp_extension import include_paths

FOLDER = Path(__file__).resolve().parent
FLAGS = runpy.run_path(str(FOLDER / "build_flags.py"))


def command(nvcc: str, source: Path, architecture: str, folder: str) -> list[str]:
    """The compiler call of one source for one architecture; resource use goes to stderr."""
    code = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    include = [f"-I{path}" for path in include_paths()]
    output = str(Path(folder) / f"{source.stem}_{architecture}.o")
    return [
        nvcc,
        "-c",
        *FLAGS["NVCC_FLAGS"],
        code,
        "-Xcompiler=-fPIC",
        "-Xptxas=-v",
        *include,
        str(source),
        "-o",
        output,
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--arch", action="append", help="e.g. 90; all of the wheel's if left out")
    options = parser.parse_args()
    if shutil.which(options.nvcc) is None:
        print(f"expected a CUDA compiler, found no {options.nvcc!r}; install the CUDA toolkit", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted((FOLDER / "cuda").glob("*.cu")):
            for architecture in options.arch or FLAGS["CUDA_ARCHITECTURES"]:
                done = subprocess.run(
                    command(options.nvcc, source, architecture, folder), capture_output=True, text=True
                )
                if done.returncode:
                    print(done.stderr, file=sys.stderr)
                    return 1
                used = [line.split(":")[-1].strip() for line in done.stderr.splitlines() if "registers" in line]
                spilled = [
                    x for x in done.stderr.splitlines() if "spill stores" in x and " 0 bytes spill stores" not in x
                ]
                print(f"{source.name} sm_{architecture}: {len(used)} kernels, {len(spilled)} with spills")
    return 0


if __name__ == "__main__":
    sys.exit(main())
