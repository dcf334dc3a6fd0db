"""Truth beside the kernels: `<op>.py` has `<op>_ref.py` next door, with a reference of every op, free of Triton.

What the PRF, a ladder, capacity and strength mean stands in `caw/`; references and kernels import it from there.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from caw import ops, triton_kernels

FOLDER = Path(triton_kernels.__path__[0])
MEANT = {"prf"}  # helpers of other kernels; what they compute says `caw/prf.py`
NO_RESULT = {"overlap"}  # when a kernel may start, not what it computes


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]


def is_jit(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator).startswith("triton.jit") for decorator in function.decorator_list)


KERNELS = {
    path.stem: path
    for path in sorted(FOLDER.glob("*.py"))
    if path.stem not in NO_RESULT and any(map(is_jit, functions(path)))
}


def test_every_reference_stands_beside_its_kernel() -> None:
    references = {path.stem for path in FOLDER.glob("*_ref.py")}
    assert len(KERNELS) >= 8
    assert references == {f"{name}_ref" for name in KERNELS.keys() - MEANT}


@pytest.mark.parametrize("name", sorted(KERNELS.keys() - MEANT))
def test_every_op_of_a_kernel_has_its_reference_there(name: str) -> None:
    launchers = [f.name for f in functions(KERNELS[name]) if not is_jit(f) and hasattr(ops, f.name)]
    assert launchers
    reference = importlib.import_module(f"caw.triton_kernels.{name}_ref")
    assert {f"{launcher}_ref" for launcher in launchers} <= vars(reference).keys()
