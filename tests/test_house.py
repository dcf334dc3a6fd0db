"""Rules of the house that a program can check without shaping the code: size is for reviewers to judge."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("caw", "benchmarks", "gates", "csrc", "lab")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]
pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").is_file(), reason="needs a checkout")

SEARCHES = {"sub", "subn", "match", "search", "fullmatch", "findall", "finditer", "split"}
MESSAGES = ("error", "message", "warning", "caught", "reason")


def read_messages(tree: ast.AST) -> list[str]:
    """Regular expressions that are applied to what this library says itself."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    searches = [call for call in calls if call.func.attr in SEARCHES and ast.unparse(call.func).startswith("re.")]  # type: ignore[attr-defined]
    texts = [(ast.unparse(call), " ".join(ast.unparse(a) for a in call.args[1:]).lower()) for call in searches]
    found = [shown for shown, text in texts if any(word in text for word in MESSAGES)]
    filters = [call for call in calls if call.func.attr == "filterwarnings" and call.keywords]  # type: ignore[attr-defined]
    return found + [
        ast.unparse(call)
        for call in filters
        if any(k.arg == "message" for k in call.keywords) and "caw" in ast.unparse(call)
    ]


@pytest.mark.parametrize("file", NAMES)
def test_no_message_of_ours_is_parsed(file: str) -> None:
    """Its words may change at any time: an error has a class, a warning a category."""
    assert read_messages(ast.parse((ROOT / file).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("package", [name for name in NAMES if name.endswith("__init__.py")])
def test_no_name_of_a_package_hides_a_module(package: str) -> None:
    """`caw.generate` would be the module or the function, by what was imported last."""
    folder, tree = (ROOT / package).parent, ast.parse((ROOT / package).read_text(encoding="utf-8"))
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    assert names & (modules - {"__init__"}) == set()


def test_the_rule_finds_what_breaks_it() -> None:
    assert read_messages(ast.parse("re.sub('^prompt', '', str(error))"))
    assert not read_messages(ast.parse("re.sub('^a', '', name)"))
