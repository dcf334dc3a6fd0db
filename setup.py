"""Package folders and the compiled extension; metadata lives in pyproject.toml.

    caw._plain   what detection scores, without torch and Python: built where a compiler is at hand, else NumPy serves
    caw._C       C++ ops for the CPU: built where torch is at hand too
    caw._C_cuda  CUDA ops: built where CUDA_HOME and a CUDA build of torch are, or with CAW_BUILD_CUDA=1

The last two use torch's stable ABI: one file serves torch 2.11 to 2.15 and every Python from 3.10. Torch must be
importable while building them (`--no-build-isolation`). A build that fails leaves the reason beside the package and the
library on its PyTorch reference; CAW_EXT=require makes it fatal, once all that can be built is in its place.
"""

import os
import runpy
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command import editable_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
REQUIRE = os.environ.get("CAW_EXT") == "require"
FLAGS = runpy.run_path(str(ROOT / "csrc" / "build_flags.py"))

# before torch looks for it
if home := runpy.run_path(str(ROOT / "csrc" / "cuda_home.py"))["cuda_home"]():
    os.environ["CUDA_HOME"] = home

try:
    import torch
    from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension
except ImportError as error:
    torch, why_no_torch = None, str(error)
    if REQUIRE:
        sys.exit(f"CAW_EXT=require needs torch while building ({error}); install it and use --no-build-isolation")


# Python that is started beside a folder of a package's name takes that for the package, whose finder of an editable
# installation comes last: one more finder comes first, for a folder without code only
BESIDE = """

class _BesideFolder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if path is None and fullname in MAPPING:
            found = PathFinder.find_spec(fullname, path, target)
            if found is None or found.origin is None:
                return _EditableFinder.find_spec(fullname, path, target)


sys.meta_path.insert(0, _BesideFolder)
"""
editable_wheel._FINDER_TEMPLATE += BESIDE  # setuptools has no other place for it


def sources(*patterns):
    return sorted(str(p.relative_to(ROOT)) for pattern in patterns for p in ROOT.glob(pattern))


def without_paths(flags, prefix=""):
    """Compiler flags that keep this machine's folders out of error messages."""
    folders = (f"{ROOT}/", *([] if torch is None else [f"{Path(torch.__file__).parents[1]}/"]))
    return [*flags, *(f"{prefix}-ffile-prefix-map={folder}=" for folder in folders)]


def newest():
    """The newest instructions of this processor, as kernels_common.h counts them; all where they cannot be read."""
    try:
        flags = Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split()
    except OSError:
        return 5
    if "amx_tile" in flags or not flags:
        return 5
    return 4 if "avx512bw" in flags else 3 if "avx_vnni" in flags else 2


def extensions():
    headers = sources("csrc/**/*.h", "csrc/**/*.inc")
    plain = Extension(
        "caw._plain",
        sources("csrc/plain/*.cpp"),
        extra_compile_args=without_paths(FLAGS["PLAIN_FLAGS"]),
        extra_link_args=["-s"],
        language="c++",
        depends=[*headers, *sources("csrc/cpu/*.cpp")],
        optional=torch is None,  # with torch, the builder notes a failure and goes on
    )
    if torch is None:
        return [plain]
    common = {"py_limited_api": True, "include_dirs": [str(ROOT / "csrc")], "depends": headers}
    cpu = CppExtension(
        "caw._C",
        sources("csrc/*.cpp", "csrc/cpu/*.cpp"),
        extra_compile_args={"cxx": without_paths(FLAGS["CXX_FLAGS"])},
        extra_link_args=["-s"],
        **common,
    )
    wants_cuda = os.environ.get("CAW_BUILD_CUDA", "1" if CUDA_HOME and torch.version.cuda else "0")
    if wants_cuda != "1":
        return [plain, cpu]
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in FLAGS["CUDA_ARCHITECTURES"]]
    cuda = CUDAExtension(
        "caw._C_cuda",
        sources("csrc/cuda/*.cu"),
        extra_compile_args={
            "cxx": without_paths(FLAGS["CXX_FLAGS"]),
            "nvcc": [*without_paths(FLAGS["NVCC_FLAGS"], "-Xcompiler="), *codes],
        },
        **common,
    )
    return [plain, cpu, cuda]


def builder():
    """BuildExtension that builds each extension for itself and survives failures."""

    class Build(BuildExtension):
        def run(self):
            self.beside_sources = self.inplace  # setuptools builds elsewhere first and forgets it meanwhile
            if self.inplace:  # pip would take a fresh folder each time, and everything would be compiled again
                self.build_temp = str(ROOT / "build" / "objects")
                # a release is for every machine, a checkout for this one: AVX2 alone takes three fifths of the time
                for extension in self.extensions:
                    flags = extension.extra_compile_args
                    (flags["cxx"] if isinstance(flags, dict) else flags).append(f"-DCAW_NEWEST={newest()}")
            super().run()
            # what could be built is in its place by now: a GPU's kernels that fail take no CPU's along
            if REQUIRE and self.failures:
                sys.exit(f"CAW_EXT=require, and {', '.join(self.failures)} was not built; the reason stands above")

        def build_extensions(self):
            every, self.failures = self.extensions, {}
            for extension in every:
                self.extensions = [extension]
                try:
                    super().build_extensions()
                except BaseException as error:  # distutils and ninja raise SystemExit too
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    self.failures[extension.name] = f"{type(error).__name__}: {error}"
                self.note(extension.name)
            self.extensions = [e for e in every if e.name not in self.failures]

        def note(self, name):
            """Leave the reason of a failure beside the package, where the import finds it; remove an old one.

            After a failure a library of an earlier build goes too: it would hide the reason and run old sources.
            """
            folder = ROOT if self.beside_sources else Path(self.build_lib)
            path = folder / (name.replace(".", "/") + ".failed.txt")
            if name not in self.failures:
                path.unlink(missing_ok=True)
                return
            print(f"warning: {name} was not built: {self.failures[name]}", file=sys.stderr)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.failures[name].splitlines()[0] + "\n")
            (folder / (name.replace(".", "/") + ".so")).unlink(missing_ok=True)

    return Build.with_options(no_python_abi_suffix=True)


class PlainBuild(build_ext):
    """Builds `_plain.so`, which ctypes loads, whatever the Python."""

    def get_ext_filename(self, name):
        return name.replace(".", "/") + ".so"


setup(
    packages=[
        *find_packages(include=["caw", "caw.*", "caw_lab", "caw_lab.*"]),
        "caw.evaluator.weights",
        "caw.triton_kernels",
    ],
    # the kernels have a room of their own in the checkout; Triton has a package by that name, so it is installed inside
    package_dir={"caw.triton_kernels": "triton_kernels"},
    package_data={
        "caw": [
            "evaluator/weights/*",
            "detection/tables/*",
            "*/templates/*",
            "cli/profiles/*",
            "integrations/hub/*/*",
            "py.typed",
        ],
        "caw_lab": ["training/*.jsonl"],
    },
    ext_modules=extensions(),
    cmdclass={"build_ext": PlainBuild if torch is None else builder()},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
