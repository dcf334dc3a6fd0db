"""Ahead-of-time compilation to cubin without a GPU, from what the launchers really ask for.

A launcher runs on meta tensors under `launching.recorded`, so that types, constants, divisibility and launch options
are those of a real call with 16-byte aligned tensors; each recorded launch is then compiled and the assembler's
resource report read back. Must run where TRITON_INTERPRET is unset.
"""

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
    there), shared memory in bytes, and how many asynchronous copies and tensor-core instructions the PTX holds."""

    kernel: str
    registers: int
    stack: int
    local: int
    shared: int
    async_copies: int
    tensor_ops: int
    fused_multiply_adds: int


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


def compile_launch(launch: launching.Launch, capability: int) -> Report:
    """Compile for compute capability 80, 90 or 100 and read the report."""
    options = dict(launch.options)
    if launch.arguments.get("FORMAT") == FP8 and divmod(capability, 10) < HARDWARE:
        launch = replace(launch, arguments={**launch.arguments, "FORMAT": int(FP8_BITS)})
    compiled = triton.compile(source(launch), target=GPUTarget("cuda", capability, WARP), options=options)
    ptx = compiled.asm["ptx"]
    usage = _resource_usage(compiled.asm["cubin"])
    return Report(
        kernel=launch.kernel.__name__,
        registers=usage["REG"],
        stack=usage["STACK"],
        local=usage["LOCAL"],
        shared=compiled.metadata.shared,
        async_copies=len(re.findall(r"\bcp\.async\.c[ag]\b", ptx)),
        tensor_ops=len(re.findall(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b", ptx)),
        fused_multiply_adds=len(re.findall(r"\bfma\.", ptx)),
    )


def _resource_usage(cubin: bytes) -> dict[str, int]:
    tool = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    missing = {"REG", "STACK", "LOCAL"} - found.keys()
    if missing:
        raise RuntimeError(f"expected {', '.join(sorted(missing))} in cuobjdump's report, found {text!r}")
    return found
