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

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from caw.triton_kernels import launching
from caw.triton_kernels.packed_weights import FP8, FP8_BITS, HARDWARE

POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint32: "*u32",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
ALIGNMENT = 16
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
    """Signature, constants and attributes as the just-in-time compiler would specialise this launch."""
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}

    def kinds(path: tuple[int, ...], value: Any, parameter: Any) -> Any:
        """Triton types of an argument, of a tuple one for each member."""
        if isinstance(value, tuple) and not parameter.is_constexpr:
            members = [kinds((*path, i), member, parameter) for i, member in enumerate(value)]
            return type(value)(*members) if hasattr(value, "_fields") else tuple(members)
        kind, aligned = _kind(value, parameter)
        if kind == "constexpr":
            constants[path] = value
        elif aligned:
            attributes[path] = [["tt.divisibility", ALIGNMENT]]
        return kind

    signature = {p.name: kinds((i,), launch.arguments[p.name], p) for i, p in enumerate(launch.kernel.params)}
    return ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)


def _kind(value: Any, parameter: Any) -> tuple[str, bool]:
    """(Triton type, whether divisible by 16) of one argument; "constexpr" for constants, None and the integer 1."""
    if parameter.is_constexpr or value is None or isinstance(value, tl.constexpr):
        return "constexpr", False
    if isinstance(value, torch.Tensor):
        offset = value.storage_offset() * value.element_size()
        return POINTERS[value.dtype], offset % ALIGNMENT == 0
    if isinstance(value, bool):
        return "i1", False
    if isinstance(value, int):
        specialised = not parameter.do_not_specialize
        if specialised and value == 1:
            return "constexpr", False
        return "i32" if -(1 << 31) <= value < 1 << 31 else "i64", specialised and value % ALIGNMENT == 0
    return "fp32", False


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
