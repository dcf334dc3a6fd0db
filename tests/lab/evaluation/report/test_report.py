"""Reports of whole, partial and published runs."""

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from lab.evaluation import small_run
from lab.evaluation.small_run import KEYS, MODEL, QUESTIONS, TASK, cell_name, write_perplexity, write_run
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from caw.cli import app
from caw_lab.evaluation.report.data import ReportData, Setting, read_report_data, setting_of_cell
from caw_lab.evaluation.report.document import write_report
from caw_lab.evaluation.report.robustness import robustness
from caw_lab.evaluation.report.tables import main_table, robustness_table
from caw_lab.evaluation.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = write_run(tmp_path_factory.mktemp("run"))
    write_perplexity(made)
    return made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One watermark: drawing takes most of the time."""
    made = write_run(tmp_path_factory.mktemp("small"), ("kgw",), attacks=small_run.ATTACKS[:1])
    write_perplexity(made)
    return made


@pytest.fixture(scope="module")
def data(store: Store) -> ReportData:
    return read_report_data(store.path)


def test_settings_of_cells() -> None:
    assert setting_of_cell("qwen2.5-0.5b.gsm8k.none") == (Setting("qwen2.5-0.5b", "gsm8k"), None)
    assert setting_of_cell("a.b.kgw.soft.12") == (Setting("a", "b", "kgw", "soft"), 12)
    # names with dots on both sides: the watermark says where they part
    assert setting_of_cell("qwen2.5.gsm8k.kgw.caw-0.6.1", "kgw") == (Setting("qwen2.5", "gsm8k", "kgw", "caw-0.6"), 1)
    with pytest.raises(ValueError, match=r"must be MODEL\.TASK"):
        setting_of_cell("a.b.c")


def test_several_models_stand_side_by_side(data: ReportData) -> None:
    other = {**data.row(Setting(MODEL, TASK, "kgw", "hard")), "model": "second", "accuracy": 0.123}
    table = main_table(ReportData([*data.rows, other]), TASK)
    assert len(table.header) == 9 and table.header[1] == "second Acc."
    (row,) = [r for r in table.rows if r[0] == "KGW-hard"]
    assert row[1] == "12.3 % [10, 90]"
    assert [r[1] for r in table.rows if r[0] == "KGW-soft"] == ["–"]


def test_pooled_rows_are_taken(data: ReportData) -> None:
    own = {**data.row(Setting(MODEL, TASK, "kgw", "soft")), "key_id": "abc", "accuracy": 0.999}
    assert main_table(ReportData([*data.rows, own], kinds=data.kinds), TASK) == main_table(data, TASK)
    alone = ReportData([own])
    assert alone.row(Setting(MODEL, TASK, "kgw", "soft"))["accuracy"] == 0.999  # the only key's own


def test_robustness_against_the_definition(store: Store, data: ReportData) -> None:
    found = robustness(data)
    assert len(found) == 2 * len(small_run.POLICIES) * len(small_run.ATTACKS)
    (one,) = [r for r in found if r.setting == Setting(MODEL, TASK, "kgw", "hard") and r.attack == "word-d-0.1"]
    scores = store.read_scores()
    per_key = []
    for key in range(KEYS):
        cell = cell_name("kgw", "hard", key)
        own = {a: [s.p_value for s in scores if s.cell == cell and s.attack == a] for a in ("none", "word-d-0.1")}
        null = [s.p_value for s in scores if s.label == 0 and s.watermark == "kgw" and s.key == key
                and s.attack == "word-d-0.1"]  # fmt: skip
        before, after = np.array(own["none"]), np.array(own["word-d-0.1"])
        assert len(before) == len(after) == len(null) == QUESTIONS
        area = roc_auc_score([1] * QUESTIONS + [0] * QUESTIONS, [-p for p in (*after, *null)])
        per_key.append(((before <= 0.01).mean(), (after <= 0.01).mean(), area, np.mean(np.array(null) <= 0.01)))
    before, after, area, false = np.array(per_key).T
    assert one.found == pytest.approx(after) and one.auroc == pytest.approx(area)
    assert one.loss.mean() == pytest.approx((before - after).mean()) and len(one.loss) == QUESTIONS
    assert one.loss_ci[0] < one.loss.mean() < one.loss_ci[1]
    assert one.false == pytest.approx(false.mean()) and one.edit_rate == pytest.approx(0.1)
    assert one.texts == KEYS * QUESTIONS
    table = robustness_table(data, [one]).rows[0]
    shares = (f"{100 * part.mean():.1f} %" for part in (before, after))
    assert table[2:7] == ("KGW-hard", "word-d-0.1", "10.0 %", *shares)
    assert table[8] == f"{100 * abs(after[0] - after[1]) / 2**0.5:.1f}"  # the standard deviation of two keys


def test_robustness_of_partly_attacked_runs(data: ReportData) -> None:
    ids = {f"{TASK}/test/{i}" for i in range(10)}
    some = [s for s in data.scores if s.attack == "none" or (s.label and s.id in ids and s.key == 0)]
    found = robustness(ReportData(data.rows, some))
    assert {r.texts for r in found} == {10}  # compared on the same texts
    assert all(np.isnan(r.auroc).all() and np.isnan(r.false) for r in found)  # negatives were not attacked


def test_whole_report(small: Store, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    done = CliRunner().invoke(
        app, ["evaluate", "report", str(small.path), "-o", str(folder)], env={"CAW_TRACEBACK": ""}
    )
    assert done.exit_code == 0, done.output
    assert "missing" not in done.stderr
    text = (folder / "report.md").read_text()
    for heading in (
        "Accuracy and detection", "Trade-off", "Detection in detail", "Robustness", "Perplexity", "Commands",
    ):  # fmt: skip
        assert f"\n## {heading}" in text
    assert "What is missing" not in text
    images = re.findall(r"\]\((figures/[^)]*)\)", text)
    assert len(images) == 3 and {Path(image).name for image in images} == {p.name for p in folder.glob("figures/*")}
    for image in images:
        ElementTree.fromstring((folder / image).read_text())


def test_partial_runs_say_what_is_missing(store: Store, tmp_path: Path) -> None:
    rows = [r for r in store.results["rows"] if (r["watermark"], r["policy"]) != ("unigram", "hard")]
    lonely = {**rows[1], "model": "second"}
    (tmp_path / "results.json").write_text(json.dumps({"rows": [*rows, lonely]}))
    done = CliRunner().invoke(app, ["evaluate", "report", str(tmp_path), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "out" / "report.md").read_text()
    for line in (
        "second, gsm8k: no unmarked texts",
        "second, gsm8k: no results of kgw.hard, kgw.hard+caw-0.6, kgw.hard+entropy, unigram.hard+caw",
        "no scores.jsonl", "no perplexities", "no grades question by question",
    ):  # fmt: skip
        assert f"- {line}" in text, line
        assert f"missing: {line}" in done.stderr
    assert "## Robustness" not in text and "KGW-soft" in text


def test_unfinished_cells_are_counted(tmp_path: Path) -> None:
    made = write_run(tmp_path, ("kgw",), attacks=())
    path = made.cell(cell_name("kgw", "soft", 0)).files()[0]
    path.write_bytes(b"".join(path.read_bytes().splitlines(True)[:7]))
    shutil.rmtree(made.cell(cell_name("kgw", "soft", 1)).folder)
    config = {"output": "x", "models": {MODEL: {"source": "x"}}, "tasks": {TASK: {}}, "keys": 2,
              "watermarks": {"kgw": {"kind": "kgw"}},
              "policies": {"soft": {"kind": "fixed", "delta": 2}}}  # fmt: skip
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    missing = read_report_data(tmp_path).missing
    assert f"planned and not begun: {cell_name('kgw', 'soft', 1)}" in missing
    assert f"{MODEL}, {TASK}: fewer than 40 questions so far: KGW-soft 7" in missing
    assert any(line.startswith("no attacked texts") for line in missing)


def test_a_run_with_unmarked_texts_only(tmp_path: Path) -> None:
    write_report(read_report_data(write_run(tmp_path, ()).path), tmp_path / "out")
    assert "| No watermark |" in (tmp_path / "out" / "report.md").read_text()
    assert "Trade-off" not in (tmp_path / "out" / "report.md").read_text()


def test_folders_that_are_no_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["evaluate", "report", str(tmp_path), "-o", str(tmp_path / "out")])
    assert done.exit_code == 2 and "must contain results.json" in done.stderr
    (tmp_path / "results.json").write_text('{"rows": [{"accuracy": 1}]}')
    done = CliRunner().invoke(app, ["evaluate", "report", str(tmp_path), "-o", str(tmp_path / "out")])
    assert done.exit_code == 2 and "must have rows with model and task" in done.stderr
