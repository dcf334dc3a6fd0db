"""The rules of the house: short functions and files, few parameters, a story that is read in ten minutes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from caw.cli.program import COMMANDS, GROUPS

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("caw", "triton_kernels", "benchmarks", "gates", "csrc")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]
pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").is_file(), reason="needs a checkout")

LINES, KERNEL_FILE_LINES = 400, 500  # of a file
BODY, KERNEL_BODY = 50, 100  # lines of a function, docstring and signature not counted
PARAMETERS = 10
STORY = ("caw/entrance.py", *(f"caw/decoding/{name}.py" for name in ("plan", "decoder", "prefill", "step")))
STORY_LINES, ENTRANCE_BODY = 900, 40
# what users give by name, and what has the arguments of an operator
WIDE = {
    ("caw/entrance.py", "generate"), ("caw/entrance.py", "iter_generate"), ("caw/custom_generate.py", "decode"),
    ("caw/ray.py", "generate_dataset"),  # its keywords are public and older than the rule
}  # fmt: skip
WIDE |= {
    (f"{command.module.replace('.', '/')}.py", command.function)
    for group in (COMMANDS, *GROUPS.values())
    for command in group.values()
}
OPERATORS = ("triton_kernels/", "caw/ops_ref/", "caw/ops.py")
Function = ast.FunctionDef | ast.AsyncFunctionDef
SEARCHES = {"sub", "subn", "match", "search", "fullmatch", "findall", "finditer", "split"}
MESSAGES = ("error", "message", "warning", "caught", "reason")


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def is_kernel(function: Function) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def body_lines(function: Function) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def parameters(function: Function) -> int:
    given = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len([name for name in given if name not in ("self", "cls")])


def too_long(tree: ast.AST) -> list[str]:
    found = [(f.name, body_lines(f), KERNEL_BODY if is_kernel(f) else BODY) for f in functions(tree)]
    return [f"{name}: {lines} lines, at most {most}" for name, lines, most in found if lines > most]


def too_wide(tree: ast.AST, file: str) -> list[str]:
    if file.startswith(OPERATORS):
        return []
    found = [(f.name, parameters(f)) for f in functions(tree) if (file, f.name) not in WIDE]
    return [f"{name}: {count} parameters, at most {PARAMETERS}" for name, count in found if count > PARAMETERS]


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
def test_files_and_functions_are_short(file: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    tree = ast.parse(source)
    kernels = any(is_kernel(function) for function in functions(tree))
    assert len(source.splitlines()) <= (KERNEL_FILE_LINES if kernels else LINES)
    assert too_long(tree) == []
    assert too_wide(tree, file) == []
    assert read_messages(tree) == []


def test_the_story_is_short() -> None:
    assert sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in STORY) <= STORY_LINES
    tree = ast.parse((ROOT / STORY[0]).read_text(encoding="utf-8"))
    [entrance] = [function for function in functions(tree) if function.name == "iter_generate"]
    assert body_lines(entrance) <= ENTRANCE_BODY


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


def test_the_rules_find_what_breaks_them() -> None:
    long = "def f():\n" + "    x = 1\n" * (BODY + 1)
    wide = f"def f({', '.join(f'a{i}' for i in range(PARAMETERS + 1))}):\n    pass\n"
    assert too_long(ast.parse(long)) and not too_long(ast.parse(long.replace("    x = 1\n", "", 1)))
    assert too_long(ast.parse(long.replace("def", "@triton.jit\ndef"))) == []
    assert too_wide(ast.parse(wide), "caw/record.py") and not too_wide(ast.parse(wide), "caw/ops.py")
    assert (
        too_wide(ast.parse("class A:\n    " + wide.replace("a0", "self").replace("\n ", "\n     ")), "caw/a.py") == []
    )
    assert read_messages(ast.parse("re.sub('^prompt', '', str(error))"))
    assert not read_messages(ast.parse("re.sub('^a', '', name)"))
