"""Rules of the house that a program can check without shaping the code: size is for reviewers to judge."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (".py", ".cpp", ".h", ".inc", ".cu", ".cuh")
# lines that each part may have: what a reader has to take over. Whoever adds names what it replaces
BUDGETS = {
    ("caw", "triton_kernels", "csrc"): 57_500,
    ("caw_lab",): 8_500,
    ("benchmarks",): 7_500,
    ("tests",): 47_000,
    ("docs/tools",): 1_200,
}
LONGEST = 121  # columns of Python, without what is said to tools
TO_TOOLS = re.compile(r"  # (fmt: skip|type: ignore|noqa).*")
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


def hidden_modules(package: Path) -> set[str]:
    """Modules whose name the package's __init__ gives to something else."""
    folder, tree = package.parent, ast.parse(package.read_text(encoding="utf-8"))
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    return names & (modules - {"__init__"})


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    names = [name for name in done.stdout.split("\0") if name.endswith(SOURCES) and (ROOT / name).is_file()]
    if not names:
        pytest.skip("needs git to know which files belong to the project")
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names}


def test_no_message_of_ours_is_parsed(sources: dict[str, str]) -> None:
    """Its words may change at any time: an error has a class, a warning a category."""
    python = {n: text for n, text in sources.items() if n.endswith(".py") and not n.startswith(("tests/", "docs/"))}
    assert {name: messages for name, text in python.items() if (messages := read_messages(ast.parse(text)))} == {}


def imported(text: str) -> set[str]:
    tree = ast.parse(text)
    types = [node for test in ast.walk(tree) if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.unparse(test.test)
             for part in test.body for node in ast.walk(part)]  # fmt: skip
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) and node not in types]
    names = {f"{n.module}.{a.name}" for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}
    return names | {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}


def circles(sources: dict[str, str]) -> list[str]:
    """Modules that an import of theirs leads back to."""
    known = {name.removesuffix(".py").replace("/", "."): name for name in sources}
    uses = {
        module: {known_as for name in imported(sources[path]) for known_as in (name, name.rpartition(".")[0])
                 if known_as in known and known_as != module}
        for module, path in known.items()
    }  # fmt: skip
    found = []
    for module in uses:
        reached, waiting = set(), list(uses[module])
        while waiting and module not in reached:
            if (one := waiting.pop()) not in reached:
                reached.add(one)
                waiting += uses[one]
        found += [module] * (module in reached)
    return found


def test_no_imports_go_in_a_circle(sources: dict[str, str]) -> None:
    """Not those inside functions either: files of one circle can only be understood together."""
    python = {n: text for n, text in sources.items() if n.startswith(("caw/", "caw_lab/")) and n.endswith(".py")}
    assert len(python) > 300 and circles(python) == []
    made = {"a.py": "def f():\n    from b import g", "b.py": "import c", "c.py": "from a import f", "d.py": "import a"}
    assert circles(made) == ["a", "b", "c"]


def test_no_name_of_a_package_hides_a_module(sources: dict[str, str]) -> None:
    """`caw.generate` would be the module or the function, by what was imported last."""
    packages = [name for name in sources if name.endswith("__init__.py")]
    assert packages and {name: hidden for name in packages if (hidden := hidden_modules(ROOT / name))} == {}


def test_every_gate_is_on_the_page(sources: dict[str, str]) -> None:
    """And no other: CONTRIBUTING.md is where their names are looked up."""
    gates = {gate for text in sources.values() for gate in re.findall(r'mark\.gate\("([a-z-]+)"', text)}
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [table] = re.findall(r"\| gate \|.*?\n\n", text, re.DOTALL)
    assert gates == {
        name for row in table.strip().splitlines() for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])
    }


def test_every_part_is_within_its_budget(sources: dict[str, str]) -> None:
    lines: Counter[tuple[str, ...]] = Counter()
    for name, text in sources.items():
        part = next((folders for folders in BUDGETS if name.startswith(tuple(f"{f}/" for f in folders))), None)
        lines.update({part: len(text.splitlines())} if part else {})
    assert {part: count for part, count in lines.items() if count > BUDGETS[part]} == {}


def test_no_line_is_too_long(sources: dict[str, str]) -> None:
    long = [
        f"{name}:{number}"
        for name, text in sources.items()
        for number, line in enumerate(text.splitlines(), 1)
        if name.endswith(".py") and len(TO_TOOLS.sub("", line)) > LONGEST
    ]
    assert long == []


def test_the_rule_finds_what_breaks_it() -> None:
    assert read_messages(ast.parse("re.sub('^prompt', '', str(error))"))
    assert not read_messages(ast.parse("re.sub('^a', '', name)"))
