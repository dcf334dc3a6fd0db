"""csrc/cuda compiled for the CPU (cuda_on_cpu.hpp says how), and small calls of every kernel beside the CPU's.

    python tests/csrc/cuda_on_cpu.py LIBRARY SEED [SKIPPED_LINE]     # one line for each call that differs

A process of its own where the address sanitizer watches, or where a planted fault may end it.
"""

import ctypes
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.cpp_extension import include_paths

from caw import ops
from caw.record import Record
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, Unigram

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
SOURCE = CSRC / "cuda" / "candidates_cuda.cu"
OPERATORS = ("enumerate_candidates", "score_tokens", "sampling_noise", "permutation_green", "permutation_contains",
             "generator_words")  # fmt: skip
SANITIZE = ("-fsanitize=address", "-fsanitize-sections=caw_shared", "-fno-omit-frame-pointer", "-g1")
STREAM = """
extern "C" __attribute__((visibility("default"))) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void**) {
  return AOTI_TORCH_SUCCESS;
}
"""
WATERMARKS: dict[str, Any] = {
    "lefthash": KGW(key=11, gamma=0.05),
    "selfhash": KGW(key=12, seeding="selfhash", gamma=0.01, delta=9.0),
    "unigram": Unigram(key=13, gamma=0.004, delta=30.0),
    "top_k": EXP(key=14, top_k=100),
    "scale": EXP(key=15, strength="scale"),
}
NAMESPACE = "caw_on_cpu"


def translated(source: str) -> str:
    """C++ of a .cu file, line by line the same: launches become calls, inline assembly goes."""
    text = re.sub(r"asm volatile\(.*?\);", ";", source)
    text, launches = re.subn(
        r"(\w+)<<<(.+?), (\w+), 0, current_stream\(\w+\)>>>\((.*?)\);",
        r"::on_cpu::launch(dim3(\2), dim3(\3), [&] { \1(\4); });", text, flags=re.DOTALL,
    )  # fmt: skip
    if "<<<" in text or not launches:
        raise ValueError("expected launches as name<<<blocks, threads, 0, current_stream(t)>>>(...); found others")
    text = text.replace("STABLE_TORCH_LIBRARY_IMPL(caw, CUDA, m)", f"STABLE_TORCH_LIBRARY_IMPL({NAMESPACE}, CPU, m)")
    return f'#line 1 "{SOURCE.name}"\n{text}\n{STREAM}'


def build(folder: Path, source: str, sanitize: bool = False) -> Path:
    (folder / "kernels.cpp").write_text(source)
    # the name that a .cu file includes
    (folder / "cuda_runtime.h").write_text((HERE / "cuda_on_cpu.hpp").read_text())
    include = [f"-I{path}" for path in (folder, CSRC / "cuda", *include_paths())]
    torch_lib = Path(torch.__file__).parent / "lib"
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-w", "-fvisibility=hidden", "-DUSE_CUDA",
             "-DTORCH_TARGET_VERSION=0x020b000000000000", *(SANITIZE if sanitize else ())]  # fmt: skip
    library = folder / "kernels.so"
    libraries = [f"-L{torch_lib}", "-ltorch", "-ltorch_cpu", "-lc10"]
    command = ["g++", *flags, *include, str(folder / "kernels.cpp"), "-o", str(library), *libraries]
    subprocess.run(command, check=True)
    return library


class OnCPU:
    """The operators of a library, and its switches. One library a process: operators are registered once."""

    def __init__(self, library: Path) -> None:
        self._defined = torch.library.Library(NAMESPACE, "DEF")
        for name in OPERATORS:
            schema = str(getattr(torch.ops.caw, name).default._schema).split("::", 1)[1]
            self._defined.define(schema)
        torch.ops.load_library(str(library))
        self.ops: Any = SimpleNamespace(**{name: getattr(getattr(torch.ops, NAMESPACE), name) for name in OPERATORS})
        self._switches = ctypes.CDLL(str(library))
        self._switches.on_cpu_order.argtypes = [ctypes.c_uint64]
        self._switches.on_cpu_faults.restype = ctypes.c_int64

    def differences(self, seed: int, skipped: int = 0) -> list[str]:
        """What is not as the CPU's own operators say, with the threads in this order (0 = their own)."""
        self._switches.on_cpu_order(seed)
        self._switches.on_cpu_skip(skipped)
        found = []
        for name, op, arguments in calls():
            got, expected = (settled(op, getattr(where, op)(*arguments)) for where in (self.ops, ops))
            try:
                for one, other in zip(got, expected, strict=True):
                    assert_close(one, other, "float32" if one.is_floating_point() else "exact")
            except AssertionError:
                found.append(name)
        faults = self._switches.on_cpu_faults()
        return found + ([f"{faults} times threads waited at different barriers"] if faults else [])


def settled(op: str, result: Any) -> list[torch.Tensor]:
    """The tensors of a result; of a ladder only what its count reaches, and no infinite needs."""
    tensors = list(result) if isinstance(result, (list, tuple)) else [result]
    if op == "enumerate_candidates":
        candidates, needs, counts = tensors
        there = torch.arange(needs.shape[1])[None] < counts[:, None]
        tensors = [candidates, torch.where(there & needs.isfinite(), needs, 0.0), counts]
    return tensors


def calls() -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """(name, operator, arguments): every kernel, sizes below, at and above a block's threads, ties, no hope."""
    generator = torch.Generator().manual_seed(3)
    keys = torch.tensor([0x1234_5678_9ABC_DEF0, -5, 7])
    scores = torch.randn(3, 1000, generator=generator).mul(4).round() / 2
    scores[1] = -torch.inf
    scores[1, 7] = 1.0
    record = Record.from_logits(scores)
    for name, watermark in WATERMARKS.items():
        context, native = torch.randint(-1, 999, (3, watermark.window), generator=generator), watermark.native
        given = (record.values, record.ids, record.values, scores, context, keys, native.scheme, native.threshold)
        yield f"ladder {name}", "enumerate_candidates", (*given, watermark.full, 1.0)
        ids, own = torch.randint(-1, 5000, (131,), generator=generator), keys.repeat(44)[:131]
        given = (ids, watermark.window, own, native.scheme, native.threshold)
        yield f"scores {name}", "score_tokens", given
    # a record of three tokens: where none is green, all others are looked through
    short = (record.values[:, :3], record.ids[:, :3], record.values[:, :3], scores)
    for gamma in (1 << 21, 1 << 20):
        yield "ladder of a short record", "enumerate_candidates", (*short, keys[:, None], keys, 0, gamma, 30.0, 1.0)
    for size in (1, 5, 1031):
        yield f"noise {size}", "sampling_noise", (torch.tensor([[1, 2], [3, 2**40], [-1, 4]]), keys, size)
    seeds = torch.tensor([0, 42 * 15_485_863, -1, 2**63 - 1])
    for size in (1, 8, 625, 1300):
        for count in {0, size // 4, size}:
            yield f"green {size} {count}", "permutation_green", (seeds, size, count)
            yield f"green where wanted {size} {count}", "permutation_green", (seeds, size, count, seeds > 0)
            tokens = torch.randint(-1, size + 1, (4,), generator=generator)
            yield f"contains {size} {count}", "permutation_contains", (seeds, tokens, size, count)
    yield "words", "generator_words", (seeds, torch.tensor([0, 623, 624, 1999]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    wrong = OnCPU(Path(sys.argv[1])).differences(*map(int, sys.argv[2:]))
    print("\n".join(wrong), flush=True)
    sys.exit(1 if wrong else 0)
