"""Who makes a product of few rows on this device, and by which tiles, where somebody has timed it.

`python -m benchmarks tune_products` writes a file for each device and version of Triton, and the launcher of products
reads it once in a process. Without one `block_sizes.product_blocks` works the tiles out from the weights' shape.

The order in which a row is summed follows BLOCK_K, and whose kernel it is. So a choice belongs to the weights' shape
and dtype, never to a number of rows, and holds for as long as the process lives.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

from caw.io.files import cache_root, write_text
from caw.io.warn import warn_caller
from caw.triton_kernels.block_sizes import ProductBlocks
from caw.triton_kernels.packed_weights_ref import Format

KIND = "caw tuned products"
OWN, TORCH, TORCH_PADDED = "caw", "torch", "torch, padded"
LARGEST = 1 << 20  # bytes of a file; one of a hundred shapes has some 20 thousand
POWERS = {"block_o": range(16, 257), "block_k": range(16, 513), "num_warps": range(1, 17)}  # and a power of two


@dataclass(frozen=True)
class Choice:
    """by: OWN, with these tiles; TORCH: torch's product (cuBLAS); TORCH_PADDED: the same, always of MAX_ROWS rows."""

    by: str
    blocks: ProductBlocks | None = None

    def __post_init__(self) -> None:
        if self.by not in (OWN, TORCH, TORCH_PADDED) or (self.by == OWN) != (self.blocks is not None):
            raise ValueError(f"a choice must be tiles of {OWN}, {TORCH} or {TORCH_PADDED}, got {self}")
        for name, value in ({} if self.blocks is None else asdict(self.blocks)).items():
            whole = type(value) is int and (value in range(1, 9) if name == "num_stages" else value in POWERS[name])
            if not whole or (name in POWERS and value & (value - 1)):
                raise ValueError(f"{name} must be a tile's size, got {value!r}")


class Kind(NamedTuple):
    """What is done beside the product. biased: whether any of its weights has a bias; residual: whether something is
    added to it."""

    gated: bool = False
    biased: bool = False
    residual: bool = False


def shape_key(outputs: Sequence[int], size: int, dtype: torch.dtype, kind: Kind, form: Format | None = None) -> str:
    """Names the product of weights [outputs[i], size] each, as "4096+1024+1024 x 4096 bfloat16 int4 biased".

    dtype: of its inputs. form: of packed weights, None = dense ones of the same dtype.
    """
    numbers = str(dtype).removeprefix("torch.") + (f" {form.name}" if form is not None else "")
    rest = "".join(f" {name}" for name, there in kind._asdict().items() if there)
    return f"{'+'.join(map(str, outputs))} x {size} {numbers}{rest}"


@functools.cache
def device_name(device: torch.device) -> str | None:
    """The name that a tuned device goes by; None for one that cannot be tuned."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" and torch.cuda.is_available() else None


def chosen(
    device: torch.device, outputs: Sequence[int], size: int, dtype: torch.dtype, kind: Kind, form: Format | None = None
) -> Choice | None:
    """What was found best for this product on this device; None = nobody has looked."""
    name = device_name(device)
    choices = {} if name is None else _kept(name)
    return choices.get(shape_key(outputs, size, dtype, kind, form)) if choices else None


def place(name: str) -> Path:
    """The file of the device of this name under the present Triton."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", f"{name} triton {triton.__version__}")
    return cache_root() / "tuned" / f"{readable}.json"


def made_with(name: str) -> dict[str, str]:
    """What a timing holds for. kernel: of its source, and of the tiles that were tried; others have another best."""
    files = ("small_linear.py", "packed_weights.py", "block_sizes.py")
    source = b"".join(Path(__file__).with_name(name).read_bytes() for name in files)
    return {"device": name, "triton": triton.__version__, "torch": f"{torch.__version__} cuda {torch.version.cuda}",
            "kernel": hashlib.sha256(source).hexdigest()[:16]}  # fmt: skip


def torch_settings() -> dict[str, object]:
    """What decides how torch makes a product: which kernel, in how many bits it adds, and whether float32 is cut."""
    matmul = torch.backends.cuda.matmul
    names = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction",
             "allow_fp16_accumulation")  # fmt: skip
    found: dict[str, object] = {name: str(getattr(matmul, name, None)) for name in names}
    found["tf32"] = matmul.fp32_precision == "tf32"  # `allow_tf32` raises where somebody has set this one
    library = str(torch.backends.cuda.preferred_blas_library())
    return found | {"library": library, "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")}


@functools.cache
def _kept(name: str) -> Mapping[str, Choice]:
    """As `load`; a file that is of no use is left out with one warning."""
    try:
        return load(name)
    except (OSError, ValueError) as error:
        remedy = "run `python -m benchmarks tune_products` again"
        warn_caller(f"the tuned products in {place(name)} are left out: {error}; {remedy}")
        return {}


def kept_count(name: str) -> int:
    """How many products run as tuned on the device of this name."""
    return len(_kept(name))


def load(name: str) -> dict[str, Choice]:
    """Every choice in the device's file, by `shape_key`; empty where there is no file.

    Raises OSError, or ValueError for one that is damaged, not ours, or made with something else than there is now.
    """
    try:
        with open(place(name), "rb") as file:
            text = file.read(LARGEST)
    except FileNotFoundError:
        return {}
    try:
        found: Any = json.loads(text)
        if not isinstance(found, dict) or found.get("kind") != KIND:
            raise ValueError("no file of tuned products")
        rows = {key: _choice(row) for key, row in found["products"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = str(error).splitlines()[0] if type(error) is ValueError else "not as this library writes it"
        raise ValueError(f"the file is damaged ({said})") from None
    for what, now in made_with(name).items():
        if found.get(what) != now:
            raise ValueError(f"the file was made with another {what}")
    by_torch = any(choice.by != OWN for choice in rows.values())
    if by_torch and found.get("torch settings") != torch_settings():
        raise ValueError("the file has products of torch, and was made with other settings of torch.backends.cuda")
    return rows


def _choice(row: dict[str, Any]) -> Choice:
    tiles = {name: value for name, value in row.items() if name != "by"}
    return Choice(row["by"], ProductBlocks(**tiles) if tiles else None)


def save(name: str, choices: Mapping[str, Choice]) -> Path:
    """Write the device's file anew; processes that run keep what they have read."""
    rows = {key: {"by": c.by, **({} if c.blocks is None else asdict(c.blocks))} for key, c in choices.items()}
    path = place(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"kind": KIND, **made_with(name), "torch settings": torch_settings()}
    write_text(path, json.dumps({**about, "products": rows}, indent=1) + "\n")
    return path
