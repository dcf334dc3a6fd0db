"""Figures as files: reproducible SVG, or an image if the extension says so."""

import io
import re
from pathlib import Path
from typing import Any

from caw.io.files import write_text, write_whole

DPI = 150  # of images
FONTS = ["DejaVu Sans"]  # one name: matplotlib writes the whole list into every text


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a matplotlib figure by its ending (.svg: `svg_text`; none: PNG). ValueError for others, OSError."""
    place = Path(path)
    if place.suffix.lower() == ".svg":
        write_text(place, svg_text(figure, place.stem))
    else:
        drawn = io.BytesIO()
        figure.savefig(drawn, format=place.suffix.removeprefix(".") or "png", dpi=DPI)
        write_whole(place, drawn.getvalue())


def svg_text(figure: Any, name: str) -> str:
    """The figure as SVG with text, no date; deterministic for one matplotlib. name: keeps ids of two figures apart."""
    from matplotlib import rc_context

    out = io.StringIO()
    settings: Any = {
        "svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.sans-serif": FONTS,
    }  # fmt: skip
    with rc_context(settings):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    used = set(re.findall(r"#([\w.-]+)", text))
    # ids that nothing refers to are the same in every drawing, and a page must not have one twice
    return re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
