"""Figures as files: the same bytes for the same figure."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from caw.io.figures import save_figure, svg_text

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
    assert text == svg_text(drawn(), "a") and "dc:date" not in text
    assert "x of 1.23456789" in text and "a line, 0.123456" in text, "letters stay text, and numbers in it as they are"
    ElementTree.fromstring(text)
    clips = [set(re.findall(r'<clipPath id="([^"]*)"', svg_text(drawn(), name))) for name in ("a", "b")]
    assert clips[0] and not clips[0] & clips[1], "two figures on one page take nothing of each other"


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
