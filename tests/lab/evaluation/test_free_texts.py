"""A run on prompts without right answers: from the texts to results, report, published copy and the figures of docs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.evaluation.tiny_run import runner

from caw.io.jsonl import encode
from caw_lab.evaluation.attacks.attacker import Attacker
from caw_lab.evaluation.config_file import config_of
from caw_lab.evaluation.report.data import read_report_data
from caw_lab.evaluation.report.document import write_report
from caw_lab.evaluation.run import Runner

COUNT = 6
CELLS = ["tiny.short.none", "tiny.short.kgw.soft.0", "tiny.short.kgw.found.0", "tiny.drawn.none"]


@pytest.fixture(scope="module")
def free(made: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The config of all tests with two tasks of prompts, one of them sampled, and a policy whose texts are tested."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_bytes(b"".join(encode({"prompt": f"small text {i}, a"}) for i in range(COUNT)))
    drawn = {"max_new_tokens": 9, "do_sample": True, "temperature": 0.5}
    return {
        **made,
        "tasks": {
            "short": {"kind": "prompts", "path": str(path), "generation": {"max_new_tokens": 40}},
            "drawn": {"kind": "prompts", "path": str(path), "generation": drawn},
        },
        "policies": {
            "soft": {"kind": "fixed", "delta": 1.0},
            "found": {"kind": "fixed", "delta": 1.0, "found": {"detectable_at": 0.001, "max_attempts": 3}},
        },
        "keys": 1,
        "runs": [{"task": "short"}, {"task": "drawn", "watermark": "none"}],
    }


@pytest.fixture(scope="module")
def work(free: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    work = runner(free, tmp_path_factory.mktemp("free"))
    assert work.run() == COUNT * len(CELLS)
    Attacker(work.scorer).run(["word-d:0.5"], work.plan())
    lines = [
        {"id": g.id, "cell": cell.name, "model": "judge", "given": "prompt", "alone": 9.0, "num_tokens": 5,
         "given_prompt": 2.0 if cell.name.endswith("none") else 3.0}
        for cell in work.store.cells() for g in cell.read()
    ]  # fmt: skip
    (work.store.path / "perplexity.jsonl").write_bytes(b"".join(encode(line) for line in lines))
    (work.store.path / "config.yaml").write_text(json.dumps(free))  # JSON is YAML, too
    work.score()
    (work.store.path / "config.yaml").write_text(json.dumps(free))
    return work


def test_tasks_and_policies_have_settings_of_their_own(work: Runner) -> None:
    assert [cell.name for cell in work.store.cells()] == sorted(CELLS)
    asked = {name: work.store.cell(name).manifest["generation"] for name in CELLS}
    assert {name: g["max_new_tokens"] for name, g in asked.items()} == dict(zip(CELLS, (40, 40, 40, 9), strict=True))
    assert asked["tiny.drawn.none"]["temperature"] == 0.5 and "temperature" not in asked["tiny.short.none"]
    assert [name for name in CELLS if "detectable_at" in asked[name]] == ["tiny.short.kgw.found.0"]
    texts = {name: work.store.cell(name).read() for name in CELLS}
    assert {len(g.tokens) for g in texts["tiny.drawn.none"]} <= set(range(1, 10))
    assert max(len(g.tokens) for g in texts["tiny.short.none"]) == 40
    assert {g.attempts for g in texts["tiny.short.kgw.soft.0"]} == {1}
    assert max(g.attempts for g in texts["tiny.short.kgw.found.0"]) > 1, "delta 1 is too weak for 40 tokens"
    assert all(g.correct is None and g.truncated_text == g.text for made in texts.values() for g in made)


def test_reports_leave_grades_out(work: Runner, tmp_path: Path) -> None:
    data = read_report_data(work.store.path)
    assert data.correct == {} and not any("grades" in line for line in data.missing)
    write_report(data, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "## Length and repetition" in text and "## Paired comparisons" not in text and "Trade-off" not in text
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {
        "perplexity-short", "perplexity-drawn", "robustness-short"
    }  # fmt: skip
    assert "nan" not in text.lower().split()


def test_texts_without_answers_cannot_be_chosen_by_them(free: dict[str, Any]) -> None:
    found = {"detectable_at": 0.001, "best_of": 2, "select": "answer"}
    policies = {**free["policies"], "found": {**free["policies"]["found"], "found": found}}
    says = "policy found with watermark kgw: select must not be answer, task short has no answers; leave it out"
    with pytest.raises(ValueError, match=says):
        config_of({**free, "policies": policies}).check()
