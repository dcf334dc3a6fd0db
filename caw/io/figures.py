"""Figures as files: small, reproducible SVG, or an image if the extension says so."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections import Counter
from pathlib import Path
from typing import Any

from caw.io.files import write_text, write_whole

DPI = 150  # of images
FONTS = ["DejaVu Sans"]  # one name: matplotlib writes the whole list into every text
GEOMETRY = re.compile(r' (?:d|x|y|width|height|viewBox|transform)="[^"]*"')
STYLE = re.compile(r' style="([^"]*)"')
LONG_NUMBER = re.compile(r"-?[0-9]+\.[0-9]{3,}")
PATH = re.compile(r' d="([^"]*)"')
COMMAND = re.compile(r"\s*([MLHVCSQTAZz])\s*")
GROUP = re.compile(r"<(/?)g\b([^>]*)>\s*")
NO_TURN = re.compile(r' transform="rotate\(-?0 [^"]*\)"')


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a matplotlib figure, whole or not at all; the name's ending says what: .svg as `svg_text` makes it, else
    what matplotlib knows, without an ending PNG.

    Raises ValueError for an ending that matplotlib does not know, OSError where the file cannot be written.
    """
    place = Path(path)
    if place.suffix.lower() == ".svg":
        write_text(place, svg_text(figure, place.stem))
    else:
        drawn = io.BytesIO()
        figure.savefig(drawn, format=place.suffix.removeprefix(".") or "png", dpi=DPI)
        write_whole(place, drawn.getvalue())


def svg_text(figure: Any, name: str) -> str:
    """The figure as SVG text without a date, with letters as text; deterministic for one matplotlib version.

    name: makes the ids inside differ from another figure's, so that two may stand on one page.
    """
    from matplotlib import rc_context

    out = io.StringIO()
    settings: Any = {
        "svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.sans-serif": FONTS,
    }  # fmt: skip
    with rc_context(settings):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    digest = base64.b32encode(hashlib.sha256(name.encode()).digest())
    return compact(out.getvalue(), "s" + digest[:4].decode().lower())


def compact(text: str, prefix: str) -> str:
    """The same drawing in fewer bytes: numbers to a hundredth of a point, no metadata, no indents, no unused ids, no
    groups without attributes, and styles that stand more than once as classes. Classes and ids begin with `prefix`."""
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", NO_TURN.sub("", text), flags=re.S)
    text = GEOMETRY.sub(lambda found: LONG_NUMBER.sub(_short, found[0]), text)
    text = PATH.sub(lambda found: f' d="{COMMAND.sub(_bare, found[1])}"', text)
    text = _with_short_ids(text, prefix)
    return re.sub(r"\n\s+", "\n", _without_bare_groups(_with_classes(text, prefix)))


def _with_short_ids(text: str, prefix: str) -> str:
    """Ids that nothing refers to are the same in every drawing, and a page must not have one twice: they go."""
    used = set(re.findall(r"#([\w.-]+)", text))
    ids = [name for name in re.findall(r' id="([^"]*)"', text) if name in used]
    names = {name: f"{prefix}i{i}" for i, name in enumerate(ids)}
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{names[found[1]]}"' if found[1] in names else "", text)
    return re.sub(r"#([\w.-]+)", lambda found: "#" + names.get(found[1], found[1]), text)


def _bare(command: re.Match[str]) -> str:
    return command[1]


def _without_bare_groups(text: str) -> str:
    """Without `<g>` that has no attribute, nor its end."""
    kept: list[bool] = []  # of the groups that are open

    def one(found: re.Match[str]) -> str:
        end, attributes = found[1], found[2].strip()
        if not end and not attributes.endswith("/"):
            kept.append(bool(attributes))
        return found[0] if attributes or (end and kept.pop()) else ""

    return GROUP.sub(one, text)


def _with_classes(text: str, prefix: str) -> str:
    counts = Counter(STYLE.findall(text))
    names = {style: f"{prefix}{i}" for i, style in enumerate(s for s, count in counts.items() if count > 1)}
    text = STYLE.sub(lambda found: f' class="{names[found[1]]}"' if found[1] in names else found[0], text)
    rules = "".join(f"\n.{name}{{{style}}}" for style, name in names.items())
    return text.replace("</style>", f"{rules}</style>", 1)


def _short(number: re.Match[str]) -> str:
    rounded = f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
    return "0" if rounded == "-0" else rounded
