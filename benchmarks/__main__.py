"""`python -m benchmarks` lists the scripts; `python -m benchmarks NAME [options]` runs one, as its file would be."""

import ast
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RUNS = 'if __name__ == "__main__":'


def scripts() -> dict[str, Path]:
    """By name: the file's, without bench_ and with its folder below this one."""
    files = [path for path in sorted(FOLDER.rglob("*.py")) if path.name != "__main__.py" and RUNS in path.read_text()]
    return {str(path.relative_to(FOLDER).with_suffix("")).removeprefix("bench_"): path for path in files}


def summary(path: Path) -> str:
    """The first paragraph of its docstring, on one line."""
    return " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())


def main(arguments: list[str]) -> None:
    known = scripts()
    if not arguments:
        print("\n".join(f"{name:26} {summary(path)}" for name, path in known.items()))
        return
    name, *options = arguments
    if name not in known:
        sys.exit(f"expected the name of a script, got {name!r}; `python -m benchmarks` lists them")
    sys.argv = [str(known[name]), *options]
    sys.path.insert(0, str(known[name].parent))  # the scripts beside it
    runpy.run_path(str(known[name]), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
