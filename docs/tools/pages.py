"""Write what the pages take from elsewhere into them, so that they can be read where they are.

    python docs/tools/pages.py            write
    python docs/tools/pages.py --check    write nothing; exit 1 for a page that is not current and for dead links

A block begins with its name and ends with `<!-- end -->`:

    <!-- table: NAME -->           a table of `result_tables`
    <!-- file: PATH -->            a program of the repository
    <!-- object: NAME MEMBER -->   signature and docstring of a public object, and of members
    <!-- commands -->              every command with its options
    <!-- operators -->             every operator with its schema
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / name) for name in ("docs/tools", "benchmarks") if str(ROOT / name) not in sys.path]

from command_line import command_line  # noqa: E402
from operators import operators  # noqa: E402
from reference import entry  # noqa: E402
from result_tables import table  # noqa: E402

BLOCK = re.compile(r"^(<!-- (\w+)(?:: (.*?))? -->)\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def program(path: str) -> str:
    return f"```python\n{(ROOT / path).read_text(encoding='utf-8').rstrip()}\n```"


MAKERS: dict[str, Callable[[str], str]] = {
    "table": table,
    "file": program,
    "object": lambda name: entry(*name.split()),
    "commands": lambda name: command_line(),
    "operators": lambda name: operators(),
}


def pages() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


def current(text: str) -> str:
    """A page with its blocks made anew; KeyError and ValueError for what cannot be made."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{MAKERS[found[2]](found[3] or '')}\n<!-- end -->", text)


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    titles = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def dead_links(page: Path) -> Iterator[str]:
    """Links of a page to files and headings that are not there; addresses of other places are not asked."""
    for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and (file.suffix != ".md" or anchor not in anchors(file))):
            yield f"{page.relative_to(ROOT)}: {target}"


def main(arguments: list[str]) -> int:
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        made = current(text)
        if made != text:
            stale.append(str(page.relative_to(ROOT)))
            if "--check" not in arguments:
                page.write_text(made, encoding="utf-8")
    linked = [*pages(), *ROOT.glob("*.md"), *ROOT.glob("lab/*.md"), ROOT / "benchmarks/README.md"]
    dead = [link for page in linked for link in dead_links(page)]
    print("\n".join([*(f"not current: {name}; run python docs/tools/pages.py" for name in stale), *dead]))
    return bool(dead or (stale and "--check" in arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
