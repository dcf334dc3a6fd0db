"""Compiler flags of the extension, read by setup.py, compile_cuda.py and sanitize.py through runpy."""

import os

# torch's stable ABI as of 2.11, Python's as of 3.10
STABLE_ABI = ["-DTORCH_TARGET_VERSION=0x020b000000000000", "-DPy_LIMITED_API=0x030A0000"]
# no -march: kernels choose their instruction set when loaded; no contraction: it would flip exact ties
PLAIN_FLAGS = ["-O3", "-g0", "-std=c++20", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra",
               "-Wno-unused-parameter", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # fmt: skip
CXX_FLAGS = [*STABLE_ABI, *PLAIN_FLAGS]
NVCC_FLAGS = [*STABLE_ABI, "-DUSE_CUDA", "-O3", "-std=c++20", "-fmad=false"]
CUDA_ARCHITECTURES = tuple(os.environ.get("CAW_CUDA_ARCHITECTURES", "80,90,100").split(","))
