"""Build the CPU extension with AddressSanitizer and UndefinedBehaviorSanitizer and run the tests, or a fuzzer, on it.

    python tests/csrc/sanitize.py test            # the fast tests of tests/csrc
    python tests/csrc/sanitize.py fuzz --seconds 60

The build lies in build/sanitize and never in the package. Needs g++ with libasan and libubsan.
"""

import argparse
import os
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths

ROOT = Path(__file__).resolve().parents[2]
FLAGS = runpy.run_path(str(ROOT / "csrc" / "build_flags.py"))["CXX_FLAGS"]
SANITIZE = [
    "-O1",
    "-g1",
    "-fno-var-tracking",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
]


def build(folder: Path) -> Path:
    """A copy of the package by links, with the sanitized library in it; the folder to put on PYTHONPATH."""
    package = folder / "caw"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for entry in (*(ROOT / "caw").iterdir(), ROOT / "triton_kernels"):
        if not entry.name.startswith(("_C", "__pycache__")):
            (package / entry.name).symlink_to(entry)
    include = [f"-I{path}" for path in include_paths()]
    # an object is kept only if it is newer than every source and header
    newest = max(path.stat().st_mtime for path in (ROOT / "csrc").rglob("*.*") if path.suffix in (".cpp", ".h", ".inc"))
    sources = [*(ROOT / "csrc").glob("*.cpp"), *(ROOT / "csrc" / "cpu").glob("*.cpp")]

    def compile_one(source: Path) -> str:
        target = folder / f"{source.stem}.o"
        if not target.exists() or target.stat().st_mtime < newest:
            subprocess.run(
                ["g++", "-fPIC", *FLAGS, *SANITIZE, *include, "-c", str(source), "-o", str(target)], check=True
            )
        return str(target)

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, sources))
    libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run(["g++", "-shared", *SANITIZE, *objects, *libraries, "-o", str(package / "_C.so")], check=True)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Python itself is not sanitized, so the run-time libraries come in first; its own leaks are not ours."""
    found = [subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
             for name in ("libasan.so", "libubsan.so", "libstdc++.so.6")]  # fmt: skip
    return {
        **os.environ,
        "LD_PRELOAD": ":".join(f.stdout.strip() for f in found),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(folder),
        "CAW_EXT": "require",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["test", "fuzz"])
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    folder = build(ROOT / "build" / "sanitize")
    if options.what == "fuzz":
        command = [sys.executable, str(ROOT / "tests" / "csrc" / "fuzz.py"), str(options.seconds)]
    else:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--all-cases", "tests/csrc"]
        command += ["-p", "no:cacheprovider"]
    # -P: the checkout's own caw must not hide the sanitized copy
    command.insert(1, "-P") if sys.version_info >= (3, 11) else None
    return subprocess.run(command, cwd=ROOT, env=environment(folder)).returncode


if __name__ == "__main__":
    sys.exit(main())
