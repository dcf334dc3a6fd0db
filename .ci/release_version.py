"""Check before a release: tag, version and changelog agree, and no wheel is too large.

    python .ci/release_version.py [TAG]
    python .ci/release_version.py --largest MB WHEEL...

Exit code 1 and one sentence where something does not fit. Runs on a bare Python, before anything is installed.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def wrong_version(root: Path, tag: str) -> str:
    """Why this tree cannot be released under this tag, "" if it can. tag: "" checks version and changelog alone."""
    found = re.search(r'^version = "([^"]+)"$', (root / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        return 'pyproject.toml must have a line version = "X.Y.Z", found none; add it'
    version = found[1]
    if tag and tag != f"v{version}":
        return f"the tag must be v{version}, as pyproject.toml says, got {tag}; tag again or change the version"
    headings = re.findall(r"^## (\S+)", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if version not in headings:
        return f"CHANGELOG.md must have a heading `## {version}`, found {', '.join(headings)}; add it"
    return ""


def too_large(wheels: list[Path], most: float) -> str:
    """Which wheel has more than `most` MB (10^6 bytes), "" if none has."""
    for wheel in wheels:
        size = wheel.stat().st_size / 1e6
        if size > most:
            return f"a wheel must have at most {most:g} MB, {wheel.name} has {size:.1f}; leave something out"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", nargs="*", help="a tag, or with --largest the wheels")
    parser.add_argument("--largest", type=float, metavar="MB", help="most MB of each wheel")
    options = parser.parse_args()
    if options.largest is not None:
        wrong = too_large([Path(name) for name in options.given], options.largest)
    else:
        wrong = wrong_version(ROOT, options.given[0] if options.given else "")
    if wrong:
        print(wrong, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
