"""Load the compiled extensions `caw._C` (CPU) and `caw._C_cuda`; if one is missing, say why, once."""

import functools
import importlib.util
import mmap
import os
import warnings
from pathlib import Path

import torch

from caw.io.warn import warn_caller

SCHEMAS = 20  # number of the op schemas, as in csrc/schemas.h: raised with every change of a schema
REMEDY = "build it with `pip install -e . --no-build-isolation` (needs a C++ compiler)"
REMEDY_CUDA = (
    "build it with `CAW_BUILD_CUDA=1 pip install -e . --no-build-isolation` (needs nvcc and, in $CUDA_HOME or "
    "/usr/local/cuda, the toolkit of torch's CUDA version)"
)


def _load(name: str, remedy: str = REMEDY) -> str:
    """Load a library. Return the reason if it cannot be loaded, otherwise an empty string."""
    spec = importlib.util.find_spec(f"caw.{name}")
    if spec is None or spec.origin is None:
        # what setup.py left behind when the build failed; pip hides its warning
        failure = Path(__file__).parent / f"{name}.failed.txt"
        found = f"was not built: {failure.read_text().strip()}" if failure.is_file() else "is not installed"
        return f"caw's compiled extension {name} {found}; {remedy}"
    if not _fits(Path(spec.origin)):
        return f"caw's compiled extension {name} was built for operator schemas of another version; {remedy}"
    try:
        torch.ops.load_library(spec.origin)
    except OSError as error:
        return f"caw's compiled extension {name} does not load ({error}); {remedy}"
    return ""


def _fits(library: Path) -> bool:
    """Return whether a library was built for this version's operator schemas."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(f"caw operator schemas {SCHEMAS};".encode()) >= 0


WHY_MISSING = _load("_C")
# linked against torch's CUDA libraries, which a CPU build of torch lacks
WHY_MISSING_CUDA = _load("_C_cuda", REMEDY_CUDA) if torch.version.cuda else "this torch has no CUDA"
if WHY_MISSING and os.environ.get("CAW_EXT") == "require":
    raise ImportError(WHY_MISSING)
if WHY_MISSING:  # a module is imported once, so this is said once
    warnings.warn(f"{WHY_MISSING}; plain PyTorch is used instead and is slower", RuntimeWarning, stacklevel=2)


def warn_without_cuda(device: torch.device) -> None:
    """Warn once per process what a model on a GPU lacks without the CUDA extension, and how to build it."""
    if device.type == "cuda" and WHY_MISSING_CUDA:
        _say_what_is_missing()


@functools.cache
def _say_what_is_missing() -> None:
    warn_caller(
        f"{WHY_MISSING_CUDA}; without it, other systems' green lists are made on the CPU and evidence is counted in "
        "PyTorch, which is slower",
        RuntimeWarning,
    )
