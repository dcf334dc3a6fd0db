"""Packages are asked for before work starts, by the functions as well as by the commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import save_tiny

import caw
from caw.requirements import PACKAGES, require
from caw_lab.evaluation.config_file import config_of
from caw_lab.evaluation.run import Runner
from caw_lab.evaluation.store import Store

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


class Hidden:
    """A finder that knows these packages not to be there."""

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
    expected = rf"^{package} is required for this test and is not installed; run `pip install 'caw\[\w+\]'`$"
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


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "q.jsonl").write_text('{"prompt": "the sky", "answer": "a"}\n')
    return {
        "output": str(tmp_path / "run"), "keys": 1, "generation": {"max_new_tokens": 4},
        "models": {"tiny": {"source": str(save_tiny(tmp_path / "tiny")), "dtype": "float32"}},
        "tasks": {"mine": {"kind": "jsonl", "path": str(tmp_path / "q.jsonl"), "grade": "contains"}},
        "watermarks": {"kgw": {"kind": "kgw"}}, "policies": {"hard": {"kind": "fixed"}},
    }  # fmt: skip


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def refuse(*arguments: Any, **settings: Any) -> None:
    raise AssertionError("a model was loaded")


def test_a_run_asks_for_what_its_metrics_need(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caw_lab.evaluation.run.load_model", refuse)
    hide(monkeypatch, "scikit-learn")
    run = Runner(config_of(config), Store(tmp_path / "run"), progress=False)
    for call in (run.run, run.score):
        with pytest.raises(ImportError, match="scikit-learn is required for the metrics of an evaluation"):
            call()
    assert files_in(tmp_path / "run") == []


def test_a_run_asks_for_every_model_before_the_first_text(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second model's package or file was found missing when the first model was done."""
    monkeypatch.setattr("caw_lab.evaluation.run.load_model", refuse)
    monkeypatch.setenv("CAW_CACHE", str(tmp_path / "cache"))
    (tmp_path / "late.gguf").write_bytes(b"GGUF")
    config["models"]["late"] = {"source": str(tmp_path / "late.gguf")}
    hide(monkeypatch, "gguf")
    with pytest.raises(ImportError, match=r"gguf is required for reading \.gguf files"):
        Runner(config_of(config), Store(tmp_path / "run"), progress=False).run()
    config["models"]["late"] = {"source": str(tmp_path / "none")}
    with pytest.raises(FileNotFoundError, match="does not exist"):
        Runner(config_of(config), Store(tmp_path / "run"), progress=False).run()
    assert files_in(tmp_path / "run") == []


def test_a_report_without_matplotlib_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.evaluation.small_run import write_run

    from caw_lab.evaluation.report.data import read_report_data
    from caw_lab.evaluation.report.document import write_report

    write_run(tmp_path / "run", ("kgw",), attacks=())
    data = read_report_data(tmp_path / "run")
    hide(monkeypatch, "matplotlib")
    with pytest.raises(ImportError, match="matplotlib is required for the figures of a report"):
        write_report(data, tmp_path / "report")
    assert not (tmp_path / "report").exists()
