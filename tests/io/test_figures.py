"""Figures as files: the same bytes for the same figure, small, and still the same drawing."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from caw.io.figures import compact, save_figure, svg_text

pytest.importorskip("matplotlib")


def drawn() -> object:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3, 2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0.123456789, 1, 2], [1, 1.23456789, 3], marker="o", label="a line, 0.123456")
    axes.set_xlabel("x of 1.23456789")
    axes.legend()
    return figure


def test_svg_is_the_same_twice_and_says_no_date(tmp_path: Path) -> None:
    save_figure(drawn(), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text == svg_text(drawn(), "a") and "metadata" not in text and "date" not in text.lower()
    assert "x of 1.23456789" in text and "a line, 0.123456" in text, "letters stay text, and numbers in it as they are"
    ElementTree.fromstring(text)
    ids = set(re.findall(r' id="([^"]*)"', text))
    assert ids and ids == set(re.findall(r"#([\w.-]+)", re.sub(r"#[0-9a-f]{6}\b", "", text)))
    named = re.compile(r' (?:id|class)="([^"]*)"')
    other = set(named.findall(svg_text(drawn(), "b")))
    assert not set(named.findall(text)) & other and len(other) > len(ids), "two figures on one page share no name"


def test_svg_keeps_the_drawing_to_a_hundredth_of_a_point() -> None:
    before = """<svg><metadata>
 x
</metadata>
  <defs><style type="text/css">*{a: b}</style></defs>
  <g id="unused" style="fill: red">
    <g id="bare">
    <path id="p" d="M -0.001 12.3456789
L 1.5 2" style="fill: red"/>
  <use xlink:href="#p" x="7.999" transform="rotate(-0 1.234 5.678)" style="stroke-width: 0.12345"/></g></g></svg>"""
    after = """<svg><defs><style type="text/css">*{a: b}
.k0{fill: red}</style></defs>
<g class="k0">
<path id="ki0" d="M0 12.35L1.5 2" class="k0"/>
<use xlink:href="#ki0" x="8" style="stroke-width: 0.12345"/></g></svg>"""
    assert compact(before, "k") == after
    nested = '<g><g fill="#abc"><g><path d="M 1e-05 1"/></g></g><g x="1"/></g>'
    assert compact(nested, "k") == '<g fill="#abc"><path d="M1e-05 1"/></g><g x="1"/>'
    assert 'transform="rotate(-30 1.23 5.68)"' in compact('<g transform="rotate(-30 1.234 5.678)"/>', "k")


def test_other_endings_are_images(tmp_path: Path) -> None:
    save_figure(drawn(), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="not supported"):
        save_figure(drawn(), tmp_path / "a.nothing")


def test_figures_are_replaced_whole(tmp_path: Path) -> None:
    figures = pytest.importorskip("matplotlib.figure", reason="needs matplotlib")
    path = tmp_path / "plot.svg"
    save_figure(figures.Figure(), path)
    good = path.read_bytes()
    assert b"<svg" in good
    broken = figures.Figure()
    broken.text(0.5, 0.5, "$\\frac$")  # no formula: drawing it fails
    with pytest.raises(ValueError):
        save_figure(broken, path)
    assert path.read_bytes() == good
    save_figure(figures.Figure(), tmp_path / "plot")
    assert (tmp_path / "plot").read_bytes().startswith(b"\x89PNG")
