"""ggml's own products of float32 rows with quantized matrices, called in the library of the package xllamacpp."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from ctypes import c_bool, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np

DATA, EXTRA = 248, 320  # bytes into a ggml_tensor at which its data and its `extra` stand
NODES = 2048  # that a graph of default size holds


class _Params(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("buffer", c_void_p), ("no_alloc", c_bool))


SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "ggml_init": (c_void_p, [_Params]),
    "ggml_free": (None, [c_void_p]),
    "ggml_tensor_overhead": (c_size_t, []),
    "ggml_graph_overhead": (c_size_t, []),
    "ggml_new_tensor_2d": (c_void_p, [c_void_p, c_int, c_int64, c_int64]),
    "ggml_mul_mat": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "ggml_new_graph": (c_void_p, [c_void_p]),
    "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
    "ggml_get_data": (c_void_p, [c_void_p]),
    "ggml_backend_cpu_init": (c_void_p, []),
    "ggml_backend_cpu_set_n_threads": (None, [c_void_p, c_int]),
    "ggml_backend_cpu_buffer_type": (c_void_p, []),
    "_Z35ggml_backend_cpu_repack_buffer_typev": (c_void_p, []),
    "ggml_backend_alloc_ctx_tensors_from_buft": (c_void_p, [c_void_p, c_void_p]),
    "ggml_backend_buffer_free": (None, [c_void_p]),
    "ggml_backend_tensor_set": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_tensor_get": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_graph_compute": (c_int, [c_void_p, c_void_p]),
}


def library() -> ctypes.CDLL | None:
    """ggml, or None without the package."""
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        return None
    found = ctypes.CDLL(str(next(Path(spec.origin).parent.glob("xllamacpp*.so"))))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


class Products:
    """One graph that multiplies rows by `copies` copies of each matrix, one after another, in one thread.

    matrices: (ggml's type, uint8 [outputs, bytes of a row], inputs). repacked: in the order that ggml's kernels for
    several rows read. Raises LookupError where ggml has no such order for a type.
    """

    def __init__(
        self, ggml: ctypes.CDLL, matrices: list[tuple[int, np.ndarray, int]], copies: int, rows: int, repacked: bool
    ) -> None:
        self.ggml, self.rows = ggml, rows
        count = len(matrices) * copies
        if count >= NODES:
            raise ValueError(f"expected fewer than {NODES} products in a graph, got {count}; use fewer copies")
        weights, rest = self._context(count), self._context(count + len(matrices))
        tensors = [ggml.ggml_new_tensor_2d(weights, kind, inputs, len(blocks)) for _ in range(copies)
                   for kind, blocks, inputs in matrices]  # fmt: skip
        usual, other = ggml.ggml_backend_cpu_buffer_type, ggml._Z35ggml_backend_cpu_repack_buffer_typev
        self.inputs = [ggml.ggml_new_tensor_2d(rest, 0, inputs, rows) for _, _, inputs in matrices]
        self.outputs = [ggml.ggml_mul_mat(rest, t, self.inputs[i % len(matrices)]) for i, t in enumerate(tensors)]
        self.widths = [len(blocks) for _, blocks, _ in matrices]
        self.graph = ggml.ggml_new_graph(rest)
        for one in self.outputs:
            ggml.ggml_build_forward_expand(self.graph, one)
        buffers = [ggml.ggml_backend_alloc_ctx_tensors_from_buft(weights, (other if repacked else usual)()),
                   ggml.ggml_backend_alloc_ctx_tensors_from_buft(rest, usual())]  # fmt: skip
        self.free: list[Callable[[], None]] = [lambda: [ggml.ggml_backend_buffer_free(b) for b in buffers],  # type: ignore[list-item,return-value]
                                               lambda: [ggml.ggml_free(c) for c in (weights, rest)]]  # fmt: skip # type: ignore[list-item,return-value]
        if any(c_void_p.from_address(t + DATA).value != ggml.ggml_get_data(t) for t in tensors):
            raise RuntimeError("expected ggml's tensors as they were in 2026, found another layout; use that version")
        if repacked and any(not c_void_p.from_address(t + EXTRA).value for t in tensors):
            raise LookupError("ggml reads these types in the file's order only")
        for i, tensor in enumerate(tensors):
            blocks = np.ascontiguousarray(matrices[i % len(matrices)][1])
            ggml.ggml_backend_tensor_set(tensor, blocks.ctypes.data, 0, blocks.nbytes)
        self.backend = ggml.ggml_backend_cpu_init()
        ggml.ggml_backend_cpu_set_n_threads(self.backend, 1)

    def _context(self, tensors: int) -> int:
        size = self.ggml.ggml_tensor_overhead() * (tensors + 1) + self.ggml.ggml_graph_overhead()
        return int(self.ggml.ggml_init(_Params(size, None, True)))

    def __call__(self) -> None:
        if self.ggml.ggml_backend_graph_compute(self.backend, self.graph):
            raise RuntimeError("ggml could not compute its graph")

    def set(self, rows: list[np.ndarray]) -> None:
        """The rows of each matrix, float32 [rows, inputs]."""
        for tensor, values in zip(self.inputs, rows, strict=True):
            self.ggml.ggml_backend_tensor_set(tensor, np.ascontiguousarray(values).ctypes.data, 0, values.nbytes)

    def results(self) -> list[np.ndarray]:
        """Of the first copy of each matrix, float32 [rows, outputs]."""
        made = []
        for tensor, width in zip(self.outputs, self.widths, strict=False):
            out = np.empty((self.rows, width), np.float32)
            self.ggml.ggml_backend_tensor_get(tensor, out.ctypes.data, 0, out.nbytes)
            made.append(out)
        return made

    def close(self) -> None:
        """Give the memory back."""
        for one in self.free:
            one()
