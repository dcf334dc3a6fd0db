"""Published copies: they hold no texts; committed ones stay small and give every table again, digit by digit."""

import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.evaluation.small_run import content_of
from lab.evaluation.tiny_run import CELLS, runner, texts
from typer.testing import CliRunner

from caw.cli import app
from caw_lab.evaluation.packed_files import read_lines
from caw_lab.evaluation.publishing import Published, publish
from caw_lab.evaluation.report.data import read_report_data
from caw_lab.evaluation.report.document import markdown, sections
from caw_lab.evaluation.results import Results
from caw_lab.evaluation.store import Store

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
RESULTS = BENCHMARKS / "results"
QUICK = ("qwen05ends", "qwen15target")
LONG = ("qwen05", "qwen05keys", "qwen05target", "qwen05others", "qwen15", "qwen15ends")
TITLE = "Watermarks: accuracy and detection"  # of `caw evaluate report`


def folder_of(name: str) -> Path:
    return RESULTS / f"evaluation_{name}"


@pytest.mark.parametrize("name", [*QUICK, *LONG])
def test_reports_come_from_published_results(name: str) -> None:
    """`caw evaluate report FOLDER --output FOLDER` where this fails."""
    folder = folder_of(name)
    data = read_report_data(folder)
    made = [section for section in sections(data) if not section.empty]
    assert markdown(TITLE, made) == (folder / "report.md").read_text(encoding="utf-8")
    figures = {f"{figure}.svg" for section in made for figure, _ in section.figures}
    assert figures and figures == {path.name for path in (folder / "figures").iterdir()}


@pytest.mark.parametrize("name", QUICK)
def test_results_come_from_published_answers_and_scores(name: str) -> None:
    """`caw evaluate report FOLDER --anew` where this fails."""
    copy = Published(folder_of(name))
    assert json.loads(json.dumps(Results(copy, copy.plans()).as_dict())) == Store(copy.folder).results


@pytest.mark.parametrize("name", [*QUICK, *LONG])
def test_published_folders_hold_what_they_should(name: str) -> None:
    folder = folder_of(name)
    copy = Published(folder)
    plans = copy.plans()
    assert [plan.name for plan in plans] == list(copy.manifests) and set(copy.lines) == set(copy.manifests)
    assert {score.cell for score in copy.every_score()} <= set(copy.manifests)
    runs = {run for plan in plans for run in copy.answers(plan).runs}
    assert runs == set(copy.about["runs"]) and all(copy.command(run).startswith("caw evaluate run ") for run in runs)
    assert (BENCHMARKS / "evaluation" / f"{name}.yaml").is_file()
    assert max(len(str(line["answer"])) for line in read_lines(folder / "answers.jsonl")) <= 32, "answers, not texts"


def test_committed_results_stay_small() -> None:
    """3.6 MB in all, 2 MB of them answer by answer; copies keep these by column, and results without indents."""
    sizes = {path: path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()}
    assert sum(sizes.values()) <= 3_600_000
    assert sum(size for path, size in sizes.items() if path.name.endswith(".columns.xz")) <= 2_000_000
    assert {path.suffix for path in sizes} == {".json", ".md", ".svg", ".xz"}
    assert {path.stem.partition(".")[2] for path in sizes if path.suffix == ".xz"} == {"columns", "json"}
    assert not list(RESULTS.rglob("results.json")), "they are compressed"
    for path in RESULTS.rglob("results.json.xz"):
        assert lzma.decompress(path.read_bytes()).decode().startswith('{"rows":[\n{"model":"'), path
    assert not [path for path in sizes if path.suffix == ".svg" and "<dc:date>" in path.read_text(encoding="utf-8")]


def test_a_copy_is_no_run_to_go_on_with(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({
        "output": str(tmp_path), "models": {"m": {"source": "x"}}, "tasks": {"gsm8k": {}},
        "watermarks": {"kgw": {"kind": "kgw"}}, "policies": {"soft": {"kind": "fixed", "delta": 2}},
    }))  # fmt: skip
    (tmp_path / "cells.json").write_text('{"cells": {}, "runs": {}, "not_begun": []}')
    before = sorted(tmp_path.iterdir())
    says = f"{tmp_path} is a published copy without texts; give the run's own"
    for command in (
        ["run", "--config", str(config)],
        ["run", "--config", str(config), "--scores-only"],
        ["attack", str(tmp_path), "--attack", "word-d:0.1"],
        ["perplexity", str(tmp_path), "--model", "x"],
    ):
        done = CliRunner().invoke(app, ["evaluate", *command], env={"CAW_TRACEBACK": "", "COLUMNS": "300"})
        assert done.exit_code == 2 and says in done.stderr.replace("\n", " "), done.output
    assert sorted(tmp_path.iterdir()) == before


def test_published_folders_hold_no_texts(made: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    work = runner(made, whole)
    assert publish(work.scorer, work.config.plan(), tmp_path / "p") == 9 * len(CELLS)
    names = {path.name for path in (tmp_path / "p").iterdir()}
    assert names == {"answers.columns.xz", "scores.columns.xz", "cells.json", "config.yaml", "results.json.xz"}
    content = content_of(tmp_path / "p")
    for found in texts(whole).values():
        assert not any(text and json.dumps(text)[1:-1] in content for text in found.values())
    assert "the sky is blue" not in content and "small text" not in content
    [line, *_] = read_lines(tmp_path / "p" / "answers.jsonl")
    assert line.keys() == {
        "cell", "id", "answer", "extraction", "correct", "finish_reason", "tokens", "marked", "changed"
    }  # fmt: skip
    copy = Published(tmp_path / "p")
    assert copy.plans() == [replace(plan, count=None) for plan in dict.fromkeys(work.config.plan())]
    assert Results(copy, copy.plans()).as_dict() == Results(work.scorer, work.config.plan()).as_dict()
    assert (tmp_path / "p" / "config.yaml").read_text() == (whole / "config.yaml").read_text()
    with pytest.raises(ValueError, match="another folder"):
        publish(work.scorer, work.config.plan(), whole)
