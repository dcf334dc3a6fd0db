"""Ahead-of-time compilation to cubin without a GPU, from what the launchers really ask for.

A launcher runs on meta tensors under `launching.recorded`, so that types, constants, divisibility and launch options
are those of a real call with 16-byte aligned tensors; each recorded launch is then compiled and the assembler's
resource report read back. Must run where TRITON_INTERPRET is unset.
"""

import math
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import triton
from triton._utils import find_paths_if, get_iterable_path
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from caw.triton_kernels import launching
from caw.triton_kernels.packed_weights import FP8, FP8_BITS, HARDWARE

WARP = 32


@dataclass(frozen=True)
class Report:
    """What the assembler says of one kernel: registers a thread, stack frame and local memory in bytes (spills live
    there), shared memory in bytes, and how many asynchronous copies and tensor-core instructions the PTX holds.

    Of products, repeated: how often warps together do the multiply-adds of a tile, as padded, in one pass of the loop.
    instructions: of a thread there, for each of its weights, for 16 rows on 9.0; numbers: format and inputs.
    """

    kernel: str
    registers: int
    stack: int
    local: int
    shared: int
    async_copies: int
    tensor_ops: int
    fused_multiply_adds: int
    repeated: float = 0.0
    instructions: float = 0.0
    numbers: str = ""


def record(call: Callable[[], Any]) -> list[launching.Launch]:
    """The launches of one launcher call on meta tensors."""
    if launching.INTERPRETED:
        raise RuntimeError("aot must compile, found TRITON_INTERPRET=1 at import; unset it and start a new process")
    with launching.recorded() as launches:
        call()
    return launches


def source(launch: launching.Launch) -> ASTSource:
    """Signature, constants and attributes as the just-in-time compiler's own binder specialises this launch."""
    kernel, backend = launch.kernel, make_backend(GPUTarget("cuda", 90, WARP))
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, kinds, _ = bind(**launch.arguments)
    types, hints = [[kind[i] for kind in kinds] for i in range(2)]
    constants = find_paths_if(types, lambda _, kind: kind == "constexpr")
    aligned = find_paths_if(hints, lambda _, hint: isinstance(hint, str))
    return ASTSource(
        fn=kernel,
        signature=dict(zip(kernel.arg_names, types, strict=True)),
        constexprs={path: get_iterable_path(list(bound.values()), path) for path in constants},
        attrs={path: backend.parse_attr(get_iterable_path(hints, path)) for path in aligned},
    )


def compiled_for(launch: launching.Launch, capability: int) -> Any:
    """What Triton makes of it for compute capability 80, 90 or 100."""
    if launch.arguments.get("FORMAT") == FP8 and divmod(capability, 10) < HARDWARE:
        launch = replace(launch, arguments={**launch.arguments, "FORMAT": int(FP8_BITS)})
    return triton.compile(source(launch), target=GPUTarget("cuda", capability, WARP), options=dict(launch.options))


def loop_work(launch: launching.Launch, capability: int) -> tuple[int, int]:
    """Instructions of all warps, and bytes through shared memory, in the loops of all programs of a product."""
    compiled = compiled_for(launch, capability)
    loop, sizes = _loop(compiled.asm["cubin"]), launch.arguments
    turns = math.prod(launch.grid) * launching.cdiv(sizes["K"], sizes["BLOCK_K"]) * compiled.metadata.num_warps
    return turns * len(loop), turns * sum(map(_shared_bytes, loop))


def _shared_bytes(instruction: str) -> int:
    """Of a warp: ldmatrix has 1, 2 or 4 matrices of 128 bytes, a load or store 4, 8 or 16 bytes of each thread."""
    name = re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0].split(".")
    if name[0] == "LDSM":
        return 128 * next((int(part) for part in name if part in ("2", "4")), 1)
    return WARP * next((n // 8 for n in (128, 64) if str(n) in name), 4) if name[0] in ("LDS", "STS", "LDGSTS") else 0


def compile_launch(launch: launching.Launch, capability: int) -> Report:
    """Compile for compute capability 80, 90 or 100 and read the report."""
    compiled = compiled_for(launch, capability)
    ptx = compiled.asm["ptx"]
    usage = _resource_usage(compiled.asm["cubin"])
    tile, numbers, instructions = _tile(launch.arguments), "", 0.0
    rows = launch.arguments.get("BLOCK_M", 0) * launch.arguments.get("BLOCKS", 0)
    if tile and rows == 16 and capability == 90:
        form = ("dense", "fp8", "fp8", "int8", "int4")[launch.arguments["FORMAT"]]
        numbers = f"{form} {launch.arguments['x_ptr'].dtype}".replace("torch.", "")
        instructions = len(_loop(compiled.asm["cubin"])) * WARP * compiled.metadata.num_warps / (tile // rows)
    words = (r"\bcp\.async\.c[ag]\b", r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b", r"\bfma\.")
    copies, products, fused = (len(re.findall(word, ptx)) for word in words)
    repeated = _issued(ptx, compiled.metadata.num_warps) / tile if tile else 0.0
    return Report(launch.kernel.__name__, usage["REG"], usage["STACK"], usage["LOCAL"], compiled.metadata.shared,
                  copies, products, fused, repeated, instructions, numbers)  # fmt: skip


def _issued(ptx: str, warps: int) -> int:
    """Multiply-adds of all tensor-core instructions, each of which a warp (wgmma: four of them) issues."""
    sizes = re.findall(r"\b(mma\.sync|wgmma\.mma_async)\.[.\w]*\bm(\d+)n(\d+)k(\d+)\b", ptx)
    return sum(int(m) * int(n) * int(k) * (warps if kind == "mma.sync" else warps // 4) for kind, m, n, k in sizes)


def _tile(arguments: dict[str, Any]) -> int:
    """Multiply-adds of a product's tile; 0 for other kernels."""
    if "BLOCK_O" not in arguments or "BLOCK_M" not in arguments:
        return 0
    columns = arguments["BLOCK_O"] * (1 + arguments["GATED"])
    return int(arguments["BLOCKS"] * arguments["BLOCK_M"] * columns * arguments["BLOCK_K"])


def _loop(cubin: bytes) -> list[str]:
    """Instructions of the shortest loop that has a product; none without one on tensor cores."""
    labels: dict[str, int] = {}
    found: list[str] = []
    loops = []
    for line in _disassembled("nvdisasm", cubin, "-c").splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(found)
        elif instruction := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            found.append(instruction[1])
            jump = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", instruction[1])
            if jump and jump[1] in labels:
                loops.append(found[labels[jump[1]] :])
    return min((loop for loop in loops if any("MMA" in each for each in loop)), key=len, default=[])


def _disassembled(tool: str, cubin: bytes, option: str) -> str:
    path = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([str(path), option, file.name], capture_output=True, text=True, check=True).stdout


def _resource_usage(cubin: bytes) -> dict[str, int]:
    text = _disassembled("cuobjdump", cubin, "--dump-resource-usage")
    return {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
