"""Packages are asked for before work starts, by the functions as well as by the commands."""

import sys
from pathlib import Path
from typing import Any

import pytest

import caw
from caw.requirements import PACKAGES, require

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


class Hidden:
    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, name: str, *_: Any) -> None:
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[package][0], None)


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_missing_is_one_sentence(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, package)
    expected = rf"^{package} is required for this test and is not installed; run `pip install 'caw-watermark\[\w+\]'`$"
    with pytest.raises(ImportError, match=expected):
        require(package, "this test")


def test_a_finder_that_raises_is_no_other_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.split(".")[0] == "reedsolo"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Hidden("reedsolo"), *sys.meta_path])
    with pytest.raises(ImportError, match="reedsolo is required for payloads"):
        caw.KGW(key=1, payload_bits=8)


def test_what_is_there_is_not_imported() -> None:
    before = set(sys.modules)
    require("pyyaml", "this test")
    require("scikit-learn", "this test")
    assert {"yaml", "sklearn"} & (set(sys.modules) - before) == set()


def test_every_extra_brings_its_package() -> None:
    if not PYPROJECT.is_file():
        pytest.skip("needs the checkout")
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    for package, (_, extra) in PACKAGES.items():
        assert any(wanted.startswith((package, f"{package}[")) for wanted in extras[extra]), (package, extra)


@pytest.mark.parametrize("watermark", [caw.KGW, caw.EXP])
def test_payloads_ask_when_a_watermark_is_made(watermark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "reedsolo")
    with pytest.raises(ImportError, match="reedsolo is required for payloads"):
        watermark(key=1, payload=3, payload_bits=8)
    assert watermark(key=1).payload_bits == 0
