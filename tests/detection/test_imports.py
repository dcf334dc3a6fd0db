"""A detector needs no model: nothing it imports, directly or through others of this library, loads one."""

from __future__ import annotations

import ast
from pathlib import Path

import caw

ROOT = Path(caw.__file__).parent
FORBIDDEN = ("transformers", "caw.models", "caw.decoding", "caw.entrance", "caw.custom_generate", "caw_lab.evaluation")


def file_of(module: str) -> Path | None:
    folder = ROOT.joinpath(*module.split(".")[1:])
    for candidate in (folder.with_suffix(".py"), folder / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def imports_of(file: Path) -> set[str]:
    """Absolute names a file imports at any level, `from a import b` as both a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def reached_from(package: str) -> set[str]:
    """Every module that importing the package's files leads to; the root's own __init__ is left out."""
    todo = {f"caw.{package}.{f.stem}" for f in (ROOT / package).glob("*.py") if f.stem != "__init__"}
    seen: set[str] = set()
    while todo:
        module = todo.pop()
        seen.add(module)
        file = file_of(module) if module.startswith("caw.") else None
        if file:
            todo |= imports_of(file) - seen - {"caw"}
    return seen


def test_detection_imports_no_model_and_watermarks_no_decoding() -> None:
    for package in ("detection", "watermarks"):
        reached = reached_from(package)
        assert {"torch", "caw.prf"} <= reached  # the walk works
        assert not {m for m in reached if m.startswith(FORBIDDEN)}
    assert "transformers" in imports_of(ROOT / "models" / "load.py")
